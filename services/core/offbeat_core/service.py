"""The frame in which each service runs: options, logging, signals, ready file, exit code.

A service is one coroutine `serve(settings, stop)`: it starts, calls `ready`, and
returns once `stop` is set. SIGTERM and SIGINT set it; a second one ends at once. So does
SIGHUP, of a terminal that closes, unless `nohup` had it ignored; it often comes twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from offbeat_core import channels, lifeline, logs
from offbeat_core.config import ServiceSettings, load_service_settings, service_parser
from offbeat_core.errors import ExitCode, OffbeatError, guard

S = TypeVar("S", bound=ServiceSettings)


def announce(path: Path | None, **facts: object) -> None:
    """Write the ready file whole or not at all: readers never see half of it."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"pid": os.getpid(), **facts}), encoding="utf-8")
    temporary.replace(path)


def run_service(
    command: str,
    description: str,
    model: type[S],
    serve: Callable[[S, asyncio.Event], Awaitable[int | None]],
    argv: Sequence[str] | None = None,
    *,
    health: Callable[[S], int] | None = None,
) -> int:
    """Parse options, run `serve` until a signal, and return the exit code (0 on SIGTERM).

    `health` adds `--health`: check a running service with these settings, exit 0 if it is well.
    """
    parser = service_parser(model, command, description)
    if health:
        parser.add_argument(
            "--health", action="store_true", help="Check the running service and exit: 0 if it is well."
        )
    arguments = parser.parse_args(argv)

    def body() -> int:
        settings = load_service_settings(model, arguments)
        if health and arguments.health:
            return health(settings)
        logs.setup(command, settings.log_level)
        return asyncio.run(_until_signal(settings, serve))

    return guard(body, debug=arguments.debug)


async def _until_signal(settings: S, serve: Callable[[S, asyncio.Event], Awaitable[int | None]]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(ExitCode.FAILED)
        stop.set()

    def on_hangup(*_: object) -> None:
        # Not by the loop: on its way out it gives a signal back its default, which is death.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, on_hangup)
    lifeline.hold_on()
    return int(await serve(settings, stop) or 0)


def grpc_health(address: str, service: str = "", timeout_s: float = 3.0) -> int:
    """Ask a server's gRPC health service; 0 if it serves. For container health checks."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    host, port = channels.split_address(address, "listen")
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with channels.connect_blocking(target) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError as error:
            raise OffbeatError(
                f"health: {target}: {error.code().name}", "is the service running there?"
            ) from error
    if reply.status == health_pb2.HealthCheckResponse.SERVING:
        return 0
    raise OffbeatError(f"health: {target}: {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}")


__all__ = ["announce", "grpc_health", "run_service"]
