"""`python -m offbeat_core.health [HOST:PORT]`: a container's health check of a service that listens.

Asks gRPC's health service, as `offbeat-ps --health` and `offbeat-scheduler --health` do, but loads gRPC
alone: a check every few seconds must not cost a small hub a tenth of its processor.
"""

from __future__ import annotations

import os
import sys

import grpc

from offbeat_core.addresses import split_address
from offbeat_core.errors import OffbeatError, guard

SERVING = b"\x08\x01"
"""HealthCheckResponse(status=SERVING) on the wire; the request for the whole server is empty."""


def check(address: str, timeout_s: float = 5.0) -> None:
    """Raises OffbeatError unless the server at `address`, as it listens, says that it serves."""
    host, port = split_address(address, "listen")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            raise OffbeatError(
                f"health: {target}: {error.code().name}", "is the service running there?"
            ) from error
    if reply != SERVING:
        raise OffbeatError(f"health: {target}: it does not serve (now)", "it is starting or ending")


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OFFBEAT_LISTEN", "")

    def body() -> int:
        check(address)
        return 0

    return guard(body, debug=False)


if __name__ == "__main__":
    sys.exit(main())
