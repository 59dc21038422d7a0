"""The scheduler's decisions, by lists of events in virtual time."""

import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import ANOTHER_MODEL
from offbeat_scheduler.directives import Wording
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import RunSubmitted
from offbeat_scheduler.sync import Fold, Gate, Plan, Probe, Steps
from support.scheduler_world import DIGEST, OTHER_DIGEST, World, grid_plan, run_settings

W = pb.WorkerReport
D = common.WorkerDirective


@pytest.fixture
def world():
    return World()


# ---- before a run ---------------------------------------------------------------------


def test_an_agent_is_welcomed_first_and_idle_without_a_run(world):
    world.agent("worker", "w1").join()
    welcome, idle = world.to("w1")
    assert welcome.welcome.scheduler_incarnation == "scheduler-1"
    assert welcome.welcome.report_every_s == 1.0
    assert welcome.welcome.lease_s == 10.0
    assert idle.worker.action == D.IDLE


def test_without_a_run_server_and_evaluator_are_told_that_there_is_none(world):
    world.agent("ps", "ps").join()
    world.agent("evaluator", "eval").join()
    assert world.last("ps", "server").run_id == ""
    assert world.last("eval", "evaluator").run_id == ""


# ---- waiting ----------------------------------------------------------------------------


def test_a_submitted_run_prepares_every_worker_and_only_the_first_by_name_may_seed(world):
    world.agent("ps", "ps").join()
    for name in ("w3", "w1", "w2"):
        world.agent("worker", name).join()
    world.submit(workers=3)
    prepared = {name: world.last(name) for name in ("w1", "w2", "w3")}
    assert {d.action for d in prepared.values()} == {D.PREPARE}
    assert [name for name, d in prepared.items() if d.may_seed] == ["w1"]
    assert prepared["w2"].task.digest == DIGEST
    assert world.last("ps", "server").run_id == world.run_id


def test_the_server_hears_of_a_run_before_its_workers(world):
    world.agent("worker", "w1").join()
    world.agent("ps", "ps").join()
    world.submit()
    order = [(name, d.WhichOneof("kind")) for _, name, d in world.sent]
    assert order.index(("ps", "server")) < order.index(("w1", "worker"), 2)


def test_waiting_says_how_many_are_ready_and_what_is_missing(world):
    world.submit(workers=3, target={"accuracy": 0.9})
    assert world.status().phase == pb.Status.WAITING
    assert "0 of 3 workers ready" in world.status().message
    assert "parameter server" in world.status().message
    assert "evaluator" in world.status().message
    ps = world.agent("ps", "ps").join()
    workers = [world.agent("worker", f"w{i}").join() for i in (1, 2)]
    ps.say(seeded=True)
    for worker in workers:
        worker.say(phase=W.READY)
    message = world.status().message
    assert message.startswith("2 of 3 workers ready")
    assert "start 1 more worker" in message
    assert "evaluator" in message
    assert "parameter server" not in message


def test_training_begins_once_workers_server_and_evaluator_are_ready(world):
    ps = world.agent("ps", "ps").join()
    w1, w2 = (world.agent("worker", f"w{i}").join() for i in (1, 2))
    evaluator = world.agent("evaluator", "eval").join()
    world.submit(workers=2, target={"accuracy": 0.9})
    w1.say(phase=W.READY)
    ps.say(seeded=True)
    w2.say(phase=W.READY)
    assert world.status().phase == pb.Status.WAITING
    evaluator.say(ready=True)
    assert world.status().phase == pb.Status.TRAINING
    assert world.last("w1").action == world.last("w2").action == D.TRAIN


def test_a_target_loss_does_not_wait_for_an_evaluator(world):
    world.training(2, evaluator=False, target={"loss": 0.1})
    assert world.status().phase == pb.Status.TRAINING


def test_ready_workers_without_the_servers_word_that_it_has_the_model_do_not_begin(world):
    world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    world.submit()
    w1.say(phase=W.READY)
    assert world.status().phase == pb.Status.WAITING
    assert "model" in world.status().message


def test_another_worker_may_seed_when_the_first_one_vanishes(world):
    world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    world.agent("worker", "w2").join()
    world.submit()
    assert not world.last("w2").may_seed
    w1.die()
    world.wait(12)
    assert world.last("w2").may_seed


def test_another_worker_may_seed_when_the_first_one_fails(world):
    world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    world.agent("worker", "w2").join()
    world.submit(workers=2)
    w1.say(phase=W.FAILED, error="no data")
    assert world.last("w2").may_seed


def test_a_run_that_starts_from_a_file_takes_the_manifest_of_one_worker(world):
    ps = world.agent("ps", "ps").join()
    for name in ("w1", "w2"):
        world.agent("worker", name).join()
    world.submit(initial_model="/models/first.safetensors")
    assert world.last("ps", "server").initial_model == "/models/first.safetensors"
    assert [world.last(name).may_seed for name in ("w1", "w2")] == [True, False]
    assert "/models/first.safetensors" in world.status().message
    ps.say(error="cannot read /models/first.safetensors")
    assert world.status().outcome == pb.Status.FAILED
    assert "cannot read /models/first.safetensors" in world.status().message


def test_a_worker_that_fails_to_prepare_is_named_and_the_others_begin_without_it(world):
    ps = world.agent("ps", "ps").join()
    w1, w2, w3 = (world.agent("worker", f"w{i}").join() for i in (1, 2, 3))
    world.submit(workers=2)
    w3.say(phase=W.FAILED, error="data: /data/x is missing")
    ps.say(seeded=True)
    w1.say(phase=W.READY)
    assert "w3 failed: data: /data/x is missing" in world.status().message
    w2.say(phase=W.READY)
    assert world.status().phase == pb.Status.TRAINING
    assert world.last("w3").action == D.PREPARE
    assert {w.name: w.error for w in world.status().workers}["w3"] == "data: /data/x is missing"


def test_where_all_others_build_another_model_the_one_that_the_run_has_is_named(world):
    ps = world.agent("ps", "ps").join()
    w1, w2, w3 = (world.agent("worker", f"w{i}").join() for i in (1, 2, 3))
    world.submit(workers=3)
    w1.say(phase=W.READY)
    ps.say(seeded=True)
    for worker in (w2, w3):
        worker.say(phase=W.FAILED, error=f"{ANOTHER_MODEL}: buffer 'x' [3] stands where 'y' [2] is expected")
    evaluator = world.agent("evaluator", "eval").join()
    evaluator.say(error=f"{ANOTHER_MODEL}: 1 buffers instead of 2")
    shown = {worker.name: worker.error for worker in world.status().workers}
    assert "'x' [3]" in shown["w2"]
    for text in (shown["w2"], shown["w3"], *world.status().warnings):
        assert "the run's is what w1 built" in text
    w2.say(phase=W.READY)
    w2.say(phase=W.FAILED, error="out of memory")
    assert [w.error for w in world.status().workers if w.name == "w2"] == ["out of memory"]


def test_a_run_that_can_not_begin_because_a_worker_failed_says_so(world):
    ps = world.agent("ps", "ps").join()
    w1, w2 = (world.agent("worker", f"w{i}").join() for i in (1, 2))
    world.submit(workers=2)
    ps.say(seeded=True)
    w1.say(phase=W.READY)
    w2.say(phase=W.FAILED, error="out of memory")
    message = world.status().message
    assert "1 of 2 workers ready" in message
    assert "w2 failed: out of memory" in message
    assert "restart" in message


def test_a_failed_worker_that_is_restarted_prepares_again(world):
    world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    world.submit()
    w1.say(phase=W.FAILED, error="no data")
    w1.die()
    before = len(world.to("w1", "worker"))
    world.agent("worker", "w1", "w1-2").join()
    assert len(world.to("w1", "worker")) > before
    assert world.last("w1").action == D.PREPARE
    assert world.status().workers[0].error == ""


def test_a_device_with_another_task_file_is_refused_and_both_digests_are_named(world):
    world.agent("ps", "ps").join()
    world.agent("worker", "w1").join()
    world.agent("worker", "w2", tasks={"digits": OTHER_DIGEST}).join()
    world.submit()
    refused = world.last("w2")
    assert refused.action == D.REFUSED
    assert OTHER_DIGEST[:12] in refused.reason
    assert DIGEST[:12] in refused.reason
    assert world.last("w1").action == D.PREPARE


def test_the_digest_that_the_run_names_wins_over_the_first_device(world):
    world.agent("ps", "ps").join()
    world.agent("worker", "w1", tasks={"digits": OTHER_DIGEST}).join()
    world.agent("worker", "w2").join()
    world.submit(task={"name": "digits", "digest": DIGEST})
    assert world.last("w1").action == D.REFUSED
    assert world.last("w2").action == D.PREPARE


def test_a_refused_worker_whose_file_was_corrected_is_taken(world):
    world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1", tasks={"digits": OTHER_DIGEST}).join()
    world.submit(task={"name": "digits", "digest": DIGEST})
    w1.join()  # says the same once more
    assert world.last("w1").action == D.REFUSED
    corrected = pb.Hello()
    corrected.CopyFrom(w1.hello)
    corrected.tasks["digits"] = DIGEST
    w1.hello = corrected
    w1.join()
    assert world.last("w1").action == D.PREPARE
    assert not world.status().warnings
    assert not world.status().workers[0].error


def test_a_task_that_no_device_has_is_waited_for_and_what_they_have_is_said(world):
    world.agent("ps", "ps").join()
    world.agent("worker", "w1", tasks={"fashion-mnist": DIGEST}).join()
    world.submit()
    message = world.status().message
    assert "'digits'" in message
    assert "w1 has fashion-mnist" in message
    assert world.last("w1").action == D.REFUSED
    world.agent("worker", "w2").join()
    assert world.last("w2").action == D.PREPARE


def test_an_evaluator_without_the_task_is_not_taken(world):
    world.agent("ps", "ps").join()
    world.agent("worker", "w1").join()
    world.agent("evaluator", "eval", tasks={"digits": OTHER_DIGEST}).join()
    world.submit(target={"accuracy": 0.9})
    assert world.last("eval", "evaluator").run_id == ""
    assert any("eval" in warning for warning in world.status().warnings)


def test_a_server_that_restarts_while_the_run_waits_is_told_again_and_workers_prepare_again(world):
    ps = world.agent("ps", "ps").join()
    w1, w2 = (world.agent("worker", f"w{i}").join() for i in (1, 2))
    world.submit(workers=2)
    ps.say(seeded=True)
    w1.say(phase=W.READY)
    again = world.agent("ps", "ps", "ps-2").join()
    assert world.last("ps", "server").run_id == world.run_id
    assert world.last("w1").action == D.PREPARE
    assert world.last("w1").may_seed
    again.say(seeded=True)
    w1.say(phase=W.READY)
    w2.say(phase=W.READY)
    assert world.status().phase == pb.Status.TRAINING


def test_a_worker_is_ready_only_by_a_report_made_under_what_it_was_told_last(world):
    ps = world.agent("ps", "ps").join()
    w1, _ = (world.agent("worker", f"w{i}").join() for i in (1, 2))
    world.submit(workers=2)
    ps.say(seeded=True)
    w1.say(phase=W.READY, revision=world.last("w1").revision)
    assert world.status().message.startswith("1 of 2 workers ready")
    world.agent("ps", "ps", "ps-2").join()
    w1.say()  # sent before it heard that the server is another one
    assert world.status().message.startswith("0 of 2 workers ready")
    w1.say(revision=world.last("w1").revision)
    assert world.status().message.startswith("1 of 2 workers ready")


def test_a_worker_that_was_away_while_the_server_restarted_prepares_again(world):
    ps = world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    world.submit(workers=2)
    ps.say(seeded=True)
    w1.say(phase=W.READY)
    w1.say(steps=1)
    before = world.last("w1").revision
    w1.cut()
    world.wait(11)
    world.agent("ps", "ps", "ps-2").join()
    w1.join()
    assert world.last("w1").action == D.PREPARE
    assert world.last("w1").revision > before


def test_nobody_else_may_seed_once_a_worker_is_ready_though_the_server_has_not_said_so_yet(world):
    world.agent("ps", "ps").join()
    w1, w2 = (world.agent("worker", f"w{i}").join() for i in (1, 2))
    world.agent("worker", "w3").join()
    world.submit(workers=3)
    w2.say(phase=W.READY)
    w1.say(phase=W.FAILED, error="it broke")
    assert not world.last("w2").may_seed
    assert not world.last("w3").may_seed


# ---- directives in training -----------------------------------------------------------------


def test_the_training_directive_carries_the_runs_settings(world):
    world.training(1, training={"batch": 8, "learning_rate": 0.3, "momentum": 0.5, "seed": 7})
    train = world.last("w1")
    assert (train.batch, train.learning_rate, train.momentum, train.seed) == (8, 0.3, 0.5, 7)
    assert train.trigger.grid.interval_s == 2.0
    assert train.overlap
    assert train.run_id == world.run_id


def test_a_grid_is_sent_as_the_time_since_its_origin(world):
    world.training(1)
    world.wait(7.25)
    world.model.plan = lambda fleet: grid_plan(fleet, 3.0, origin_s=4.0)
    world.agent("worker", "w2").join().say(phase=W.READY)
    grid = world.last("w1").trigger.grid
    assert grid.interval_s == 3.0
    assert grid.elapsed_s == pytest.approx(3.25)
    assert world.last("w2").trigger.grid.elapsed_s == pytest.approx(3.25)


def test_an_unchanged_plan_sends_nothing(world):
    _, evaluator, _ = world.training(2)
    before = len(world.sent)
    for version in range(2, 12):
        world.wait(1)
        evaluator.evaluate(version, 1.0 / version)
    sent = [d.WhichOneof("kind") for _, _, d in world.sent[before:]]
    assert set(sent) == {"keep_best"}
    assert len(world.model.losses) == 10


def test_a_changed_directive_goes_to_the_worker_and_into_its_next_commits_reply(world):
    _, evaluator, _ = world.training(2)
    world.model.plan = lambda fleet: grid_plan(fleet, 5.0)
    before = len(world.sent)
    evaluator.evaluate(2, 0.5)
    sent = world.sent[before:]
    replies = [d.next for _, name, d in sent if name == "ps" and d.WhichOneof("kind") == "next"]
    assert len(replies) == 1
    assert set(replies[0].workers) == {"w1", "w2"}
    assert replies[0].workers["w1"] == world.last("w1")
    assert world.last("w1").trigger.grid.interval_s == 5.0


def test_revisions_only_rise_and_the_generation_stays_with_the_interval(world):
    _, evaluator, _ = world.training(2)
    first = world.last("w1")
    world.model.plan = lambda fleet: grid_plan(fleet, 5.0)
    evaluator.evaluate(2, 0.5)
    second = world.last("w1")
    assert second.revision > first.revision
    assert second.generation == first.generation
    world.model.plan = lambda fleet: Plan(
        triggers={name: Steps(8) for name in fleet.devices},
        gate=Gate(slack=0),
        fold=Fold(when="at_gate"),
        cohort=tuple(fleet.devices),
    )
    evaluator.evaluate(3, 0.4)
    third = world.last("w1")
    assert third.generation == second.generation + 1
    assert third.trigger.steps == 8
    server = world.last("ps", "server")
    assert server.generation == third.generation
    assert server.gate.slack == 0
    assert server.gate.HasField("slack")
    assert list(server.cohort) == ["w1", "w2"]
    revisions = [
        getattr(d, d.WhichOneof("kind")).revision
        for _, name, d in world.sent
        if d.WhichOneof("kind") in ("worker", "server", "evaluator")
    ]
    assert len(set(revisions)) == len(revisions)
    for name in ("w1", "w2", "ps", "eval"):
        own = [
            getattr(d, d.WhichOneof("kind")).revision
            for d in world.to(name)
            if d.WhichOneof("kind") in ("worker", "server", "evaluator")
        ]
        assert own == sorted(own)


def test_a_new_generation_reaches_the_server_before_any_worker(world):
    _, evaluator, _ = world.training(2)
    before = len(world.sent)
    world.model.plan = lambda fleet: Plan(
        triggers={name: Steps(1) for name in fleet.devices}, gate=Gate(slack=0), cohort=tuple(fleet.devices)
    )
    evaluator.evaluate(2, 0.5)
    kinds = [(name, d.WhichOneof("kind")) for _, name, d in world.sent[before:]]
    kinds = [kind for kind in kinds if kind[1] != "keep_best"]
    assert kinds == [("ps", "server"), ("ps", "next"), ("w1", "worker"), ("w2", "worker")]


def test_the_model_is_asked_again_at_the_time_that_its_plan_names(world):
    world.training(1, evaluator=False)
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0, wake_at_s=fleet.now_s + 4.0)
    world.agent("worker", "w2").join().say(phase=W.READY)
    asked = [fleet.now_s for fleet in world.model.decisions][1:]
    world.wait(9)
    later = [fleet.now_s for fleet in world.model.decisions][2:]
    assert asked == [0.0]
    assert later == [4.0, 8.0]


def test_a_model_that_wants_to_be_asked_in_the_past_does_not_stop_the_clock(world):
    world.training(1, evaluator=False)
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0, wake_at_s=0.0)
    world.agent("worker", "w2").join().say(phase=W.READY)
    world.wait(1)
    assert 50 <= len(world.model.decisions) <= 150


def test_searching_and_probes_show_in_the_status(world):
    _, evaluator, _ = world.training(1)
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0, searching=True)
    evaluator.evaluate(2, 0.9)
    assert world.status().phase == pb.Status.SEARCHING
    probe = Probe(5, 2.0, 0.0, 4.0, 0.9, 0.5, 0.1, chosen=True)
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0, probes=(probe,))
    evaluator.evaluate(3, 0.5)
    status = world.status()
    assert status.phase == pb.Status.TRAINING
    assert status.probes[0].reward == pytest.approx(0.1)
    assert status.probes[0].chosen
    assert sum("probe" in text for text in world.said()) == 1


def test_a_note_that_comes_and_goes_is_said_once_and_stands_while_it_holds(world):
    _, evaluator, _ = world.training(1)
    for version in range(2, 12):
        notes = ("w1 is slow",) if version % 2 else ()
        world.model.plan = lambda fleet, notes=notes: grid_plan(fleet, 2.0, notes=notes)
        evaluator.evaluate(version, 0.5)
        assert list(world.status().warnings) == list(notes)
    assert world.said().count("w1 is slow") == 1


def test_the_bound_on_lone_steps_follows_the_measured_speed(world):
    _, _, (w1,) = world.training(1)
    assert world.last("w1").max_lone_steps == 0
    w1.say(steps=10, step_s=0.1)
    assert world.last("w1").max_lone_steps == 20 * 10 / 0.1
    sent = len(world.to("w1"))
    w1.say(steps=20, step_s=0.12)
    assert len(world.to("w1")) == sent
    w1.say(steps=30, step_s=0.5)
    assert world.last("w1").max_lone_steps == 20 * 10 / 0.5


def test_a_bound_on_lone_steps_that_the_run_gives_holds_from_the_beginning(world):
    world.training(1, training={"max_lone_steps": 77})
    assert world.last("w1").max_lone_steps == 77


# ---- the fleet that the model sees --------------------------------------------------------------


def test_the_fleet_is_built_from_reports_and_the_servers_counts(world):
    ps, evaluator, (w1, w2) = world.training(2)
    world.wait(2)
    w1.say(steps=40, samples=1280, step_s=0.05, commit_s=0.3, hold_s=0.01, train_loss=1.5, shard_samples=600)
    w2.say(steps=13, samples=416, step_s=0.15)
    ps.say(
        busy_s=0.4,
        commits=4,
        counts=[pb.CommitCount(worker="w1", commits=3), pb.CommitCount(worker="w2", commits=1)],
    )
    world.wait(0.5)
    evaluator.evaluate(5, 0.7)
    fleet = world.model.decisions[-1]
    assert fleet.now_s == pytest.approx(2.5)
    assert fleet.server_s == pytest.approx(0.1)
    assert fleet.counted_at_s == pytest.approx(2.0)
    device = fleet.devices["w1"]
    assert (device.commits, device.steps, device.samples, device.shard_samples) == (3, 40, 1280, 600)
    assert (device.step_s, device.commit_s, device.hold_s, device.train_loss) == (0.05, 0.3, 0.01, 1.5)
    assert fleet.devices["w2"].commits == 1
    assert world.model.losses[-1].steps == 53


def test_a_restarted_workers_figures_go_on_from_where_its_last_process_was(world):
    ps, evaluator, (w1, _) = world.training(2)
    w1.say(steps=100, samples=3200, commits=9, time={"compute_s": 5.0, "wait_s": 0.5})
    ps.say(counts=[pb.CommitCount(worker="w1", commits=9)])
    w1.die()
    again = world.agent("worker", "w1", "w1-2").join()
    assert world.last("w1").action == D.PREPARE
    assert set(world.model.decisions[-1].devices) == {"w2"}
    again.say(phase=W.READY)
    assert world.last("w1").action == D.TRAIN
    again.say(phase=W.TRAINING, steps=5, samples=160, commits=1, time={"compute_s": 1.0})
    ps.say(counts=[pb.CommitCount(worker="w1", commits=10)])
    evaluator.evaluate(9, 0.5)
    device = world.model.decisions[-1].devices["w1"]
    assert (device.steps, device.samples, device.commits) == (105, 3360, 10)
    shown = world.status().workers[0]
    assert shown.report.steps == 105
    assert shown.report.commits == 10
    assert shown.report.time.compute_s == pytest.approx(6.0)
    assert shown.report.time.wait_s == pytest.approx(0.5)


# ---- who comes and goes ----------------------------------------------------------------------------


def test_a_report_that_follows_another_at_once_does_not_make_a_worker_look_fast(world):
    _, _, (w1,) = world.training(1)
    for steps in (10, 20, 30):
        w1.report.steps = steps
        world.wait(1)  # it reports once a second
    world.wait(0.004)
    w1.say(steps=31)
    assert world.status().workers[0].steps_per_s == pytest.approx(10, rel=0.01)


def test_a_late_joiner_prepares_and_then_trains(world):
    world.training(2)
    world.wait(30)
    w3 = world.agent("worker", "w3").join()
    assert world.last("w3").action == D.PREPARE
    assert not world.last("w3").may_seed
    assert set(world.model.decisions[-1].devices) == {"w1", "w2"}
    w3.say(phase=W.READY)
    assert world.last("w3").action == D.TRAIN
    assert world.model.decisions[-1].devices["w3"].joined_s == pytest.approx(30)


def test_a_silent_worker_leaves_the_fleet_when_its_lease_ends_and_not_before(world):
    _, _, (w1, _) = world.training(2)
    world.wait(5)
    w1.die()
    world.wait(8.9)
    assert set(world.model.decisions[-1].devices) == {"w1", "w2"}
    world.wait(1.2)
    assert set(world.model.decisions[-1].devices) == {"w2"}
    assert [c.why for c in world.closed() if c.name == "w1"] == ["lease"]
    assert world.status().phase == pb.Status.TRAINING
    assert not world.status().workers[0].attached


def test_a_worker_whose_stream_breaks_for_a_moment_stays_in_the_fleet_and_is_told_the_same(world):
    _, _, (w1, _) = world.training(2)
    world.wait(3)
    decisions = len(world.model.decisions)
    before = world.last("w1")
    w1.cut()
    world.wait(4)
    w1.join()
    assert len(world.model.decisions) == decisions
    after = world.last("w1")
    assert after.revision == before.revision
    assert after.trigger.grid.elapsed_s == pytest.approx(before.trigger.grid.elapsed_s + 7)


def test_a_worker_that_was_away_for_longer_than_its_lease_trains_on_without_preparing_again(world):
    _, _, (w1, _) = world.training(2)
    w1.cut()
    world.wait(15)
    assert set(world.model.decisions[-1].devices) == {"w2"}
    prepares = sum(d.action == D.PREPARE for d in world.to("w1", "worker"))
    w1.join()
    assert world.last("w1").action == D.TRAIN
    assert sum(d.action == D.PREPARE for d in world.to("w1", "worker")) == prepares
    assert world.model.decisions[-1].devices["w1"].joined_s == pytest.approx(15)


def test_a_directive_that_changes_while_a_workers_stream_is_down_still_reaches_its_commits(world):
    _, evaluator, (w1, _) = world.training(2)
    w1.cut()
    before = len(world.to("w1"))
    world.model.plan = lambda fleet: grid_plan(fleet, 5.0)
    evaluator.evaluate(2, 0.5)
    assert len(world.to("w1")) == before
    assert world.last("ps", "next").workers["w1"].trigger.grid.interval_s == 5.0
    w1.join()
    assert world.last("w1").trigger.grid.interval_s == 5.0
    assert world.last("w1").revision == world.last("ps", "next").workers["w1"].revision


def test_a_run_without_any_worker_left_waits_and_goes_on_when_one_returns(world):
    _, _, (w1, w2) = world.training(2)
    world.wait(20)
    w1.leave()
    w2.die()
    world.wait(15)
    status = world.status()
    assert status.phase == pb.Status.WAITING
    assert "no worker is left" in status.message
    world.wait(100)
    w2.join()
    assert world.status().phase == pb.Status.TRAINING
    assert world.last("w2").action == D.TRAIN
    assert world.phases() == ["waiting", "training", "waiting", "training"] or world.phases()[-3:] == [
        "training",
        "waiting",
        "training",
    ]


def test_a_worker_that_fails_in_training_is_left_out(world):
    _, _, (w1, _) = world.training(2)
    w1.say(phase=W.FAILED, error="CUDA out of memory")
    assert set(world.model.decisions[-1].devices) == {"w2"}
    assert world.status().workers[0].error == "CUDA out of memory"


def test_a_newer_process_takes_the_name_and_the_older_is_told(world):
    world.agent("worker", "w1", "one").join()
    world.agent("worker", "w1", "two").join()
    (closed,) = world.closed()
    assert (closed.name, closed.incarnation, closed.why) == ("w1", "one", "superseded")
    assert not world.status().warnings


def test_two_devices_with_one_name_are_reported(world):
    one = world.agent("worker", "w1", "one").join()
    world.agent("worker", "w1", "two").join()
    one.join()
    assert (world.closed()[-1].incarnation, world.closed()[-1].why) == ("one", "superseded")
    (warning,) = world.status().warnings
    assert "'w1'" in warning
    assert "name" in warning


def test_processes_that_push_each_other_out_in_turn_are_reported(world):
    for number in range(5):
        world.agent("worker", "w1", f"process-{number}").join()
        world.wait(2)
    assert any("two devices call themselves 'w1'" in warning for warning in world.status().warnings)


def test_a_device_that_is_restarted_now_and_then_is_no_second_device(world):
    for number in range(6):
        worker = world.agent("worker", "w1", f"process-{number}").join()
        world.wait(3)
        worker.cut()
        world.wait(1)
    assert not world.status().warnings


def test_a_name_of_another_role_is_refused(world):
    world.agent("ps", "hub").join()
    world.agent("worker", "hub", "other").join()
    (closed,) = world.closed()
    assert closed.why == "name"
    assert "parameter server" in closed.reason
    assert world.status().parameter_server_attached


def test_reports_of_a_superseded_process_are_not_listened_to(world):
    _, _, (w1, _) = world.training(2)
    w1.alive = False
    world.agent("worker", "w1", "w1-2").join()
    w1.say(phase=W.READY, steps=999)
    assert world.status().workers[0].report.steps == 0
    assert set(world.model.decisions[-1].devices) == {"w2"}


# ---- the parameter server in training -----------------------------------------------------------------


def test_a_server_that_restarts_in_training_is_told_to_go_on_and_nobody_waits_for_what_it_forgot(world):
    ps, evaluator, _ = world.training(2)
    ps.say(version=7, counts=[pb.CommitCount(worker="w1", commits=5)])
    evaluator.evaluate(9, 0.5)
    before = world.last("ps", "server")
    ps.die()
    again = world.agent("ps", "ps", "ps-2").join()
    told = world.last("ps", "server")
    assert (told.run_id, told.generation) == (world.run_id, before.generation + 1)
    assert (told.resume.version, list(told.resume.trainers)) == (9, ["w1", "w2"])
    assert {world.last(name).generation for name in ("w1", "w2")} == {told.generation}
    assert set(world.last("ps", "next").workers) == {"w1", "w2"}
    assert "was restarted" in world.status().warnings[0]

    again.say(seeded=True, version=1009, counts=[pb.CommitCount(worker="w1", commits=3)])
    status = world.status()
    assert status.phase == pb.Status.TRAINING
    assert not status.warnings
    assert status.workers[0].commits == 5, "what is lost was made all the same"
    assert not world.last("ps", "server").HasField("resume")
    again.say(counts=[pb.CommitCount(worker="w1", commits=4)])
    assert world.status().workers[0].commits == 6


def test_a_server_that_restarts_in_training_without_a_checkpoint_ends_the_run_and_says_why(world):
    ps, _, _ = world.training(2)
    ps.say(checkpoint_path="/data/checkpoint.safetensors")
    ps.die()
    again = world.agent("ps", "ps", "ps-2").join()
    again.say(error="checkpoint: there is none\nkeep the folder")
    again.die()
    world.wait(10)
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.FAILED)
    assert "parameter server 'ps' restarted" in status.message
    assert "checkpoint: there is none; keep the folder" in status.message
    assert "initial_model: /data/checkpoint.safetensors" in status.message
    assert world.last("w1").action == D.IDLE
    assert world.last("ps", "server").run_id == ""


def test_a_server_that_is_away_for_a_while_and_comes_back_goes_on(world):
    ps, _, _ = world.training(2)
    ps.cut()
    world.wait(30)
    assert world.status().phase == pb.Status.TRAINING
    assert any("parameter server" in warning for warning in world.status().warnings)
    ps.join()
    assert not world.status().warnings
    assert world.status().phase == pb.Status.TRAINING
    assert world.last("ps", "server").run_id == world.run_id


def test_directives_that_changed_while_the_server_was_away_reach_it_on_its_return(world):
    ps, evaluator, _ = world.training(2)
    ps.cut()
    world.wait(30)
    world.model.plan = lambda fleet: grid_plan(fleet, 5.0)
    evaluator.evaluate(2, 0.5)
    ps.join()
    assert world.last("ps", "next").workers["w2"].trigger.grid.interval_s == 5.0


def test_a_server_that_dials_again_gets_all_that_goes_into_replies_once_more(world):
    ps, _, _ = world.training(2)
    before = len(world.to("ps", "next"))
    ps.cut()
    ps.join()
    assert len(world.to("ps", "next")) == before + 1
    assert {name: d.action for name, d in world.last("ps", "next").workers.items()} == {
        "w1": D.TRAIN,
        "w2": D.TRAIN,
    }


def test_a_checkpoint_that_failed_is_a_warning_and_training_goes_on(world):
    ps, _, _ = world.training(2)
    ps.say(error="checkpoint: no space left on device")
    assert world.status().phase == pb.Status.TRAINING
    assert any("no space left" in warning for warning in world.status().warnings)
    ps.say(error="")
    assert not world.status().warnings


def test_a_second_parameter_server_is_reported_and_not_used(world):
    world.training(1)
    world.agent("ps", "other").join()
    assert any("'other'" in warning for warning in world.status().warnings)
    assert world.status().phase == pb.Status.TRAINING
    assert world.last("other", "server") is None


def test_a_parameter_server_that_stands_by_takes_the_place_of_one_that_leaves_before_training(world):
    first = world.agent("ps", "ps").join()
    world.agent("ps", "other").join()
    world.agent("worker", "w1").join()
    world.submit(workers=1)
    first.leave()
    assert world.last("other", "server").run_id == world.run_id
    assert world.last("w1").may_seed
    assert "none attends" not in world.status().message
    assert not world.status().warnings


# ---- the evaluator and the losses -------------------------------------------------------------------------


def test_the_evaluators_loss_is_read_and_the_workers_is_not(world):
    _, evaluator, (w1, w2) = world.training(2)
    for version in (2, 3):
        world.wait(2)
        w1.say(steps=10 * version, train_loss=9.0)
        w2.say(steps=10 * version, train_loss=9.0)
        evaluator.evaluate(version, 1.0 / version)
    assert [(loss.source, loss.value) for loss in world.model.losses] == [
        ("evaluator", 0.5),
        ("evaluator", pytest.approx(1 / 3)),
    ]
    assert world.status().evaluated


def test_without_an_evaluator_the_workers_losses_are_weighted_by_samples(world):
    _, _, (w1, w2) = world.training(2, evaluator=False)
    w1.say(steps=10, samples=320, train_loss=1.0, shard_samples=300)
    assert world.model.losses == []
    w2.say(steps=10, samples=320, train_loss=2.0, shard_samples=100)
    (loss,) = world.model.losses
    assert loss.source == "workers"
    assert loss.value == pytest.approx(1.25)
    assert not world.status().evaluated
    assert world.status().loss == pytest.approx(1.25)


def test_an_evaluator_that_comes_in_the_middle_of_a_search_is_not_read_until_its_end(world):
    _, _, (w1,) = world.training(1, evaluator=False)
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0, searching=True)
    w1.say(steps=10, samples=320, train_loss=1.0)
    evaluator = world.agent("evaluator", "eval").join()
    evaluator.say(ready=True)
    evaluator.evaluate(2, 0.3)
    world.wait(2)
    assert {loss.source for loss in world.model.losses} == {"workers"}
    world.model.plan = lambda fleet: grid_plan(fleet, 2.0)
    world.wait(2)
    evaluator.evaluate(3, 0.2)
    count = len(world.model.losses)
    world.wait(5)
    assert [loss.source for loss in world.model.losses[count - 1 :]] == ["evaluator"]


def test_a_lost_evaluator_is_said_and_waited_for_and_no_other_loss_is_read(world):
    _, evaluator, (w1, _) = world.training(2)
    evaluator.evaluate(2, 0.9)
    evaluator.die()
    world.wait(12)
    assert any("evaluator 'eval'" in warning for warning in world.status().warnings)
    w1.say(steps=50, samples=100, train_loss=0.1)
    world.wait(5)
    assert len(world.model.losses) == 1
    again = world.agent("evaluator", "eval", "eval-2").join()
    assert world.last("eval", "evaluator").run_id == world.run_id
    again.evaluate(7, 0.8)
    assert len(world.model.losses) == 2
    assert not world.status().warnings


def test_an_evaluator_that_never_evaluated_does_not_hold_the_losses_back(world):
    _, evaluator, (w1, _) = world.training(2, target={"loss": 0.1})
    evaluator.say(error="no held-out data", ready=False)
    for worker in (w1, _):
        worker.say(steps=10, samples=320, train_loss=1.0)
    assert [loss.source for loss in world.model.losses] == ["workers"]


def test_one_evaluation_sent_again_counts_once(world):
    _, evaluator, _ = world.training(1, target={"accuracy": 0.9, "confirm": 3})
    evaluator.evaluate(2, 0.1, 0.95)
    world.wait(10)
    assert world.status().phase == pb.Status.TRAINING
    assert len(world.status().evaluations) == 1


def test_an_evaluation_of_the_initial_model_counts_as_made_when_training_begins(world):
    ps = world.agent("ps", "ps").join()
    w1 = world.agent("worker", "w1").join()
    evaluator = world.agent("evaluator", "eval").join()
    world.submit()
    ps.say(seeded=True, version=1)
    evaluator.evaluate(1, 2.3, 0.1)
    world.wait(5)
    w1.say(phase=W.READY)
    (loss,) = world.model.losses
    assert (loss.at_s, loss.value) == (0.0, 2.3)


def test_a_loss_that_is_no_number_warns_and_is_not_given_to_the_model(world):
    _, evaluator, _ = world.training(1)
    evaluator.evaluate(2, float("nan"))
    assert world.model.losses == []
    assert any("nan" in warning for warning in world.status().warnings)
    world.wait(1)
    evaluator.evaluate(3, float("nan"))
    assert len([text for text in world.said() if "the loss is nan" in text]) == 1


def test_workers_whose_losses_are_no_numbers_reach_no_target(world):
    _, _, (w1, w2) = world.training(2, evaluator=False, target={"loss": 0.5})
    for worker in (w1, w2):
        worker.say(steps=10, samples=320, train_loss=float("nan"), shard_samples=300)
    world.wait(10)
    assert world.model.losses == []
    assert world.status().phase == pb.Status.TRAINING
    assert len([text for text in world.said() if "the loss is nan" in text]) == 1


def test_times_that_cannot_be_are_said_once_and_end_no_run(world):
    _, evaluator, (w1, w2) = world.training(2)
    for moment in range(3):
        w1.say(steps=9 + moment, step_s=float("nan"), commit_s=-1.0, train_loss=1e300)
        w2.say(steps=9 + moment, step_s=1e-320, pull_s=0.5)
        world.wait(10)
    evaluator.evaluate(2, 1.5)
    assert world.status().phase == pb.Status.TRAINING
    seen = world.model.decisions[-1].devices
    assert (seen["w1"].step_s, seen["w1"].commit_s) == (0, 0)
    assert (seen["w2"].step_s, seen["w2"].pull_s) == (1e-9, 0.5)
    (said,) = (text for text in world.said() if "can't be" in text)
    assert "w1 reports step_s: nan, commit_s: -1, " in said
    assert said in world.status().warnings
    w1.say(step_s=0.1, commit_s=0.1)
    assert said not in world.status().warnings


def test_a_loss_beyond_all_bounds_is_no_number(world):
    _, evaluator, _ = world.training(1)
    evaluator.evaluate(2, 1e300)
    assert world.model.losses == []
    assert any("the loss is inf" in warning for warning in world.status().warnings)


def test_the_server_keeps_each_model_that_is_the_best_so_far(world):
    _, evaluator, _ = world.training(1, target={"accuracy": 0.99})
    for version, metric in ((2, 0.5), (3, 0.7), (4, 0.6), (5, 0.8)):
        evaluator.evaluate(version, 1 - metric, metric)
    kept = world.to("ps", "keep_best")
    assert [best.version for best in kept] == [2, 3, 5]
    assert kept[-1].run_id == world.run_id


def wrote_best(ps, version, loss, metric):
    ps.say(best_model_path="/data/best", best_version=version, best_loss=loss, best_metric=metric)


def test_a_model_that_the_server_can_not_be_told_to_keep_is_not_called_the_best(world):
    ps, evaluator, _ = world.training(1, target={"accuracy": 0.99})
    evaluator.evaluate(2, 0.5, 0.5)
    wrote_best(ps, 2, 0.5, 0.5)
    ps.cut()
    evaluator.evaluate(3, 0.1, 0.9)
    assert world.status().best_metric == pytest.approx(0.5)
    ps.join()
    evaluator.evaluate(4, 0.2, 0.8)
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 4]


def test_the_best_figures_are_those_of_the_model_that_is_on_disk(world):
    ps, evaluator, _ = world.training(1, target={"accuracy": 0.99})
    evaluator.evaluate(2, 0.5, 0.5)
    assert world.status().best_metric == 0.0  # its file is not there yet
    wrote_best(ps, 2, 0.5, 0.5)
    evaluator.evaluate(3, 0.2, 0.8)
    ps.say(version=9)  # the disk refuses
    status = world.status()
    assert (status.best_metric, status.best_loss, status.best_model_path) == (0.5, 0.5, "/data/best")
    evaluator.evaluate(4, 0.3, 0.7)  # no better than what is still to be written
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 3]
    wrote_best(ps, 3, 0.2, 0.8)
    assert (world.status().best_metric, world.status().best_loss) == (0.8, 0.2)


def test_a_best_that_the_server_no_longer_had_gives_way_to_a_lesser_one_that_can_be_kept(world):
    ps, evaluator, _ = world.training(1, target={"accuracy": 0.99})
    evaluator.evaluate(2, 0.5, 0.5)
    wrote_best(ps, 2, 0.5, 0.5)
    evaluator.evaluate(3, 0.1, 0.9)
    ps.say(best_missed=3)
    evaluator.evaluate(4, 0.2, 0.8)
    evaluator.evaluate(5, 0.6, 0.4)
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 3, 4]
    assert world.status().best_metric == pytest.approx(0.5)


def test_a_server_that_is_back_is_told_once_more_to_keep_the_best_that_it_has_not_confirmed(world):
    ps, evaluator, _ = world.training(1, target={"accuracy": 0.99})
    evaluator.evaluate(2, 0.5, 0.5)
    ps.cut()  # and with the stream, perhaps, the word
    ps.join()
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 2]
    wrote_best(ps, 2, 0.5, 0.5)
    ps.cut()
    ps.join()
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 2]


def test_with_a_loss_target_the_lowest_loss_is_the_best(world):
    _, evaluator, _ = world.training(1, target={"loss": 0.01})
    for version, loss in ((2, 0.5), (3, 0.3), (4, 0.4)):
        evaluator.evaluate(version, loss, 0.1)
    assert [best.version for best in world.to("ps", "keep_best")] == [2, 3]


# ---- ends -------------------------------------------------------------------------------------------------


def test_a_confirmed_target_ends_the_run_and_its_time_is_that_of_the_last_evaluation(world):
    ps, evaluator, workers = world.training(2, target={"accuracy": 0.9, "confirm": 3})
    for version, metric in enumerate((0.5, 0.91, 0.89, 0.92, 0.93, 0.94), 2):
        world.wait(1)
        evaluator.evaluate(version, 0.1, metric)
    status = world.status()
    assert status.phase == pb.Status.FINISHING
    assert status.reached
    assert status.time_to_target_s == pytest.approx(6.0)
    assert world.last("w1").action == D.IDLE
    assert world.last("eval", "evaluator").run_id == ""
    assert world.last("ps", "server").finished
    assert world.last("ps", "next").workers["w1"].action == D.IDLE
    for worker in workers:
        worker.say(final=True, phase=W.IDLE)
    ps.say(
        finished=True, model_path="/data/run/model.safetensors", best_model_path="/data/run/best.safetensors"
    )
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.REACHED)
    assert status.model_path == "/data/run/model.safetensors"
    assert status.elapsed_s == pytest.approx(6.0)
    assert any(
        "target reached: accuracy 0.94 after 6 s; the model is at /data/run/model.safetensors" in text
        for text in world.said()
    )


def test_the_end_waits_for_the_final_model_but_not_for_ever(world):
    world.training(1)
    world.stop()
    world.wait(30)
    assert world.status().phase == pb.Status.FINISHING
    world.wait(40)
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.STOPPED)
    assert any("final model" in warning for warning in status.warnings)


def test_the_end_waits_a_little_for_the_workers_last_reports(world):
    ps, _, (w1, w2) = world.training(2)
    world.stop()
    ps.say(finished=True)
    w1.say(final=True, steps=70)
    world.wait(4)
    assert world.status().phase == pb.Status.FINISHING
    w2.say(final=True, steps=20)
    assert world.status().phase == pb.Status.IDLE
    assert [worker.report.steps for worker in world.status().workers] == [70, 20]


def test_who_comes_while_a_run_finishes_is_idle(world):
    world.training(1)
    world.stop()
    assert world.status().phase == pb.Status.FINISHING
    world.agent("worker", "w2").join()
    world.agent("evaluator", "eval-2").join()
    assert world.last("w2").action == D.IDLE
    assert world.last("eval-2", "evaluator").run_id == ""


def test_the_end_does_not_wait_for_a_worker_that_died(world):
    ps, _, (w1, w2) = world.training(2)
    w1.die()
    world.stop()
    ps.say(finished=True)
    w2.say(final=True)
    world.wait(6)
    assert world.status().phase == pb.Status.IDLE


def test_a_time_limit_ends_the_run_at_its_second(world):
    ps, _, _ = world.training(1, limits={"seconds": 20})
    world.wait(19.9)
    assert world.status().phase == pb.Status.TRAINING
    world.wait(0.2)
    ps.say(finished=True)
    world.wait(6)
    status = world.status()
    assert status.outcome == pb.Status.LIMIT
    assert status.elapsed_s == pytest.approx(20)
    assert "limits.seconds" in status.message


def test_a_time_limit_holds_also_while_no_worker_is_left(world):
    ps, _, (w1,) = world.training(1, limits={"seconds": 20})
    w1.leave()
    world.wait(21)
    ps.say(finished=True)
    assert world.status().outcome == pb.Status.LIMIT


def test_a_limit_of_commits_ends_the_run(world):
    ps, _, _ = world.training(1, limits={"commits": 10})
    ps.say(commits=9)
    assert world.status().phase == pb.Status.TRAINING
    ps.say(commits=10)
    assert world.status().phase == pb.Status.FINISHING


def test_a_loss_that_stands_still_ends_the_run(world):
    ps, evaluator, _ = world.training(1, converged={"variance": 1e-4, "window": 5})
    for version in range(2, 6):
        evaluator.evaluate(version, 0.5)
    assert world.status().phase == pb.Status.TRAINING
    evaluator.evaluate(6, 0.5)
    ps.say(finished=True)
    world.wait(6)
    assert world.status().outcome == pb.Status.CONVERGED


def test_a_waiting_run_can_be_stopped_and_nothing_is_written(world):
    world.agent("ps", "ps").join()
    world.agent("worker", "w1").join()
    world.submit(workers=2)
    world.stop()
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.STOPPED)
    assert world.last("w1").action == D.IDLE
    assert not world.last("ps", "server").finished


def test_a_second_run_follows_on_the_same_fleet_with_higher_revisions(world):
    ps, evaluator, (w1, w2) = world.training(2)
    evaluator.evaluate(2, float("nan"))
    assert world.status().warnings
    world.stop()
    ps.say(finished=True, model_path="/data/1")
    for worker in (w1, w2):
        worker.say(final=True, phase=W.IDLE)
    assert world.status().phase == pb.Status.IDLE
    before = world.last("w1").revision
    first = world.run_id
    ps.report.Clear()
    w1.report.Clear()
    w2.report.Clear()
    world.submit(workers=2)
    assert world.run_id != first
    assert world.last("w1").revision > before
    assert world.last("w1").action == D.PREPARE
    assert world.last("w1").may_seed
    status = world.status()
    assert status.model_path == ""
    assert not status.warnings
    assert status.outcome == pb.Status.OUTCOME_UNSPECIFIED
    ps.say(seeded=True)
    w1.say(phase=W.READY)
    w2.say(phase=W.READY)
    assert world.status().phase == pb.Status.TRAINING


def test_reports_of_the_run_before_do_not_count_in_the_next(world):
    ps, _, (w1,) = world.training(1)
    old = world.run_id
    world.stop()
    ps.say(finished=True)
    w1.say(final=True, phase=W.IDLE)
    world.submit()
    ps.say(run_id=old, seeded=True)
    w1.say(run_id=old, phase=W.READY)
    assert world.status().phase == pb.Status.WAITING
    assert world.status().workers[0].report.steps == 0


def test_a_run_is_refused_while_another_is_active(world):
    world.training(1)
    with pytest.raises(ValueError, match="is active"):
        world.feed(RunSubmitted("another-1", run_settings()))
    assert world.status().run_id == world.run_id


def test_a_run_with_an_unknown_model_is_refused_and_changes_nothing(world):
    world.agent("worker", "w1").join()
    with pytest.raises(OffbeatError):
        world.feed(RunSubmitted("x-1", run_settings(sync="unknown")))
    assert world.status().phase == pb.Status.IDLE
    assert world.status().run_id == ""


@pytest.mark.parametrize(
    "plan",
    [
        lambda fleet: 1 / 0,
        lambda fleet: Plan(triggers={}),
        lambda fleet: grid_plan(fleet, 0.0),
        lambda fleet: grid_plan(fleet, float("nan")),
    ],
)
def test_a_model_that_fails_ends_its_run_and_not_the_scheduler(world, plan):
    _, evaluator, _ = world.training(1)
    world.model.plan = plan
    evaluator.evaluate(2, 0.5)
    world.wait(70)
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.FAILED)
    assert "sync model 'fake'" in status.message
    world.submit()
    assert world.status().phase == pb.Status.WAITING


# ---- a submission that can't be handled -------------------------------------------------


def test_a_run_that_can_not_begin_by_a_mistake_is_refused_and_does_not_wait(world, tmp_path, monkeypatch):
    world.event_log = EventLog(tmp_path)
    world.agent("ps", "ps").join()
    world.agent("worker", "w1").join()
    with monkeypatch.context() as patched:
        patched.setattr(Wording, "prepare", lambda *args, **more: 1 / 0)
        world.submit()
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.FAILED)
    assert "could not begin: ZeroDivisionError" in status.message
    assert [line["phase"] for line in world.decisions() if line["decision"] == "PhaseChanged"][-1] == "idle"
    assert world.last("w1").action == D.IDLE
    assert world.last("ps", "server").run_id == ""
    world.wait(3)
    world.submit()
    assert world.last("w1").action == D.PREPARE, "the next run may come"


def test_a_model_that_can_not_be_made_leaves_the_last_run_as_it_was(world):
    ps, _, _ = world.training(1)
    world.stop()
    ps.say(finished=True)
    world.wait(10)
    before = world.status()

    def broken(spec, run):
        raise RuntimeError("no")

    world.hub._make_model = broken
    with pytest.raises(RuntimeError):
        world.feed(RunSubmitted("r-2", run_settings()))
    assert world.status() == before
