"""HOST:PORT as configuration and messages write it. Apart from channels.py so that it needs no gRPC."""

from __future__ import annotations

import ipaddress

from offbeat_core.errors import OffbeatError


def split_address(address: str, field: str) -> tuple[str, int]:
    """'host:port', '[::1]:port' -> (host, port). Raises OffbeatError naming `field`."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise OffbeatError(f"{field}: '{address}' is not HOST:PORT", "for example 127.0.0.1:50050")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Is this a name or address that only this machine can reach?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
