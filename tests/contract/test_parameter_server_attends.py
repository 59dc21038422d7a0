"""The parameter server at its scheduler: what it does on each directive, what it reports and when."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as bulk
from offbeat.v1 import scheduler_pb2 as control
from offbeat.v1 import scheduler_pb2_grpc as rpc
from offbeat_core import channels
from offbeat_core.errors import OffbeatError
from offbeat_ps.attend import Attendant


class Scheduler(rpc.SchedulerServicer):
    """Writes down what is reported, and sends what it is told to."""

    def __init__(self, incarnation: str = "s1", report_every_s: float = 60.0) -> None:
        self.welcome = control.Welcome(scheduler_incarnation=incarnation, report_every_s=report_every_s)
        self.hello: control.Hello | None = None
        self.reports: list[control.ServerReport] = []
        self.goodbyes = 0
        self.streams = 0
        self.reject: tuple[grpc.StatusCode, str] | None = None
        self.out: asyncio.Queue[control.Directive] = asyncio.Queue()

    async def Attend(self, requests: AsyncIterator[control.Report], context: Any) -> None:
        self.streams += 1
        if self.reject:
            await context.abort(*self.reject)
        self.hello = (await context.read()).hello
        await context.write(control.Directive(welcome=self.welcome))
        sender = asyncio.create_task(self._send(context))
        try:
            while (report := await context.read()) is not grpc.aio.EOF:
                if report.HasField("server"):
                    self.reports.append(report.server)
                self.goodbyes += report.HasField("goodbye")
        finally:
            sender.cancel()

    async def _send(self, context: Any) -> None:
        while True:
            await context.write(await self.out.get())

    def send(self, **fields: Any) -> None:
        self.out.put_nowait(control.Directive(**fields))

    @property
    def last(self) -> control.ServerReport:
        return self.reports[-1] if self.reports else control.ServerReport()

    def counted(self) -> dict[str, int]:
        return {count.worker: count.commits for report in self.reports for count in report.counts}


@asynccontextmanager
async def listening(scheduler: Scheduler, port: int = 0) -> AsyncIterator[int]:
    server = channels.make_server()
    rpc.add_SchedulerServicer_to_server(scheduler, server)
    bound = channels.listen(server, f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


@asynccontextmanager
async def attending(served: Any, port: int) -> AsyncIterator[Attendant]:
    attendant = Attendant(served.host, f"127.0.0.1:{port}", "ps-1")
    task = asyncio.create_task(attendant.run())
    try:
        yield attendant
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


BARRIER = common.Gate(slack=0)
AT_GATE = common.Fold(when=common.Fold.AT_GATE)


def full(value: float) -> np.ndarray:
    return np.full(6, value, "<f4")


def directive(**fields: Any) -> common.ServerDirective:
    return common.ServerDirective(**{"run_id": "run-1", "revision": 1, "lease_s": 10, **fields})


def test_it_says_who_it_is_takes_a_run_and_reports_each_change(ps: Any) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler()
        async with listening(scheduler) as port, attending(served, port):
            await ps.eventually(lambda: scheduler.reports)
            assert scheduler.hello is not None
            assert (scheduler.hello.role, scheduler.hello.name) == (common.ROLE_PARAMETER_SERVER, "ps-1")
            assert scheduler.hello.incarnation == scheduler.last.server_incarnation
            assert scheduler.last.run_id == ""
            scheduler.send(server=directive())
            await ps.eventually(lambda: scheduler.last.run_id == "run-1" and not scheduler.last.seeded)
            await served.seed()
            await ps.eventually(lambda: scheduler.last.seeded)
            (a,) = await served.joined("a")
            await a.commit(np.ones(6, "<f4"), steps=4, samples=128, train_loss=0.25)
            await ps.eventually(lambda: scheduler.counted() == {"a": 1})
            count = next(r.counts[0] for r in scheduler.reports if r.counts and r.counts[0].commits)
            assert (count.steps, count.samples, count.train_loss) == (4, 128, 0.25)
            await ps.eventually(lambda: scheduler.last.version == 1)
            assert scheduler.last.active_trainers == 1
            assert scheduler.last.busy_s > 0
            scheduler.send(server=directive(revision=2, finished=True))
            await ps.eventually(lambda: scheduler.last.finished)
            assert Path(scheduler.last.model_path).exists()
            assert Path(scheduler.last.checkpoint_path).exists()

    ps(body)


def test_many_changes_leave_in_few_reports_and_only_changed_counts_travel(ps: Any) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler()
        async with listening(scheduler) as port, attending(served, port):
            scheduler.send(server=directive())
            await ps.eventually(lambda: served.host.live)
            await served.seed()
            a, b = await served.joined("a", "b")
            await b.commit(np.ones(6, "<f4"))
            await ps.eventually(lambda: scheduler.counted().get("b") == 1)
            before, start = len(scheduler.reports), asyncio.get_running_loop().time()
            for _ in range(100):
                await a.commit(np.ones(6, "<f4"))
            await ps.eventually(lambda: scheduler.counted().get("a") == 100)
            taken = asyncio.get_running_loop().time() - start
            made = scheduler.reports[before:]
            assert len(made) <= 2 + taken / 0.1
            assert not any(count.worker == "b" for report in made for count in report.counts)

    ps(body)


def test_the_end_of_a_round_is_reported_at_once(ps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other changes are batched; here for longer than the test waits."""
    monkeypatch.setattr("offbeat_ps.attend.BATCH_S", 3600.0)

    async def body(served: Any) -> None:
        scheduler = Scheduler(report_every_s=3600.0)
        rules: dict[str, Any] = {"gate": BARRIER, "fold": AT_GATE, "once": True, "cohort": ["a", "b"]}
        async with listening(scheduler) as port, attending(served, port):
            scheduler.send(server=directive(generation=4, **rules))
            await ps.eventually(lambda: served.host.live)
            await served.seed()
            a, b = await served.joined("a", "b")
            early = asyncio.create_task(a.commit(full(2), generation=4))
            await ps.eventually(lambda: len(served.host.live.run.held) == 1)
            assert scheduler.last.closed == 0
            await b.commit(full(4), generation=4)
            await early
            await ps.eventually(lambda: (scheduler.last.generation, scheduler.last.closed) == (4, 1))
            assert scheduler.counted() == {"a": 1, "b": 1}
            said = len(scheduler.reports)
            await a.commit(full(2), generation=4)
            await asyncio.sleep(0.2)
            assert len(scheduler.reports) == said  # what comes after the end is batched again
            scheduler.send(server=directive(revision=2, generation=5, **rules))
            await ps.eventually(lambda: served.host.report().generation == 5)
            assert served.host.report().closed == 0
            await asyncio.gather(*(c.commit(full(0), generation=5) for c in (a, b)))
            await ps.eventually(lambda: (scheduler.last.generation, scheduler.last.closed) == (5, 1))

    ps(body)


def test_a_round_that_only_its_deadline_ends_is_reported_too(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.attend.BATCH_S", 3600.0)

    async def body(served: Any) -> None:
        scheduler = Scheduler(report_every_s=3600.0)
        async with listening(scheduler) as port, attending(served, port):
            gate = common.Gate(slack=0, deadline_s=0.3)
            scheduler.send(server=directive(generation=2, gate=gate, fold=AT_GATE, once=True))
            await ps.eventually(lambda: served.host.live)
            await served.seed()
            a, slow = await served.joined("a", "slow")
            assert (await a.commit(full(2), generation=2)).header.version == 1
            await ps.eventually(lambda: scheduler.last.closed == 1)
            late = await slow.commit(full(2), generation=2)
            assert late.ack.outcome == bulk.CommitAck.LATE

    ps(body)


def test_without_any_change_it_reports_as_often_as_it_was_asked_to(ps: Any) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler(report_every_s=0.05)
        async with listening(scheduler) as port, attending(served, port):
            await ps.eventually(lambda: len(scheduler.reports) >= 5)

    ps(body)


class Deaf(Scheduler):
    """Reads the Hello and no report."""

    async def Attend(self, requests: AsyncIterator[control.Report], context: Any) -> None:
        self.streams += 1
        await context.read()
        await context.write(control.Directive(welcome=self.welcome))
        await asyncio.sleep(3600)


def test_a_scheduler_that_reads_no_report_is_given_up_counted_and_dialled_anew(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.attend.WRITE_S", 0.2)

    async def body(served: Any) -> None:
        fills_the_window = control.ServerReport(error="x" * 2**21)
        monkeypatch.setattr(served.host, "report", lambda: fills_the_window)
        scheduler = Deaf(report_every_s=0.05)
        async with listening(scheduler) as port, attending(served, port) as attendant:
            await ps.eventually(lambda: scheduler.streams >= 2)
            assert attendant.stalled >= 1

    ps(body)


def test_a_report_that_can_not_be_made_ends_the_server_instead_of_its_silence(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken() -> None:
        raise ValueError("a mistake of ours")

    async def body(served: Any) -> None:
        monkeypatch.setattr(served.host, "report", mistaken)
        async with listening(Scheduler()) as port:
            with pytest.raises(ValueError, match="a mistake of ours"):
                await Attendant(served.host, f"127.0.0.1:{port}", "ps-1").run()

    ps(body)


def test_an_older_directive_does_not_undo_a_newer_one(ps: Any) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler()
        async with listening(scheduler) as port, attending(served, port):
            scheduler.send(server=directive(revision=5, generation=5))
            scheduler.send(server=directive(revision=4, generation=4))
            scheduler.send(server=directive(revision=6, generation=6))
            await ps.eventually(lambda: served.host.live and served.host.live.run.rules.generation == 6)
            scheduler.send(server=directive(revision=3, generation=3))
            scheduler.send(next=common.NextDirectives(workers={"a": common.WorkerDirective(revision=9)}))
            await ps.eventually(lambda: served.host.next_for("a"))
            assert served.host.live.run.rules.generation == 6

    ps(body)


def test_a_directive_for_the_next_interval_ages_while_it_lies_at_the_server(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        grid = common.Trigger(grid=common.Grid(interval_s=5, elapsed_s=100))
        served.host.direct_next(
            common.NextDirectives(workers={"a": common.WorkerDirective(revision=1, trigger=grid)})
        )
        await asyncio.sleep(0.3)
        first = (await a.commit(np.ones(6, "<f4"))).header.next.trigger.grid
        second = (await a.commit(np.ones(6, "<f4"))).header.next.trigger.grid
        assert first.interval_s == 5
        assert 100.3 <= first.elapsed_s < second.elapsed_s

    ps(body)


def test_a_directive_that_makes_no_sense_is_reported_and_the_run_goes_on_as_before(ps: Any) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler()
        async with listening(scheduler) as port, attending(served, port):
            scheduler.send(server=directive())
            scheduler.send(server=directive(revision=2, fold=common.Fold(when=common.Fold.AT_GATE)))
            await ps.eventually(lambda: "AT_GATE needs a gate" in scheduler.last.error)
            await served.seed()
            (a,) = await served.joined("a")
            assert (await a.commit(np.ones(6, "<f4"))).header.version == 1
            scheduler.send(server=directive(revision=3))
            await ps.eventually(lambda: scheduler.last.error == "")

    ps(body)


def test_without_a_scheduler_training_goes_on_and_the_next_one_learns_all_counts(
    ps: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "offbeat_ps")

    async def body(served: Any) -> None:
        first, second = Scheduler("s1"), Scheduler("s2")
        async with listening(first) as port:
            attend = attending(served, port)
            attendant = await attend.__aenter__()
            first.send(server=directive(revision=7))
            first.send(next=common.NextDirectives(workers={"a": common.WorkerDirective(revision=8)}))
            await ps.eventually(lambda: served.host.live and served.host.next_for("a"))
            await served.seed()
            a, b = await served.joined("a", "b")
            await a.commit(np.ones(6, "<f4"))
            await ps.eventually(lambda: first.counted().get("a") == 1)
        await ps.eventually(lambda: not attendant.attached)
        assert (await b.commit(np.ones(6, "<f4"))).header.version == 2
        await asyncio.sleep(1.0)  # several attempts: said once
        async with listening(second, port):
            await ps.eventually(lambda: second.counted() == {"a": 1, "b": 1})
            assert served.host.next_for("a") is None  # the predecessor's word is void
            second.send(server=directive(revision=1, generation=3))  # its revisions count anew
            await ps.eventually(lambda: served.host.live.run.rules.generation == 3)
            await attend.__aexit__(None, None, None)
            await ps.eventually(lambda: second.goodbyes == 1)
        assert len([r for r in caplog.records if "dialling on" in r.message]) == 1

    ps(body)


@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_server_whose_name_another_process_has_ends(ps: Any, code: grpc.StatusCode) -> None:
    async def body(served: Any) -> None:
        scheduler = Scheduler()
        scheduler.reject = (code, "the name 'ps-1' is taken")
        async with listening(scheduler) as port:
            with pytest.raises(OffbeatError, match="the name 'ps-1' is taken"):
                await Attendant(served.host, f"127.0.0.1:{port}", "ps-1").run()

    ps(body)
