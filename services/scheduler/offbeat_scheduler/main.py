"""`offbeat-scheduler`: the control plane. Everyone dials it; it dials nobody."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from functools import partial

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from offbeat.v1 import scheduler_pb2_grpc
from offbeat_core import __version__, channels
from offbeat_core import metrics as prometheus
from offbeat_core.clock import RealClock
from offbeat_core.config import SchedulerSettings
from offbeat_core.errors import OffbeatError
from offbeat_core.fault import until_stop
from offbeat_core.service import announce, grpc_health, run_service
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import HubState
from offbeat_scheduler.hub import Hub
from offbeat_scheduler.metrics import SchedulerCollector
from offbeat_scheduler.models import make_model
from offbeat_scheduler.service import SchedulerService
from offbeat_scheduler.servicer import SchedulerServicer

STOP_S = 2.0

log = logging.getLogger(__name__)


def make_service(settings: SchedulerSettings) -> SchedulerService:
    """Raises OffbeatError where the folder can't be written to."""
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OffbeatError(
            f"folder: {settings.folder}: {error.strerror or error}", "name a folder that can be written to"
        ) from error
    state = HubState(
        scheduler_incarnation=uuid.uuid4().hex,
        lease_s=settings.lease_s,
        report_every_s=settings.report_every_s,
        offbeat_version=__version__,
    )
    for path in settings.models:
        if not path.exists():
            raise OffbeatError(
                f"models: {path}: there is no such file or folder",
                "name your own models' files or their folder",
            )
    # A run comes over the network: of a user's own models it may name these only.
    make_allowed = partial(make_model, own_files=settings.models)
    event_log = EventLog(settings.folder, settings.keep_runs)
    clock = RealClock()
    return SchedulerService(Hub(state, make_allowed, clock.now), clock, event_log, make_allowed)


async def serve(settings: SchedulerSettings, stop: asyncio.Event) -> int:
    """Run until `stop` is set."""
    service = make_service(settings)
    first_run = service.read_file(settings.run) if settings.run else None
    server = channels.make_server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SchedulerServicer(service), server)
    healths = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healths, server)
    port = channels.listen(server, settings.listen, allow_plaintext=settings.allow_plaintext)
    if settings.allow_plaintext and not channels.is_loopback(
        channels.split_address(settings.listen, "listen")[0]
    ):
        log.warning("listening unencrypted on %s: only for a network that you trust", settings.listen)
    metrics_port, metrics_server = 0, None
    if settings.metrics_listen:
        collector = SchedulerCollector(service, asyncio.get_running_loop())
        metrics_port, metrics_server = prometheus.serve(settings.metrics_listen, collector)
    await server.start()
    await healths.set("", health_pb2.HealthCheckResponse.SERVING)
    # The parameter server logs the same: so one sees whom it attends.
    log.info(
        "offbeat %s, incarnation %s: waiting for agents on port %d",
        __version__,
        service.hub.incarnation[:8],
        port,
    )
    if first_run is not None:
        service.submit(first_run)
    announce(settings.ready_file, port=port, metrics_port=metrics_port)
    tasks = [asyncio.create_task(service.fault.watch())]
    if settings.fetch_command:
        tasks.append(asyncio.create_task(_tell_how_to_fetch(service, settings.fetch_command)))

    error = await until_stop(stop, tasks)

    log.info("stopping")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await healths.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    service.close()
    await server.stop(STOP_S)
    if metrics_server is not None:
        metrics_server.shutdown()  # type: ignore[attr-defined]
    if error is not None:
        raise error
    return 0


async def _tell_how_to_fetch(service: SchedulerService, command: str) -> None:
    """A path inside the parameter server's container helps nobody outside it: log the command that does."""
    told = ""
    while True:
        seen = service.events
        run = service.hub.run
        if run is not None and service.hub.active_run is None and run.run_id != told:
            told = run.run_id
            path = service.status().model_path
            if path:
                log.info("to get the model: %s", command.replace("{path}", path))
        await service.event_after(seen)


def main() -> int:
    return run_service(
        "offbeat-scheduler",
        "The control plane of Offbeat: devices, parameter server and evaluator attend it; it runs what "
        "`offbeat run` submits, and decides how often each device commits.",
        SchedulerSettings,
        serve,
        health=lambda settings: grpc_health(settings.listen),
    )


if __name__ == "__main__":
    sys.exit(main())
