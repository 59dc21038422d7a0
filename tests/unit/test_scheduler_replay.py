"""A recorded log, fed to fresh decision objects, gives identical decisions."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler import models
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import (
    AgentJoined,
    AgentLeft,
    Evaluated,
    HubState,
    RunSubmitted,
    ServerReported,
    StopRequested,
    Tick,
    WorkerReported,
    read_event,
    record,
)
from offbeat_scheduler.replay import replay
from offbeat_scheduler.sync import Fold, Gate, Group, Passes, Plan, Steps
from support.scheduler_world import FakeModel, W, World, grid_plan, run_settings


class Restless(FakeModel):
    """Decides something else each time, from what it sees: a slip in the replay would show."""

    def decide(self, fleet):
        self.decisions.append(fleet)
        total = sum(device.steps * device.step_s + device.commits for device in fleet.devices.values())
        loss = self.losses[-1].value if self.losses else 1.0
        interval = 1.0 + (total + 10 * loss + fleet.server_s + fleet.now_s) % 3.0
        if len(self.decisions) % 5 == 0:
            cohort = tuple(fleet.devices)
            triggers = {name: Steps(1 + int(interval)) for name in cohort}
            return Plan(triggers, Gate(slack=0), Fold("at_gate"), cohort, wake_at_s=fleet.now_s + interval)
        if len(self.decisions) % 5 == 3:
            return a_round(fleet, 1 + int(interval))
        return grid_plan(fleet, interval, origin_s=fleet.now_s / 3, wake_at_s=fleet.now_s + interval)


def a_round(fleet, number):
    """One device trains, in a group of its own and with a batch of its own; the others rest."""
    chosen, *others = sorted(fleet.devices)
    return Plan(
        {chosen: Passes(number)},
        fold=Fold("at_gate", "per_step", staleness_power=0.5),
        groups=(Group((chosen,), Gate(slack=0, deadline_s=7.0)),),
        resting=frozenset(others),
        round=number + fleet.closed,
        batches={chosen: 8 + number},
        wake_at_s=fleet.now_s + 3.0,
    )


def make_model(spec, run):
    return Restless(Settings(), run)


def steps_of(world):
    return list(replay(world.log_lines(), make_model))


def an_eventful_run(world):
    ps, evaluator, (w1, w2) = world.training(2, target={"accuracy": 0.99}, limits={"seconds": 300})
    for version in range(2, 8):
        world.wait(1.37)
        w1.say(steps=10 * version, samples=320 * version, step_s=0.05, train_loss=1 / version)
        w2.say(steps=3 * version, samples=96 * version, step_s=0.15)
        ps.say(
            version=version,
            busy_s=0.01 * version,
            commits=2 * version,
            counts=[pb.CommitCount(worker="w1", commits=version)],
        )
        evaluator.evaluate(version, 1 / version, 1 - 1 / version)
    w1.cut()
    world.wait(3.3)
    w1.join()
    w2.die()
    world.wait(14)
    again = world.agent("worker", "w2", "w2-2").join()
    again.say(phase=W.READY)
    evaluator.evaluate(20, float("nan"), 0.1)
    evaluator.cut()
    world.wait(25)
    world.stop()
    ps.say(finished=True, model_path="/data/m.safetensors")
    world.wait(10)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, make_model=make_model, start=86_400.123_456)


def test_an_eventful_run_replays_to_identical_decisions(world):
    an_eventful_run(world)
    steps = steps_of(world)
    assert len(steps) > 80
    assert [step.event for step in steps if not step.is_same] == []
    assert {"SendTo", "PlanMade", "PhaseChanged", "Close", "Log"} <= {
        decision["decision"] for step in steps for decision in step.recorded
    }
    assert steps[0].t == 0.0


def test_the_second_run_of_a_scheduler_replays_without_the_first(world):
    for name in ("eval-2", "eval-3"):
        world.agent("evaluator", name).join()
    an_eventful_run(world)
    assert world.hub.members.get("ps")
    world.submit(workers=1)
    world.wait(3)
    world.agent("worker", "w7").join()
    world.wait(20)
    world.stop()
    steps = steps_of(world)
    assert [step.event for step in steps if not step.is_same] == []
    assert steps[0].recorded[0]["text"].endswith("was submitted")


def test_the_search_for_a_commit_rate_replays_to_identical_decisions(tmp_path):
    world = World(tmp_path, make_model=models.make_model, start=54_321.987_6)
    ps, evaluator, (w1, w2) = world.training(2, sync="adsp", check_period_s=5, target={"accuracy": 0.99})
    for version in range(2, 80):
        world.wait(0.731)
        for worker, step_s in ((w1, 0.05), (w2, 0.15)):
            steps = int(version * 0.731 / step_s)
            worker.say(steps=steps, samples=32 * steps, step_s=step_s, commit_s=0.1, hold_s=0.01)
        counts = [pb.CommitCount(worker=name, commits=version // 2) for name in ("w1", "w2")]
        ps.say(version=version, commits=version, busy_s=0.01 * version, counts=counts)
        evaluator.evaluate(version, 2.3 / (1 + 0.1 * version), 0.5)
    world.stop()
    ps.say(finished=True)
    world.wait(10)
    steps = list(replay(world.log_lines(), models.make_model))
    assert [step.event for step in steps if not step.is_same] == []
    assert world.status().probes


def test_a_log_in_which_an_event_was_changed_does_not_replay(world):
    an_eventful_run(world)
    lines = world.log_lines()
    number = next(i for i, line in enumerate(lines) if '"loss": 0.25' in line)
    lines[number] = lines[number].replace('"loss": 0.25', '"loss": 0.26')
    assert any(not step.is_same for step in replay(lines, make_model))


def test_a_log_whose_last_line_was_cut_off_replays_up_to_there(world):
    an_eventful_run(world)
    lines = world.log_lines()
    steps = list(replay([*lines[:100], lines[100][:20]], make_model))
    assert steps
    assert all(step.is_same for step in steps)


def test_something_else_than_a_log_is_refused():
    with pytest.raises(OffbeatError, match="line 1"):
        list(replay(["once upon a time\n"], make_model))
    with pytest.raises(OffbeatError, match="HubState"):
        list(replay(['{"t": 0, "event": "Tick"}\n'], make_model))


operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["wait", "cut", "join", "die", "restart", "leave", "ready", "fail", "say", "evaluate"]
        ),
        st.integers(0, 2),
        st.floats(0.001, 12.0),
    ),
    max_size=25,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_whatever_happens_replays_to_identical_decisions(tmp_path_factory, operations):
    world = World(tmp_path_factory.mktemp("log"), make_model=make_model, start=12_345.678_9)
    ps, evaluator, workers = world.training(3, target={"loss": 0.001})
    for number, (what, index, amount) in enumerate(operations):
        worker = workers[index]
        if what == "wait":
            world.wait(amount)
        elif what == "restart":
            worker.die()
            workers[index] = world.agent("worker", worker.name, f"{worker.name}-r{number}").join()
        elif what in ("cut", "join", "die", "leave"):
            getattr(worker, what)()
        elif what == "ready":
            worker.say(phase=W.READY)
        elif what == "fail":
            worker.say(phase=W.FAILED, error="it broke")
        elif what == "say":
            worker.say(steps=worker.report.steps + int(amount * 10), step_s=amount / 100, train_loss=amount)
            ps.say(
                commits=ps.report.commits + 1,
                busy_s=ps.report.busy_s + amount / 1000,
                generation=world.last("ps", "server").generation,
                closed=int(amount),
            )
        elif what == "evaluate":
            evaluator.evaluate(number + 2, amount / 10, 1 - amount / 12)
    world.wait(15)
    world.stop()
    world.wait(70)
    assert world.status().phase == pb.Status.IDLE
    steps = steps_of(world)
    assert [step.event for step in steps if not step.is_same] == []


def test_every_kind_of_event_can_be_written_and_read_back():
    events = [
        AgentJoined(pb.Hello(name="w1", tasks={"digits": "ab"}, device=pb.DeviceInfo(threads=4))),
        AgentLeft("w1", "one", "gone", True),
        WorkerReported(
            "w1",
            "one",
            pb.WorkerReport(
                steps=2**63,
                train_loss=float("inf"),
                phase=W.FAILED,
                time=pb.Shares(compute_s=0.1),
                final=True,
            ),
        ),
        ServerReported(
            "ps", "one", pb.ServerReport(counts=[pb.CommitCount(worker="w1", commits=3)], busy_s=1 / 3)
        ),
        Evaluated("e", "one", pb.EvaluatorReport(loss=float("nan"), metric=float("-inf"))),
        RunSubmitted("r-1", run_settings(target={"accuracy": 0.9}, sync={"fake": {"x": [1, 2]}})),
        StopRequested("why not"),
        Tick(),
        Tick(lost_s=4.25),
    ]
    for event in events:
        line = json.dumps(record(event), allow_nan=False)
        again = read_event(json.loads(line))
        assert record(again) == record(event), event
        assert type(again) is type(event)


def test_numbers_in_the_log_are_numbers_and_kinds_are_words():
    line = record(WorkerReported("w1", "one", pb.WorkerReport(steps=7, phase=W.TRAINING)))
    assert line["report"] == {"steps": 7, "phase": "TRAINING"}


def test_a_folder_that_can_not_be_written_to_stops_the_log_and_not_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    log = EventLog(tmp_path / "file" / "runs")
    log.begin("r-1", HubState("s"), "", 0.0)
    assert not log.is_open
    assert "event log" in log.problem
    log.add(Tick(), [], 1.0)
    log.end()


def test_only_the_newest_runs_are_kept(tmp_path):
    log = EventLog(tmp_path, keep_runs=3)
    for number in range(5):
        log.begin(f"run-{number}", HubState("s"), "name: x\n", 0.0)
    log.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-2", "run-3", "run-4"]
    assert (tmp_path / "run-4" / "run.yaml").read_text() == "name: x\n"


@pytest.mark.parametrize("run_id", ["", "../secret", "/etc", "a/b", ".."])
def test_only_runs_have_a_log(tmp_path, run_id):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "events.jsonl").write_text("x")
    (tmp_path / "events.jsonl").write_text("x")
    log = EventLog(tmp_path / "runs")
    assert log.path(run_id) is None


# ---- a log that has grown large ---------------------------------------------------------


def a_long_run(world, minutes):
    ps, evaluator, (w1, w2) = world.training(2, target={"accuracy": 0.99})
    for minute in range(minutes):
        world.wait(60)
        w1.say(steps=100 * minute, step_s=0.1)
        ps.say(commits=minute, counts=[pb.CommitCount(worker=name, commits=minute) for name in ("w1", "w2")])
        ps.say(counts=[])
        evaluator.evaluate(minute + 2, 1 / (minute + 1))
    world.stop()
    for worker in (w1, w2):
        worker.say(final=True)
    ps.say(finished=True, model_path="/data/m.safetensors")


def lines_of(world):
    return list(map(json.loads, world.log_lines()))


def abridged_world(tmp_path, full_bytes):
    world = World(tmp_path)
    world.event_log = EventLog(tmp_path, full_bytes=full_bytes)
    return world


def test_a_log_that_has_grown_large_goes_on_in_short_and_replays_up_to_there(tmp_path):
    whole = World(tmp_path / "whole")
    a_long_run(whole, 20)
    world = abridged_world(tmp_path / "short", 20_000)
    a_long_run(world, 20)
    lines = lines_of(world)
    mark = next(i for i, line in enumerate(lines) if line.get("event") == "Abridged")
    assert len("".join(world.log_lines()[:mark])) < 30_000
    assert len(world.log_lines()) < len(whole.log_lines()) / 10
    steps = list(replay(world.log_lines(), whole._make_model))
    assert 20 < len(steps) < mark
    assert [step.event for step in steps if not step.is_same] == []
    kinds = {line.get("event") or line["decision"] for line in lines[mark:]}
    assert {"WorkerReported", "ServerReported", "Evaluated", "StopRequested", "PhaseChanged"} <= kinds
    assert "SendTo" not in kinds


def test_what_a_person_reads_of_a_long_run_is_all_there(tmp_path):
    world = abridged_world(tmp_path, 5_000)
    a_long_run(world, 30)
    lines = lines_of(world)
    evaluations = {
        line["report"]["version"]
        for line in lines
        if line.get("event") == "Evaluated" and "version" in line["report"]
    }
    assert evaluations == set(range(2, 32))
    counts = {}
    for line in lines:
        if line.get("event") == "ServerReported":
            counts.update({c["worker"]: c.get("commits", 0) for c in line["report"].get("counts", ())})
    assert counts == {"w1": 29, "w2": 29}, "also of reports that were left out"
    last = [line for line in lines if line.get("event") == "WorkerReported"][-1]
    assert last["report"]["final"]
    phases = [line["phase"] for line in lines if line.get("decision") == "PhaseChanged"]
    assert phases[-1] == "idle"


def test_the_next_run_has_a_whole_log_again(tmp_path):
    world = abridged_world(tmp_path, 20_000)
    a_long_run(world, 20)
    world.submit(workers=2)
    world.wait(3)
    assert "Abridged" not in {line.get("event") for line in lines_of(world)}
