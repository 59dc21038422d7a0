"""The training thread and its messages, without network."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat_worker import training
from offbeat_worker.device import Device
from offbeat_worker.localrun import Cut, Fresh, Site
from offbeat_worker.pacing import Pace
from offbeat_worker.training import Trainer

LIVENESS_S = 30.0


class Bench:
    """A training thread on the digits, and what it said."""

    def __init__(self, folder: Path, step_seconds: float) -> None:
        cpu = torch.device("cpu")
        self.events: queue.SimpleQueue[training.Event] = queue.SimpleQueue()
        self.pace = Pace(step_seconds)
        site = Site(0, 1, folder, [], cpu)
        self.trainer = Trainer(site, Device(cpu, "cpu", "", False, 1), self.pace, self.events.put)
        self.trainer.start()

    def expect(self, kind: type, *, within_s: float = LIVENESS_S) -> Any:
        """The next event, which must be of this kind."""
        event = self.events.get(timeout=within_s)
        assert isinstance(event, kind), event
        return event

    def ready(self) -> training.Built:
        self.trainer.post(training.Prepare("r", pb.RunTask(name="digits"), 1, 32))
        built = self.expect(training.Built)
        self.trainer.post(training.Load("r", 0, built.vector.copy()))
        self.expect(training.Loaded)
        assert isinstance(built, training.Built)
        return built

    def train(self, **fields: Any) -> None:
        given: dict[str, Any] = {
            "run_id": "r",
            "batch": 32,
            "learning_rate": 0.05,
            "trigger": pb.Trigger(steps=3),
            "overlap": True,
        }
        self.trainer.post(training.Train(pb.WorkerDirective(**(given | fields)), time.monotonic()))

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LIVENESS_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)

    def answer(self, cut: Cut, built: training.Built) -> None:
        self.trainer.post(
            Fresh("r", cut.sequence, ps.CommitAck.APPLIED, "", cut.sequence, built.vector.copy())
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[float], Bench]]:
    made: list[Bench] = []

    def make(step_seconds: float = 0.0) -> Bench:
        made.append(Bench(tmp_path, step_seconds))
        return made[-1]

    yield make
    for one in made:
        one.trainer.post(training.Quit())
        assert one.trainer.join(LIVENESS_S)


def test_training_goes_on_while_nobody_answers(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.ready()
    one.train()
    one.expect(training.Started)
    assert one.expect(Cut).steps == 3
    one.until(lambda: one.trainer.report().steps > 200)
    assert one.events.empty(), "one commit at most is in flight"
    assert one.trainer.report().time.wait_s == 0


def test_commit_that_was_due_in_flight_starts_where_the_flight_ends(bench: Callable[..., Bench]) -> None:
    """With updates of ten minutes the second cut can only come at the boundary where the reply is merged."""
    one = bench()
    built = one.ready()
    one.train()
    one.expect(training.Started)
    cut = one.expect(Cut)
    one.until(lambda: one.trainer.report().steps > 20)
    one.pace.step_seconds = 600.0
    one.until(lambda: one.trainer.report().time.paced_s > 0)
    steps = one.trainer.report().steps
    one.answer(cut, built)
    one.trainer.post(training.Pause())
    one.train()
    second = one.expect(training.Started) and one.expect(Cut)
    assert second.steps == steps - cut.steps


def test_messages_of_a_long_update_are_followed_in_the_order_in_which_they_came(
    bench: Callable[..., Bench],
) -> None:
    one = bench(600.0)
    one.ready()
    one.train()
    one.expect(training.Started)
    one.train(generation=2)
    one.trainer.post(training.Pause())
    one.until(lambda: one.trainer.report().time.wait_s > 0)
    time.sleep(0.1)
    assert one.trainer.report().steps == 1, "an older directive does not undo the pause"


def test_without_overlap_the_thread_waits_and_the_end_of_the_run_frees_it(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    built = one.ready()
    one.train(overlap=False)
    one.expect(training.Started)
    cut = one.expect(Cut)
    time.sleep(0.2)
    assert one.trainer.report().steps == 3
    one.answer(cut, built)
    one.expect(Cut)
    one.trainer.post(training.Leave())
    report = one.expect(training.Left).report
    assert report.steps == 6
    assert report.commits == 1
    shares = report.time
    assert shares.wait_s > shares.compute_s + shares.commit_s
    later = one.trainer.report()
    assert later == report, "nobody's time goes on after the run"


def test_an_error_ends_the_run_and_not_the_thread(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.trainer.post(training.Prepare("broken", pb.RunTask(name="no-such-task"), 1, 32))
    failed = one.expect(training.Failed)
    assert (failed.run_id, "no-such-task" in failed.error) == ("broken", True)
    one.ready()
    one.train(batch=0)
    assert "batch" in one.expect(training.Failed).error
    one.ready()


def test_rest_waits_for_the_end_of_a_slow_update_and_keeps_what_was_done(bench: Callable[..., Bench]) -> None:
    one = bench(0.3)
    one.ready()
    one.train(trigger=pb.Trigger(steps=3))
    one.expect(training.Started)
    one.until(lambda: one.trainer.report().time.paced_s > 0)
    one.trainer.post(training.Rest())
    one.until(lambda: one.trainer.report().time.wait_s > 0)
    report = one.trainer.report()
    assert report.steps == 1
    assert report.time.compute_s + report.time.paced_s >= 0.3, "the update took its time"
    assert one.events.empty()
    one.train(trigger=pb.Trigger(steps=3))
    one.expect(training.Started)
    assert one.expect(Cut).steps == 3, "the update before the rest is in it"


def test_rest_before_any_training_counts_as_waiting(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.trainer.post(training.Rest())  # nothing is loaded: nobody's time
    one.ready()
    assert one.trainer.report().time.wait_s == 0
    one.trainer.post(training.Rest())
    one.until(lambda: one.trainer.report().time.wait_s > 0.05)
    assert one.trainer.report().time.compute_s == 0


def test_after_its_one_commit_of_a_generation_the_thread_waits_for_another(
    bench: Callable[..., Bench],
) -> None:
    one = bench()
    built = one.ready()
    once = {"overlap": False, "once": True}
    one.train(generation=1, **once)
    one.expect(training.Started)
    cut = one.expect(Cut)
    assert (cut.once, cut.generation, cut.steps) == (True, 1, 3)
    one.answer(cut, built)
    one.until(lambda: one.trainer.report().commits == 1)
    one.train(generation=1, **once)
    time.sleep(0.1)
    assert one.trainer.report().steps == 3
    one.train(generation=2, **once)
    second = one.expect(Cut)
    assert (second.generation, second.steps) == (2, 3)
    one.train(generation=3, **once)  # while it is on its way: no rest, and no training before it lands
    time.sleep(0.1)
    assert one.trainer.report().steps == 6
    one.answer(second, built)
    assert one.expect(Cut).generation == 3


@pytest.mark.parametrize("message", [training.Leave(), training.Settle()])
def test_a_thread_at_rest_still_answers(bench: Callable[..., Bench], message: training.Message) -> None:
    one = bench()
    built = one.ready()
    one.train(generation=1, overlap=False, once=True)
    one.expect(training.Started)
    one.answer(one.expect(Cut), built)
    one.until(lambda: one.trainer.report().commits == 1)
    one.trainer.post(message)
    one.expect(training.Left if isinstance(message, training.Leave) else training.Settled)
    one.trainer.post(training.Prepare("r", pb.RunTask(name="digits"), 1, 32))
    one.expect(training.Built)


def test_emulated_slowness_goes_with_the_batch(bench: Callable[..., Bench]) -> None:
    """The bench prepares with a batch of 32: an update of 1 takes a 32nd of the time, or longer."""
    one = bench(8.0)
    one.ready()
    one.train(batch=1, trigger=pb.Trigger(steps=2))
    one.expect(training.Started)
    one.expect(Cut)
    time_of = one.trainer.report().time
    assert time_of.compute_s + time_of.paced_s >= 2 * 8.0 / 32
    assert time_of.paced_s < 8.0


def test_a_pause_that_is_over_before_it_began_ends(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    site = Site(0, 1, tmp_path, [], cpu)
    trainer = Trainer(site, Device(cpu, "cpu", "", False, 1), Pace(), lambda _: None)

    def pause() -> None:
        # Where an update takes as long as is emulated, what is left may be any part of a microsecond.
        for nanoseconds in range(100, 3000, 5):
            trainer.post(training.Pause())
            trainer._handle(trainer._inbox.get())
            trainer._sleep(nanoseconds * 1e-9)

    pauses = threading.Thread(target=pause, daemon=True)
    pauses.start()
    pauses.join(LIVENESS_S)
    assert not pauses.is_alive()
