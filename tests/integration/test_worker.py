"""The worker against a scheduler and a parameter server made for the purpose, over real gRPC.

They do what the contract says and no more, and fail on demand; everything runs on
the test's event loop but for the training thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat.v1 import parameter_server_pb2_grpc as ps_grpc
from offbeat.v1 import scheduler_pb2 as sc
from offbeat.v1 import scheduler_pb2_grpc as sc_grpc
from offbeat_core import channels, parts
from offbeat_core.config import WorkerSettings
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_worker import bulk, tasks
from offbeat_worker.evaluator import HeldOut
from offbeat_worker.localrun import Site
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
        if self.model is None or self.manifest is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no model yet")
        assert self.manifest is not None
        unchanged = request.only_if_newer and request.newer_than_version >= self.version
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

    async def Renew(self, request: ps.RenewRequest, context: Any) -> ps.RenewReply:
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


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with a hub; `settings` are the worker's."""

    def run(scenario: Scenario, server: FakeServer | None = None, **settings: Any) -> None:
        asyncio.run(_play(scenario, tmp_path, server or FakeServer(), settings))

    return run


async def _play(scenario: Scenario, folder: Path, server: FakeServer, given: dict[str, Any]) -> None:
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


def test_worker_says_who_it_is_and_what_it_can_train(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.phase(sc.WorkerReport.IDLE)
        hello = hub.scheduler.hellos[0]
        assert (hello.role, hello.name, hello.shard, hello.shards) == (pb.ROLE_WORKER, "w", 1, 3)
        assert hello.tasks["tiny"] == hashlib.sha256(TASK.encode()).hexdigest()
        assert "digits" in hello.tasks
        assert hello.device.compute == "cpu"
        assert hello.device.threads == 1

    play(scenario, shard=1, shards=3)


def test_first_worker_seeds_and_is_ready(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        assert hub.server.seeds == 1
        assert hub.scheduler.worker.shard_samples == 64
        assert hub.server.manifest is not None
        assert [t.name for t in hub.server.manifest.buffers] == ["1.running_mean", "1.running_var"]

    play(scenario)


def test_worker_that_may_not_seed_waits_for_the_model_and_seeds_when_it_may(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare(may_seed=False)
        await hub.until(lambda: len(hub.server.pulls) >= 2, "it looks for a model again")
        assert hub.server.seeds == 0
        assert hub.scheduler.worker.phase == sc.WorkerReport.PREPARING
        hub.prepare(may_seed=True)
        await hub.phase(sc.WorkerReport.READY)
        assert hub.server.seeds == 1

    play(scenario)


def test_model_learns_and_figures_add_up(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(learning_rate=0.1, momentum=0.5, batch=32)
        await hub.until(lambda: len(hub.server.applied) >= 100, "100 commits")
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.until(lambda: any(r.worker.final for r in hub.scheduler.reports), "the last report")
        final = next(r.worker for r in hub.scheduler.reports if r.worker.final)
        applied = hub.server.applied
        assert final.run_id == RUN
        assert applied[-1].train_loss < 0.5 * applied[0].train_loss
        assert [h.sequence for h in applied] == list(range(1, len(applied) + 1))
        assert len(applied) - 1 <= final.commits <= len(applied)
        assert sum(h.steps for h in applied) <= final.steps
        assert final.samples == 32 * final.steps
        assert final.sent_bytes > 0
        assert final.step_s > 0
        await hub.until(lambda: hub.scheduler.worker.run_id == "", "idle reports name no run")

    play(scenario)


def test_commits_lose_and_repeat_no_step_whatever_breaks(play: Callable[..., None]) -> None:
    """With weight 1 the server's model is the start minus all updates; every step is in one of them."""
    faults = [
        "unavailable",
        "",
        "cut while sending",
        "lose the reply",
        "",
        "cut while replying",
        "unavailable",
        "unavailable",
        "",
    ]

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 8 and not hub.server.faults, "8 commits")
        server = hub.server
        assert [h.sequence for h in server.applied] == list(range(1, len(server.applied) + 1))
        assert len(server.received) > len(server.applied)
        assert server.at_start is not None
        assert server.model is not None
        assert server.manifest is not None
        n = server.manifest.trainable_elements
        expected = server.at_start[:n] - np.sum(server.updates, axis=0)
        np.testing.assert_allclose(server.model[:n], expected, atol=1e-5)
        await hub.until(lambda: hub.scheduler.worker.retries >= 5, "the retries are counted")

    play(scenario, FakeServer(faults=faults))


def test_a_server_that_stands_still_is_given_up_and_tried_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_S", 0.3)
    monkeypatch.setattr(bulk, "REPLY_S", 0.3)

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 2, "commits after the stall")
        assert hub.server.applied[0].sequence == 1
        await hub.until(lambda: hub.scheduler.worker.retries == 1, "one retry")

    play(scenario, FakeServer(faults=["stall"]))


def test_server_that_forgot_the_run_is_said_once_and_the_update_kept(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.commits, "a commit in the end")
        assert hub.server.applied[0].sequence == 1
        assert caplog.text.count("cannot be reached") == 1
        assert caplog.text.count("is back") == 1

    play(scenario, FakeServer(faults=["run forgotten"] * 4))


def test_worker_that_rests_takes_the_model_of_the_day_when_it_trains_again(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(grid=pb.Grid(interval_s=3600)))
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        steps = hub.scheduler.worker.steps
        await asyncio.sleep(0.3)
        assert hub.scheduler.worker.steps <= steps + 1, "it rests"
        pulls = len(hub.server.pulls)
        hub.server.version = 50
        hub.train(trigger=pb.Trigger(steps=1))
        await hub.until(lambda: hub.server.applied, "a commit")
        assert len(hub.server.pulls) == pulls + 1
        assert hub.server.applied[0].base_version == 50

    play(scenario)


def test_broken_streams_leave_no_descriptors_behind(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        counts = []
        for n in range(2, 10):
            hub.scheduler.hang_up()
            await hub.until(lambda n=n: hub.scheduler.streams == n, "another stream")
            await hub.until(lambda: hub.station.attached, "attended")
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[-1] <= counts[0] + 2
        await hub.phase(sc.WorkerReport.TRAINING)

    play(scenario)


def test_training_goes_on_while_a_commit_travels(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        grid = pb.Trigger(grid=pb.Grid(interval_s=0.25))
        await hub.training(trigger=grid)
        await hub.until(lambda: hub.scheduler.worker.commits >= 3, "3 commits, 2 s each")
        report = hub.scheduler.worker
        total = sum(getattr(report.time, f"{share}_s") for share in ("compute", "paced", "commit", "wait"))
        assert report.commit_s >= 2.0
        assert report.time.wait_s <= 0.001 * total
        # Most of the steps were made in flight: an interval is an eighth of a flight.
        first, second = hub.server.applied[:2]
        assert second.steps > 2 * first.steps
        assert report.time.compute_s > 2 * report.commit_s

    play(scenario, FakeServer(delay_s=2.0))


def test_commit_that_must_not_overlap_waits(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=3), overlap=False)
        await hub.until(lambda: hub.scheduler.worker.commits >= 4, "4 commits")
        assert all(h.steps == 3 for h in hub.server.applied)
        report = hub.scheduler.worker
        total = sum(getattr(report.time, f"{share}_s") for share in ("compute", "paced", "commit", "wait"))
        assert report.time.wait_s > 0.5 * total

    play(scenario, FakeServer(delay_s=0.2))


def test_metrics_are_those_of_the_moment(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        def scrape() -> dict[str, float]:
            url = f"http://127.0.0.1:{hub.station.metrics_port}/metrics"
            with urllib.request.urlopen(url) as reply:  # of this test's own
                lines = reply.read().decode().splitlines()
            return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.commits > 3, "commits")
        figures = await asyncio.to_thread(scrape)
        assert figures['offbeat_worker_commits_total{worker="w"}'] > 3
        assert figures['offbeat_worker_training{worker="w"}'] == 1
        shares = [f'offbeat_worker_time_seconds_total{{share="{s}",worker="w"}}' for s in ("compute", "wait")]
        assert figures[shares[0]] > figures[shares[1]] == 0

    play(scenario, metrics_listen="127.0.0.1:0")


def test_paced_worker_is_paced_and_the_pace_changes_while_running(
    play: Callable[..., None], tmp_path: Path
) -> None:
    pace = tmp_path / "pace"
    pace.write_text("0.05")

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.steps >= 10, "10 steps")
        slow = hub.scheduler.worker
        assert slow.step_s >= 0.05
        assert slow.time.paced_s > 5 * slow.time.compute_s
        assert slow.time.wait_s == 0
        pace.write_text("0")
        await hub.until(lambda: hub.scheduler.worker.step_s < 0.01, "the new pace")

    play(scenario, step_seconds=1.0, step_seconds_file=pace)


def test_end_of_the_run_interrupts_a_slow_step(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        began = time.monotonic()
        await hub.until(lambda: any(r.worker.final for r in hub.scheduler.reports), "the last report")
        assert time.monotonic() - began < 60

    play(scenario, step_seconds=600.0)


def test_directive_in_a_commits_reply_holds_unless_it_is_older(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=5), generation=1)
        newer = hub.train(trigger=pb.Trigger(steps=7), generation=2)
        await hub.until(lambda: hub.scheduler.worker.revision == newer.revision, "the pushed directive")
        older = pb.WorkerDirective()
        older.CopyFrom(newer)
        older.revision, older.trigger.steps = newer.revision - 1, 3
        hub.server.next = older
        n = len(hub.server.applied)
        await hub.until(lambda: len(hub.server.applied) >= n + 4, "commits under it")
        assert all(h.steps >= 7 for h in hub.server.applied[n + 2 :])
        newest = pb.WorkerDirective()
        newest.CopyFrom(newer)
        newest.revision, newest.trigger.steps, newest.generation = newer.revision + 1, 2, 9
        hub.server.next = newest
        await hub.until(lambda: hub.server.applied[-1].generation == 9, "the reply's directive")

    play(scenario)


def test_refused_update_is_dropped_and_training_goes_on_from_the_fresh_model(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 3, "commits after the refusal")
        assert [h.sequence for h in hub.server.received][:2] == [1, 2]
        assert hub.server.applied[0].sequence == 2
        assert hub.scheduler.worker.phase == sc.WorkerReport.TRAINING

    play(scenario, FakeServer(faults=["refuse"]))


def test_worker_goes_on_alone_without_scheduler_and_attends_the_next(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.scheduler.incarnation = "s2"
        hub.scheduler.revision = 0
        commits = len(hub.server.applied)
        hub.scheduler.hang_up()
        await hub.until(lambda: len(hub.server.applied) > commits + 2, "commits without a scheduler")
        await hub.until(lambda: hub.scheduler.streams == 2, "a second stream")
        await hub.phase(sc.WorkerReport.TRAINING)
        hub.train(trigger=pb.Trigger(steps=2), generation=5)  # revision 1: counted anew
        await hub.until(lambda: hub.server.applied[-1].generation == 5, "the new scheduler's directive")
        assert len({hello.incarnation for hello in hub.scheduler.hellos}) == 1

    play(scenario)


def test_lost_lease_is_taken_again_by_a_pull(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(grid=pb.Grid(interval_s=3600)))
        pulls = len(hub.server.pulls)
        hub.server.known = False
        await hub.until(lambda: len(hub.server.pulls) > pulls, "another pull")
        await hub.until(lambda: hub.server.renewals >= 3, "renewals go on")
        steps = hub.scheduler.worker.steps
        await hub.until(lambda: hub.scheduler.worker.steps > steps, "training goes on")

    play(scenario)


@pytest.mark.parametrize("by", ["scheduler", "parameter server"])
def test_older_of_two_with_one_name_ends_with_a_clear_error(play: Callable[..., None], by: str) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        if by == "scheduler":
            hub.scheduler.hang_up((grpc.StatusCode.ABORTED, "a newer incarnation attends"))
        else:
            hub.server.faults = ["superseded"]
        with pytest.raises(OffbeatError, match=f"called 'w' is known to the {by}"):
            await asyncio.wait_for(asyncio.shield(hub.running), LIVENESS_S)

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": {"digest": "0" * 64}}, "digest"),
        ({"task": {"options": {"wide": "3"}}}, "wide"),
    ],
)
def test_worker_that_cannot_take_part_says_why(
    play: Callable[..., None], fields: dict[str, Any], message: str
) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare(**fields)
        await hub.phase(sc.WorkerReport.FAILED)
        assert message in hub.scheduler.worker.error
        hub.train()
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        assert hub.server.seeds == 0

    play(scenario)


def test_worker_with_another_model_says_what_differs(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        hub.prepare(task={"options": {"width": "9"}})
        await hub.phase(sc.WorkerReport.FAILED)
        assert "0.weight" in hub.scheduler.worker.error
        assert "[9, 2]" in hub.scheduler.worker.error

    play(scenario)


@pytest.mark.parametrize("kind", ["KeyError", "SystemExit"])
def test_error_in_the_users_loss_fails_the_run_here_and_not_the_worker(
    play: Callable[..., None], kind: str
) -> None:
    broken = TASK.replace(
        "    x, y = batch\n", f"    x, y = batch\n    if len(x) == 7: raise {kind}('boom')\n"
    )

    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.train(batch=7)
        await hub.phase(sc.WorkerReport.FAILED)
        assert "boom" in hub.scheduler.worker.error
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)

    play(scenario, task=broken)


def test_a_mistake_that_ends_the_training_thread_ends_the_worker(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep its lease, and others would wait for it at a gate."""

    async def scenario(hub: Hub) -> None:
        await hub.training()

        def mistaken(self: Any) -> None:
            raise ValueError("a mistake of ours")

        monkeypatch.setattr("offbeat_worker.training.Trainer._guarded", mistaken)
        with pytest.raises(RuntimeError, match="the training thread ended"):
            await asyncio.wait_for(asyncio.shield(hub.running), LIVENESS_S)

    play(scenario)


def test_leaving_worker_says_goodbye(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.station.leave("told to end", 10.0)
        assert hub.scheduler.goodbyes == ["told to end"]

    play(scenario)


@pytest.mark.parametrize("delay_s", [0.0, 0.5], ids=["nothing in flight", "a commit in flight"])
def test_leaving_worker_commits_what_it_has(play: Callable[..., None], delay_s: float) -> None:
    async def scenario(hub: Hub) -> None:
        first = 5 if delay_s else 10**9
        await hub.training(trigger=pb.Trigger(steps=first))
        await hub.until(lambda: hub.scheduler.worker.steps > 10, "steps")
        await hub.station.leave("told to end", 10.0)
        steps = sum(h.steps for h in hub.server.applied)
        assert steps >= 10
        assert steps == hub.station.report().worker.steps
        ((request, applied),) = hub.server.checkpoints
        assert (request.run_id, request.worker) == (RUN, "w")
        assert applied == len(hub.server.applied)  # after its last commit

    play(scenario, FakeServer(delay_s=delay_s))


def test_a_worker_that_may_not_overlap_leaves_with_a_checkpoint_of_what_it_committed(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(overlap=False)
        await hub.until(lambda: hub.server.applied, "a commit")
        await hub.station.leave("told to end", 10.0)
        assert len(hub.server.checkpoints) == 1

    play(scenario)


def test_a_checkpoint_that_does_not_come_keeps_no_worker_from_leaving(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await asyncio.wait_for(hub.station.leave("told to end", 4.0), LIVENESS_S)
        assert hub.server.checkpoints
        assert hub.scheduler.goodbyes == ["told to end"]
        assert "not confirmed that the last update is in a checkpoint" in caplog.text

    play(scenario, FakeServer(disk_hangs=True))


def test_a_worker_that_does_not_train_asks_for_no_checkpoint(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        await hub.station.leave("told to end", 10.0)
        assert not hub.server.checkpoints

    play(scenario)


def test_evaluator_reports_each_new_version_once_and_never_takes_a_lease(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        task = pb.RunTask(name="tiny")
        hub.scheduler.tell_evaluator(run_id=RUN, task=task, every_s=0.05, seed=3, batch=16)
        await hub.until(lambda: hub.scheduler.evaluator.ready, "ready before there is a model")
        assert hub.scheduler.evaluator.samples == 0
        site = Site(0, 1, hub.folder, [hub.folder / "tiny.py"], torch.device("cpu"))
        other = HeldOut(site, task, 3, 16)
        hub.server.manifest = other.flat.manifest
        hub.server.model = other.flat.vector.numpy().copy()
        await hub.until(lambda: hub.scheduler.evaluator.samples == 64, "the first evaluation")
        first = hub.scheduler.evaluator
        assert first.metric_name == "error"
        assert first.metric == pytest.approx(first.loss)
        hub.server.model = hub.server.model * 0
        await asyncio.sleep(0.3)
        assert hub.scheduler.evaluator.loss == first.loss, "an unchanged version is not evaluated again"
        hub.server.version = 4
        await hub.until(lambda: hub.scheduler.evaluator.version == 4, "the new version")
        x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        assert hub.scheduler.evaluator.loss == pytest.approx(float(x.sum(1).square().mean()), rel=1e-4)
        assert {p.role for p in hub.server.pulls} == {pb.ROLE_EVALUATOR}
        assert hub.server.renewals == 0

    play(scenario, role="evaluator")


def test_evaluator_says_what_is_wrong(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        task = pb.RunTask(name="unheard-of")
        hub.scheduler.tell_evaluator(run_id=RUN, task=task, every_s=0.05, seed=3, batch=16)
        await hub.until(lambda: "unheard-of" in hub.scheduler.evaluator.error, "the error")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(hub.running), 0.1)

    play(scenario, role="evaluator")
