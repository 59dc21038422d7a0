"""One device's worker, put together: device, connections, training thread, agent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections.abc import Callable

import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core import __version__, channels, metrics
from offbeat_core.config import WorkerSettings
from offbeat_core.service import announce
from offbeat_worker import device as devices
from offbeat_worker import training
from offbeat_worker.agent import WorkerAgent
from offbeat_worker.attend import Attendance
from offbeat_worker.bulk import Bulk
from offbeat_worker.collector import WorkerCollector
from offbeat_worker.evaluator import EvaluatorAgent
from offbeat_worker.localrun import Site
from offbeat_worker.pacing import Pace, PaceFile
from offbeat_worker.taskwatch import TaskWatch

log = logging.getLogger("offbeat-worker")

POLL_S = 0.25
"""Between two looks at step_seconds_file."""

LOOK_S = 1.0
"""Between two looks at the user's task files."""


class Station:
    """Make it on the event loop, with what `prepare` returned."""

    @classmethod
    def prepare(cls, settings: WorkerSettings, known: dict[str, str]) -> Callable[[], Station]:
        """Look at the device; needs no event loop. `known`: tasks and digests. Raises OffbeatError."""
        device = devices.choose(settings.device, settings.threads)
        with contextlib.suppress(RuntimeError):  # fixed already, by an import of the user's
            torch.set_num_interop_threads(1)
        site = Site(
            settings.shard,
            settings.shards,
            settings.data,
            settings.tasks,
            device.torch_device,
            settings.max_batch,
        )
        return functools.partial(cls, settings, device, site, known)

    def __init__(
        self, settings: WorkerSettings, device: devices.Device, site: Site, known: dict[str, str]
    ) -> None:
        self._settings = settings
        level = logging.WARNING if device.expected_gpu else logging.INFO
        log.log(
            level,
            "%s computes on %s with %d threads%s",
            settings.name,
            device.description.upper() if device.expected_gpu else device.description,
            device.threads,
            f": {device.reason}" if device.reason else "",
        )
        evaluates = settings.role == "evaluator"
        hello = self._hello = sc.Hello(
            role=pb.ROLE_EVALUATOR if evaluates else pb.ROLE_WORKER,
            name=settings.name,
            incarnation=uuid.uuid4().hex,
            offbeat_version=__version__,
            device=device.to_proto(),
            tasks=known,
            shard=settings.shard,
            shards=settings.shards,
        )
        self._tasks = TaskWatch(settings.tasks, known)
        self._channels = [
            channels.connect(address, proxy=settings.grpc_proxy)
            for address in (settings.scheduler, settings.parameter_server)
        ]
        bulk = Bulk(self._channels[1], settings.name, hello.incarnation)
        self._trainer: training.Trainer | None = None
        self.metrics_port = 0
        self._pace = Pace(settings.step_seconds, settings.step_fixed_seconds)
        self._agent: WorkerAgent | EvaluatorAgent
        if evaluates:
            self._agent = EvaluatorAgent(hello, bulk, settings.parameter_server, site, device)
        else:
            self._agent = WorkerAgent(hello, bulk, settings.parameter_server)
            self._agent.trainer = self._trainer = training.Trainer(site, device, self._pace, self._agent.emit)
        self._attendance = Attendance(self._channels[0], settings.scheduler, self._agent)
        self._agent.attendance = self._attendance

    @property
    def attached(self) -> bool:
        """Does the scheduler know this worker now?"""
        return self._attendance.attached

    def report(self) -> sc.Report:
        """What the scheduler would hear now."""
        return self._agent.report()

    async def run(self) -> None:
        """Attend and train until cancelled. Raises OffbeatError where this worker can't go on."""
        work = [asyncio.ensure_future(self._attendance.run()), self._agent.ended]
        if self._settings.step_seconds_file is not None:
            work.append(
                asyncio.ensure_future(
                    self._watch_pace(PaceFile(self._settings.step_seconds_file, self._pace))
                )
            )
        if self._settings.tasks:
            work.append(asyncio.ensure_future(self._watch_tasks()))
        endpoint = None
        try:
            if self._settings.metrics_listen:
                self.metrics_port, endpoint = metrics.serve(
                    self._settings.metrics_listen, WorkerCollector(self._settings.name, self._agent.report)
                )
            if self._trainer is not None:
                self._trainer.start()
            announce(self._settings.ready_file, name=self._settings.name, metrics_port=self.metrics_port)
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            if endpoint is not None:
                endpoint.shutdown()  # type: ignore[attr-defined]

    async def leave(self, reason: str, within_s: float) -> None:
        """Commit what is left and have it written, say goodbye, end the training thread.

        Each within so many seconds, or not.
        """
        if isinstance(self._agent, EvaluatorAgent):
            self._agent.close()
        else:
            await self._agent.leave(within_s)
            self._agent.trainer.post(training.Quit())
        await self._attendance.goodbye(reason)
        if self._trainer is not None and not await asyncio.to_thread(self._trainer.join, within_s):
            log.warning("the batch under way was cut off after %g s", within_s)
        for channel in self._channels:
            await channel.close()

    async def _watch_tasks(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            known = self._tasks.poll()
            if known is not None:
                self._hello.tasks.clear()
                self._hello.tasks.update(known)
                again = sc.Report()
                again.hello.CopyFrom(self._hello)
                self._attendance.report_now(again)

    async def _watch_pace(self, file: PaceFile) -> None:
        while True:
            file.poll()
            await asyncio.sleep(POLL_S)
