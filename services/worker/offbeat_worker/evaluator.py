"""The evaluator: pulls the model now and then, and reports loss and metric on held-out data.

It never trains, never commits, holds no lease, and does not count in M. It computes
in a thread of its own, so that its reports leave on time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_core.retry import delays
from offbeat_worker import tasks
from offbeat_worker.attend import Attendance, Superseded
from offbeat_worker.batches import fetcher
from offbeat_worker.bulk import RETRIED, Bulk, ManifestMismatch, Model, Verdict, describe, judge
from offbeat_worker.device import Device, prepare_thread
from offbeat_worker.directives import DirectiveBook
from offbeat_worker.flat import FlatModel
from offbeat_worker.localrun import Site, build
from offbeat_worker.memory import Fit
from offbeat_worker.outage import Outage
from offbeat_worker.tasks.check import move

log = logging.getLogger(__name__)

NOT_YET_S = 0.2
T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """Means over the held-out samples."""

    loss: float
    metric: float
    metric_name: str
    samples: int
    seconds: float


class HeldOut:
    """A task's model and held-out data.

    Raises OffbeatError for whatever is wrong with the task or its data.
    """

    def __init__(self, site: Site, spec: pb.RunTask, seed: int, batch: int) -> None:
        self._task, module, self._options = build(site, spec, seed)
        dataset = self._task.load_data(
            0, 1, "test", site.folder, seed, spec.partition or "iid", **self._options
        )
        self._fit = Fit(site.max_batch)
        self._fit.within(
            batch,
            lambda count: tasks.check_batch(
                self._task, module, dataset, batch=count, options=self._options, training=False
            ),
            clear=lambda: None,
        )
        self.flat = FlatModel(module, site.device)
        self.samples = len(dataset)
        self._fetch = fetcher(dataset)
        self._batch = batch
        self._device = site.device

    def evaluate(self, vector: np.ndarray, stopped: threading.Event) -> Evaluation | None:
        """Loss and metric of the model in `vector`, float32 of shape (elements,); None if stopped."""
        started = time.monotonic()
        self.flat.load(torch.from_numpy(vector))
        self.flat.module.eval()
        losses = metrics = 0.0
        name, start = "", 0
        while start < self.samples:
            if stopped.is_set():
                return None
            most = min(self._batch, self.samples - start)
            count, loss, (name, metric) = self._fit.within(most, partial(self._part, start), lambda: None)
            losses += loss * count
            metrics += metric * count
            start += count
        # Metrics are means in float32: 342 of 360 comes as 0.94999999. Digits beyond float32's are noise,
        # and would hold a target of 0.95 against a model that meets it.
        metric = float(f"{metrics / self.samples:.7g}")
        return Evaluation(losses / self.samples, metric, name, self.samples, time.monotonic() - started)

    @torch.inference_mode()
    def _part(self, start: int, count: int) -> tuple[int, float, tuple[str, float]]:
        """Of so many samples from `start` on: how many they are, mean loss, name and mean of the metric."""
        batch = self._fetch(np.arange(start, start + count))
        if self._device.type != "cpu":
            batch = move(batch, self._device)
        loss, values = self._task.loss_and_metric(self.flat.module, batch, **self._options)
        name, metric = next(iter(values.items()))
        return count, float(loss), (name, tasks.as_number(metric))


class EvaluatorAgent:
    """Follows evaluator directives. `attendance` is set before it starts."""

    attendance: Attendance

    def __init__(self, hello: sc.Hello, bulk: Bulk, server: str, site: Site, device: Device) -> None:
        self._hello = hello
        self._bulk = bulk
        self._site = site
        self._outage = Outage(f"parameter server {server}")
        self._loop = asyncio.get_running_loop()
        self._directives: DirectiveBook[pb.EvaluatorDirective] = DirectiveBook(pb.EvaluatorDirective())
        self._pool = ThreadPoolExecutor(1, "evaluating", initializer=prepare_thread, initargs=(device,))
        self._task: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        self._report = sc.EvaluatorReport()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def hello(self) -> sc.Hello:
        return self._hello

    def welcome(self, welcome: sc.Welcome) -> None:
        self._directives.welcome(welcome.scheduler_incarnation)

    def direct(self, directive: sc.Directive) -> None:
        if directive.WhichOneof("kind") != "evaluator":
            return
        before = self._directives.current
        if self._directives.offer(directive.evaluator) and directive.evaluator.run_id != before.run_id:
            self._follow()

    def report(self) -> sc.Report:
        """The last evaluation, again: it shows that this evaluator is alive."""
        return sc.Report(evaluator=self._report)

    def close(self) -> None:
        """Stop what is being evaluated."""
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _follow(self) -> None:
        if self._task is not None:
            self._stopped.set()
            self._task.cancel()
            self._task = None
        directive = self._directives.current
        self._report = sc.EvaluatorReport(run_id=directive.run_id)
        if directive.run_id:
            self._stopped = threading.Event()
            self._task = self._loop.create_task(self._serve(directive.run_id, self._stopped))
            self._task.add_done_callback(self._done)
        self.attendance.report_now()

    def _done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Superseded) or not isinstance(error, (OffbeatError, ManifestMismatch)):
            if not self.ended.done():
                self.ended.set_exception(error)
            return
        log.error("run %s cannot be evaluated: %s", self._report.run_id, error)
        self._say(error=str(error), ready=False)

    def _say(self, **fields: object) -> None:
        """Report these fields from now on, beside those reported before."""
        report = sc.EvaluatorReport()
        report.CopyFrom(self._report)
        for name, value in fields.items():
            setattr(report, name, value)
        self._report = report
        self.attendance.report_now()

    async def _serve(self, run_id: str, stopped: threading.Event) -> None:
        """Evaluate a run until cancelled."""
        directive = self._directives.current
        held_out = await self._compute(
            lambda: HeldOut(self._site, directive.task, directive.seed, directive.batch or 256)
        )
        log.info("run %s: %d held-out samples", run_id, held_out.samples)
        self._say(ready=True)
        version: int | None = None
        due = self._loop.time()
        while True:
            model = await self._pull(run_id, held_out.flat.manifest, version)
            if model is not None and model.vector is not None:
                vector = model.vector
                result = await self._compute(lambda: held_out.evaluate(vector, stopped))  # noqa: B023 - awaited
                if result is None:
                    return
                version = model.header.version
                self._say(
                    version=version,
                    loss=result.loss,
                    metric=result.metric,
                    metric_name=result.metric_name,
                    samples=result.samples,
                    seconds=result.seconds,
                )
            every_s = self._directives.current.every_s or 1.0
            if model is None:
                every_s = min(every_s, NOT_YET_S)
            due = max(due + every_s, self._loop.time())
            await asyncio.sleep(due - self._loop.time())

    async def _pull(self, run_id: str, manifest: Manifest, version: int | None) -> Model | None:
        """The model, without numbers if it is not newer; None if there is none yet."""
        waits = delays(longest=5.0)
        while True:
            try:
                model = await self._bulk.pull(
                    run_id, pb.ROLE_EVALUATOR, manifest=manifest, newer_than=version
                )
            except RETRIED as error:
                verdict = judge(error)
                if verdict is Verdict.SUPERSEDED:
                    raise Superseded(self._hello.name, "parameter server") from error
                if verdict is Verdict.WRONG:
                    raise OffbeatError(f"parameter server: {describe(error)}") from error
                if verdict is Verdict.NOT_YET:
                    self._outage.over()  # it answers, if only that it has no model yet
                    return None
                self._outage.failed(describe(error))
                await asyncio.sleep(next(waits))
            else:
                self._outage.over()
                return model

    async def _compute(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, work)
