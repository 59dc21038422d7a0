"""A scheduler and a parameter server made for one worker, over real gRPC, and that worker.

They do what the contract says and no more, and fail on demand; everything runs on
the test's event loop but for the training thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat.v1 import parameter_server_pb2_grpc as ps_grpc
from offbeat.v1 import scheduler_pb2 as sc
from offbeat.v1 import scheduler_pb2_grpc as sc_grpc
from offbeat_core import channels, parts
from offbeat_core.config import WorkerSettings
from offbeat_core.manifest import Manifest
from offbeat_core.samples import Field, Layout, to_proto
from offbeat_worker import tasks
from offbeat_worker.station import Station

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def build_model(width: int = 8):
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))

def load_data(shard, shards, split, folder, seed):
    generator = torch.Generator().manual_seed(shard)
    x = torch.randn(64, 2, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))

def loss_and_metric(model, batch):
    x, y = batch
    loss = (model(x) - y).square().mean()
    return loss, {"error": loss.detach()}
"""

RUN = "run-1"
LIVENESS_S = 30.0


@dataclass
class FakeServer(ps_grpc.ParameterServerServicer):
    """Applies W <- W - weight * U at once. `faults` are taken from the front, one per commit."""

    weight: float = 1.0
    delay_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    manifest: Manifest | None = None
    model: np.ndarray | None = None
    version: int = 0
    applied: list[ps.CommitHeader] = field(default_factory=list)
    received: list[ps.CommitHeader] = field(default_factory=list)
    updates: list[np.ndarray] = field(default_factory=list)
    seeds: int = 0
    pulls: list[ps.PullRequest] = field(default_factory=list)
    renewals: int = 0
    known: bool = True
    next: pb.WorkerDirective | None = None
    at_start: np.ndarray | None = None
    checkpoints: list[tuple[ps.CheckpointRequest, int]] = field(default_factory=list)  # with the commits then
    disk_hangs: bool = False
    down: bool = False  # for pulls, leases and samples
    sent_models: int = 0  # by pulls
    dealt: dict[int, list[np.ndarray]] = field(default_factory=dict)  # fields, by generation
    asked: list[ps.SamplesRequest] = field(default_factory=list)
    on_ask: Callable[[], None] = lambda: None
    sample_faults: list[str] = field(default_factory=list)  # one per call
    data_set: str = "a"  # its digest

    async def Seed(self, request_iterator: AsyncIterator[ps.SeedPart], context: Any) -> ps.SeedReply:
        self.seeds += 1
        assembler: Any = None
        async for message in request_iterator:
            if message.WhichOneof("kind") == "header":
                manifest = Manifest.from_proto(message.header.manifest)
                assembler = parts.Assembler(message.header.total_bytes)
            else:
                assembler.add(message.part)
        accepted = self.model is None
        if accepted:
            self.manifest, self.model = manifest, assembler.finish()
            self.at_start = self.model.copy()
        assert self.manifest is not None
        return ps.SeedReply(accepted=accepted, manifest_digest=self.manifest.digest)

    async def Pull(self, request: ps.PullRequest, context: Any) -> AsyncIterator[ps.ModelPart]:
        self.pulls.append(request)
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        if self.model is None or self.manifest is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no model yet")
        assert self.manifest is not None
        unchanged = request.only_if_newer and request.newer_than_version >= self.version
        self.sent_models += not unchanged
        async for part in self._send(ps.ModelHeader(manifest=self.manifest.to_proto()), unchanged):
            yield part

    async def Commit(self, request_iterator: Any, context: Any) -> AsyncIterator[ps.ModelPart]:
        header: Any = None
        assembler: Any = None
        fault = self.faults[0] if self.faults else ""
        if fault != "superseded":  # which lasts
            self.faults = self.faults[1:]
        if fault == "unavailable":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not today")
        if fault == "run forgotten":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "run 'run-1' is not known here")
        if fault == "superseded":
            await context.abort(grpc.StatusCode.ABORTED, "a newer incarnation")
        if fault == "stall":
            await asyncio.sleep(3600)
        async for message in request_iterator:
            if message.WhichOneof("kind") == "header":
                header = message.header
                self.received.append(header)
                assembler = parts.Assembler(header.total_bytes)
                if fault == "cut while sending":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            else:
                assembler.add(message.part)
        assert self.manifest is not None
        assert self.model is not None
        assert header.manifest_digest == self.manifest.digest
        ack = ps.CommitAck(sequence=header.sequence, outcome=ps.CommitAck.APPLIED, weight=self.weight)
        if any(h.sequence == header.sequence for h in self.applied):
            ack.outcome = ps.CommitAck.DUPLICATE
        elif fault == "refuse":
            ack.outcome, ack.reason = ps.CommitAck.REFUSED, "tensor '0.weight' is not to my taste"
        else:
            update = assembler.finish()
            n = self.manifest.trainable_elements
            self.updates.append(update[:n].copy())
            self.model = self.model.copy()
            self.model[:n] -= np.float32(self.weight) * update[:n]
            self.model[n:] = update[n:]
            self.version += 1
            self.applied.append(header)
        if fault == "lose the reply":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        await asyncio.sleep(self.delay_s)
        reply = ps.ModelHeader(ack=ack, commits=len(self.applied))
        if self.next is not None:
            reply.next.CopyFrom(self.next)
        async for part in self._send(reply, False):
            yield part
            if fault == "cut while replying":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def Samples(self, request: ps.SamplesRequest, context: Any) -> AsyncIterator[ps.SamplesPart]:
        self.asked.append(request)
        self.on_ask()
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        fault = self.sample_faults.pop(0) if self.sample_faults else ""
        if fault == "none":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "samples: this server holds none")
        if request.generation not in self.dealt:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "generation is not in force")
        arrays = self.dealt[request.generation]
        layout = Layout(
            tuple(Field(str(n), str(a.dtype), a.shape[1:]) for n, a in enumerate(arrays)), len(arrays[0])
        )
        data = np.zeros(layout.total_bytes, np.uint8)
        for view, array in zip(layout.arrays(data), arrays, strict=True):
            view[:] = array
        header = ps.SamplesHeader(
            generation=request.generation,
            count=layout.count + (fault == "one more"),
            fields=to_proto(layout.fields),
            digest=self.data_set,
            total_bytes=layout.total_bytes + 8 * (fault == "longer"),
        )
        if fault == "complex":
            header.fields[0].dtype = "complex64"
        yield ps.SamplesPart(header=header)
        for number, message in enumerate(parts.messages(data, ps.SamplesPart, max(8, len(data) // 8))):
            if fault == "cut" and number == 4:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            if fault == "stall" and number == 4:
                await asyncio.sleep(3600)
            yield message

    async def Renew(self, request: ps.RenewRequest, context: Any) -> ps.RenewReply:
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
        self.renewals += 1
        known, self.known = self.known, True
        return ps.RenewReply(known=known, lease_s=0.6)

    async def Checkpoint(self, request: ps.CheckpointRequest, context: Any) -> ps.CheckpointReply:
        self.checkpoints.append((request, len(self.applied)))
        if self.disk_hangs:
            await asyncio.sleep(3600)
        return ps.CheckpointReply(epoch=1, version=self.version)

    async def _send(self, header: ps.ModelHeader, unchanged: bool) -> AsyncIterator[ps.ModelPart]:
        assert self.model is not None
        assert self.manifest is not None
        model = self.model
        header.run_id, header.version = RUN, self.version
        header.manifest_digest = self.manifest.digest
        header.total_bytes = 0 if unchanged else model.nbytes
        yield ps.ModelPart(header=header)
        if not unchanged:
            for part in parts.cut(model, max(100, model.nbytes // 8)):
                yield ps.ModelPart(part=part)


@dataclass
class FakeScheduler(sc_grpc.SchedulerServicer):
    """Keeps what it hears and says what it is told."""

    incarnation: str = "s1"
    hellos: list[sc.Hello] = field(default_factory=list)
    reports: list[sc.Report] = field(default_factory=list)
    goodbyes: list[str] = field(default_factory=list)
    streams: int = 0
    ending: tuple[grpc.StatusCode, str] | None = None
    revision: int = 0

    def __post_init__(self) -> None:
        self._outbox: asyncio.Queue[sc.Directive | None] = asyncio.Queue()

    async def Attend(self, request_iterator: Any, context: Any) -> AsyncIterator[sc.Directive]:
        self.streams += 1
        reading = asyncio.ensure_future(self._read(request_iterator))
        try:
            yield sc.Directive(
                welcome=sc.Welcome(scheduler_incarnation=self.incarnation, report_every_s=0.1, lease_s=0.6)
            )
            while not reading.done():
                getting = asyncio.ensure_future(self._outbox.get())
                await asyncio.wait({getting, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    return
                directive = getting.result()
                if directive is None:
                    if self.ending:
                        await context.abort(*self.ending)
                    return
                yield directive
        finally:
            reading.cancel()

    async def _read(self, request_iterator: Any) -> None:
        async for report in request_iterator:
            match report.WhichOneof("kind"):
                case "hello":
                    self.hellos.append(report.hello)
                case "goodbye":
                    self.goodbyes.append(report.goodbye.reason)
                case _:
                    self.reports.append(report)

    def tell(self, **fields: Any) -> pb.WorkerDirective:
        self.revision += 1
        directive = pb.WorkerDirective(revision=self.revision, **fields)
        self._outbox.put_nowait(sc.Directive(worker=directive))
        return directive

    def tell_evaluator(self, **fields: Any) -> None:
        self.revision += 1
        directive = pb.EvaluatorDirective(revision=self.revision, **fields)
        self._outbox.put_nowait(sc.Directive(evaluator=directive))

    def hang_up(self, ending: tuple[grpc.StatusCode, str] | None = None) -> None:
        self.ending = ending
        self._outbox.put_nowait(None)

    @property
    def worker(self) -> sc.WorkerReport:
        return self.reports[-1].worker if self.reports else sc.WorkerReport()

    @property
    def evaluator(self) -> sc.EvaluatorReport:
        return self.reports[-1].evaluator if self.reports else sc.EvaluatorReport()


@dataclass
class Hub:
    """A fake scheduler and parameter server, and a worker attached to them."""

    scheduler: FakeScheduler
    server: FakeServer
    folder: Path
    station: Station
    running: asyncio.Task[None]

    def prepare(self, *, may_seed: bool = True, **fields: Any) -> None:
        task = pb.RunTask(name="tiny", **fields.pop("task", {}))
        self.scheduler.tell(
            action=pb.WorkerDirective.PREPARE,
            run_id=RUN,
            task=task,
            batch=8,
            seed=3,
            may_seed=may_seed,
            **fields,
        )

    def train(self, *, trigger: pb.Trigger | None = None, **fields: Any) -> pb.WorkerDirective:
        given: dict[str, Any] = {"batch": 8, "learning_rate": 0.01, "overlap": True, "seed": 3}
        return self.scheduler.tell(
            action=pb.WorkerDirective.TRAIN,
            run_id=RUN,
            task=pb.RunTask(name="tiny"),
            trigger=trigger or pb.Trigger(steps=5),
            **(given | fields),
        )

    def rest(self, **fields: Any) -> pb.WorkerDirective:
        given: dict[str, Any] = {"batch": 8, "learning_rate": 0.01, "overlap": True, "seed": 3}
        return self.scheduler.tell(
            action=pb.WorkerDirective.REST, run_id=RUN, task=pb.RunTask(name="tiny"), **(given | fields)
        )

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition; fail, saying what was waited for."""
        end = time.monotonic() + LIVENESS_S
        while not condition():
            if self.running.done():
                self.running.result()
            assert time.monotonic() < end, f"{what}; last report: {self.scheduler.reports[-1:]}"
            await asyncio.sleep(0.01)

    async def phase(self, phase: int) -> None:
        await self.until(
            lambda: self.scheduler.worker.phase == phase, f"phase {sc.WorkerReport.Phase.Name(phase)}"
        )

    async def training(self, **fields: Any) -> None:
        """Bring the worker to training."""
        self.prepare()
        await self.phase(sc.WorkerReport.READY)
        self.train(**fields)
        await self.phase(sc.WorkerReport.TRAINING)


Scenario = Callable[[Hub], Awaitable[None]]


async def play_with(scenario: Scenario, folder: Path, server: FakeServer, given: dict[str, Any]) -> None:
    (folder / "tiny.py").write_text(given.pop("task", TASK))
    scheduler = FakeScheduler()
    grpc_servers = [channels.make_server(), channels.make_server()]
    sc_grpc.add_SchedulerServicer_to_server(scheduler, grpc_servers[0])
    ps_grpc.add_ParameterServerServicer_to_server(server, grpc_servers[1])
    ports = [channels.listen(s, "127.0.0.1:0") for s in grpc_servers]
    for s in grpc_servers:
        await s.start()
    settings = WorkerSettings(
        name="w",
        scheduler=f"127.0.0.1:{ports[0]}",
        parameter_server=f"127.0.0.1:{ports[1]}",
        tasks=[folder / "tiny.py"],
        data=folder,
        threads=1,
        **given,
    )
    station = Station.prepare(settings, tasks.available(settings.tasks))()
    running = asyncio.create_task(station.run())
    try:
        await scenario(Hub(scheduler, server, folder, station, running))
    finally:
        await station.leave("the scenario is over", 10.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for s in grpc_servers:
            await s.stop(None)
