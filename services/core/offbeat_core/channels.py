"""Every gRPC channel and server of Offbeat is made here, so that both ends agree.

Why each option has its value:

- keepalive: a device trains for minutes without a word, and home routers drop idle
  connections after a few. The client pings every `KEEPALIVE_S`, also without a call;
  the server must allow that, or it answers GOAWAY "too_many_pings".
- ping timeout: gRPC also pings to measure bandwidth, and waits a minute for that
  answer; while it does, keepalive sends no ping of its own. Both have one timeout.
- message length: parts are 512 KiB; 8 MiB leaves room for a manifest of very many
  tensors and bounds what a stranger can make us hold.
- so_reuseport off: two servers on one port would share connections silently.
- http_proxy: off; a device's own hub is on its own network unless one asks for it.
"""

from __future__ import annotations

import socket

import grpc
import grpc.aio

from offbeat_core.addresses import is_loopback, split_address
from offbeat_core.errors import OffbeatError

KEEPALIVE_S = 30
KEEPALIVE_TIMEOUT_S = 20
MAX_MESSAGE_BYTES = 8 * 1024 * 1024

_COMMON = [
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
CLIENT_OPTIONS = [
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
]
SERVER_OPTIONS = [
    *_COMMON,
    # Tolerate pings at half the interval that our clients use.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_S * 1000 // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def connect(address: str, *, proxy: bool = False) -> grpc.aio.Channel:
    """A channel to `address`. It connects by itself and reconnects with backoff."""
    return grpc.aio.insecure_channel(
        address, options=[*CLIENT_OPTIONS, ("grpc.enable_http_proxy", int(proxy))]
    )


def connect_blocking(address: str, *, proxy: bool = False) -> grpc.Channel:
    """The same for the operator's command, which has one call at a time."""
    return grpc.insecure_channel(address, options=[*CLIENT_OPTIONS, ("grpc.enable_http_proxy", int(proxy))])


def make_server() -> grpc.aio.Server:
    return grpc.aio.server(options=SERVER_OPTIONS)


def listen(
    server: grpc.aio.Server, address: str, *, field: str = "listen", allow_plaintext: bool = False
) -> int:
    """Bind `server` and return its port (that asked for, or a free one for port 0).

    Raises OffbeatError where the port is taken, or where others could reach a
    plaintext port that nobody allowed.
    """
    host, port = split_address(address, field)
    if not is_loopback(host) and not allow_plaintext:
        raise OffbeatError(
            f"{field}: {address} can be reached by other machines, without encryption",
            "listen on 127.0.0.1, or set allow_plaintext: true on a network that you trust",
        )
    # Tried before gRPC does: it says only that it failed, and writes a line of its own on stderr.
    if problem := _problem(host, port):
        raise _cannot_bind(field, address, problem)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise _cannot_bind(field, address) from error
    if bound == 0:
        raise _cannot_bind(field, address)
    return bound


def _problem(host: str, port: int) -> str:
    """Why none of the host's addresses can be bound; empty where one can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    problem = ""
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As gRPC does: what closed a moment ago is no hindrance, a listener is.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            problem = problem or error.strerror or str(error)
        else:
            return ""
    return problem


def _cannot_bind(field: str, address: str, reason: str = "the address cannot be used") -> OffbeatError:
    return OffbeatError(
        f"{field}: {address}: {reason}", "end what uses the port, or choose another (port 0 takes a free one)"
    )
