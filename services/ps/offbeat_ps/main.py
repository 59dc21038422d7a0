"""offbeat-ps: the parameter server's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Sequence

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from offbeat.v1 import parameter_server_pb2_grpc as rpc
from offbeat_core import channels, metrics
from offbeat_core.clock import RealClock
from offbeat_core.config import ParameterServerSettings
from offbeat_core.errors import OffbeatError
from offbeat_core.fault import until_stop
from offbeat_core.service import announce, grpc_health, run_service
from offbeat_ps.attend import Attendant
from offbeat_ps.host import Host
from offbeat_ps.metrics import ServerCollector
from offbeat_ps.samples import SampleFile
from offbeat_ps.servicer import Servicer
from offbeat_ps.stalls import Stalls

log = logging.getLogger("offbeat_ps")

COMMAND = "offbeat-ps"
DESCRIPTION = (
    "Offbeat's parameter server: holds the model, adds what workers commit, writes checkpoints. "
    "It attends a scheduler, which tells it about runs."
)
SERVICE = "offbeat.v1.ParameterServer"
GRACE_S = 1.0
"""At the end, calls that are under way have so long to finish."""


async def serve(settings: ParameterServerSettings, stop: asyncio.Event) -> int:
    """Serve until `stop`, then write a checkpoint."""
    _check_folder(settings)
    clock = RealClock()
    samples = await asyncio.to_thread(SampleFile, settings.samples) if settings.samples else None
    host = Host(settings.folder, settings.commit_memory_mb * 2**20, clock, samples)
    stalls = Stalls(clock)
    attendant = Attendant(host, settings.scheduler, settings.name, proxy=settings.grpc_proxy)

    server = channels.make_server()
    rpc.add_ParameterServerServicer_to_server(Servicer(host, stalls), server)
    well = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(well, server)
    port = channels.listen(server, settings.listen, allow_plaintext=settings.allow_plaintext)
    metrics_port, metrics_server = 0, None
    if settings.metrics_listen:
        metrics_port, metrics_server = metrics.serve(
            settings.metrics_listen, ServerCollector(host, stalls, attendant, clock)
        )
    await server.start()
    for service in ("", SERVICE):
        await well.set(service, health_pb2.HealthCheckResponse.SERVING)
    work = (attendant.run(), stalls.keep_watch(), host.fault.watch())
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    log.info("listens on port %d, files in %s", port, settings.folder)
    if samples is not None:
        shown = ", ".join(f"{field.name} {field.dtype} {list(field.shape)}" for field in samples.fields)
        log.info("holds %d samples (%s) of %s", samples.count, shown, settings.samples)
    if "scheduler" not in settings.model_fields_set:
        log.info("no scheduler is named: attends whichever answers at %s", settings.scheduler)
    announce(settings.ready_file, port=port, metrics_port=metrics_port)

    error = await until_stop(stop, tasks)

    log.info("ends")
    host.stop_calls()
    await well.enter_graceful_shutdown()
    await server.stop(GRACE_S)
    await host.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if metrics_server is not None:
        with contextlib.suppress(Exception):
            metrics_server.shutdown()  # type: ignore[attr-defined]
            metrics_server.server_close()  # type: ignore[attr-defined]
    if error is not None:
        raise error
    return 0


def _check_folder(settings: ParameterServerSettings) -> None:
    """A folder that can never be written is an error at the start; a full disk later on is not."""
    folder = settings.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OffbeatError(
            f"folder: cannot make {folder}: {error.strerror}", "give a folder that this user may write"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OffbeatError(
            f"folder: {folder} cannot be written by this user", "change its owner, or give another folder"
        )


def check_health(settings: ParameterServerSettings) -> int:
    return grpc_health(settings.listen, SERVICE)


def main(argv: Sequence[str] | None = None) -> int:
    return run_service(COMMAND, DESCRIPTION, ParameterServerSettings, serve, argv, health=check_health)


if __name__ == "__main__":
    sys.exit(main())
