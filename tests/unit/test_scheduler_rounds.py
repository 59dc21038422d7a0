"""Plans with rounds, resting devices, groups and batches: what the hub says to whom, in virtual time."""

import json

import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler import metrics
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from offbeat_scheduler.sync import Allotment, Fold, Gate, Grid, Group, Passes, Plan, Steps
from support.scheduler_world import World, grid_plan

W = pb.WorkerReport
D = common.WorkerDirective


@pytest.fixture
def world():
    return World()


def rounds(drawn):
    """A model of rounds: `drawn[n]` train in round n (the last one lasts), all others rest."""
    state = {"round": 0}

    def plan(fleet):
        if fleet.closed:
            state["round"] += 1
        who = [name for name in drawn[min(state["round"], len(drawn) - 1)] if name in fleet.devices]
        return Plan(
            {name: Steps(5) for name in who},
            Gate(slack=0),
            Fold("at_gate", "data"),
            tuple(who),
            resting=frozenset(fleet.devices) - set(who),
            round=state["round"],
            wake_at_s=fleet.now_s + 1000,
        )

    return plan


def planned(world, plan, workers=3, **more):
    """A run whose training has begun under the plan that `plan` makes of the fleet."""

    def make(spec, run):
        model = world._fake(spec, run)
        model.plan = plan
        return model

    world.hub._make_model = make
    return world.training(workers, **more)


def told(world, name):
    """(action, generation, once) of an agent's last directive."""
    directive = world.last(name)
    return D.Action.Name(directive.action), directive.generation, directive.once


def close_round(world, ps, generation=None):
    """The parameter server says that the gate has closed."""
    generation = world.last("ps", "server").generation if generation is None else generation
    ps.say(generation=generation, closed=1)


# ---- rounds -----------------------------------------------------------------------------


def test_in_a_round_those_drawn_commit_once_and_the_others_rest(world):
    planned(world, rounds([["w1", "w3"], ["w2"]]))
    assert told(world, "w1") == told(world, "w3") == ("TRAIN", 1, True)
    assert told(world, "w2") == ("REST", 0, False)
    server = world.last("ps", "server")
    assert (server.generation, server.once, list(server.cohort)) == (1, True, ["w1", "w3"])
    assert server.fold.weight == common.Fold.DATA
    resting = world.last("w2")
    assert resting.batch == 32
    assert not resting.HasField("trigger")
    assert resting.task.name == "digits"


def test_when_a_round_closes_the_model_plans_the_next_at_once(world):
    ps, _, _ = planned(world, rounds([["w1", "w3"], ["w2"]]))
    decisions = len(world.model.decisions)
    close_round(world, ps)
    assert len(world.model.decisions) == decisions + 1
    assert world.model.decisions[-1].closed == 1
    assert told(world, "w2") == ("TRAIN", 2, True)
    assert told(world, "w1") == told(world, "w3") == ("REST", 0, False)
    assert world.last("ps", "server").generation == 2
    order = [(name, d.WhichOneof("kind")) for at, name, d in world.sent[-5:]]
    assert order[:2] == [("ps", "server"), ("ps", "next")]


def test_trainers_are_told_the_version_with_which_their_round_began(world):
    ps, evaluator, _ = planned(world, rounds([["w1", "w3"], ["w2"]]))
    ps.say(version=7, generation=1, closed=1)
    assert world.last("w2").model_version == 7
    heard = len(world.to("w2"))
    ps.say(version=8)
    evaluator.evaluate(8, 1.0)
    assert len(world.to("w2")) == heard, "it stays that of the beginning"
    assert world.last("w1").model_version == 0, "of who rests nothing is asked"


def test_without_rounds_no_version_is_told(world):
    ps, evaluator, _ = planned(world, lambda fleet: grid_plan(fleet, 2.0))
    ps.say(version=7)
    world.model.plan = lambda fleet: grid_plan(fleet, 3.0)
    evaluator.evaluate(8, 1.0)
    assert world.last("w1").trigger.grid.interval_s == 3.0
    assert world.last("w1").model_version == 0


def test_the_same_devices_in_the_next_round_are_another_generation(world):
    ps, _, _ = planned(world, rounds([["w1", "w2"]]), workers=2)
    for generation in (1, 2, 3):
        assert told(world, "w1") == told(world, "w2") == ("TRAIN", generation, True)
        close_round(world, ps)


def test_those_who_rest_on_hear_nothing_of_a_new_round(world):
    ps, _, _ = planned(world, rounds([["w1"], ["w2"], ["w1"]]))
    heard = len(world.to("w3"))
    for _ in range(2):
        close_round(world, ps)
        assert "w3" not in world.last("ps", "next").workers
    assert len(world.to("w3")) == heard
    assert told(world, "w3")[0] == "REST"


def test_a_round_is_reported_closed_again_and_again_and_counts_once(world):
    ps, _, _ = planned(world, rounds([["w1"], ["w2"], ["w3"]]))
    close_round(world, ps, generation=1)
    decisions = len(world.model.decisions)
    for _ in range(5):
        close_round(world, ps, generation=1)
        ps.say(version=7)
    world.wait(5)
    assert len(world.model.decisions) == decisions, "an old generation's gate says nothing of this one"
    assert world.model.decisions[-1].closed == 1
    assert told(world, "w2")[0] == "TRAIN"
    ps.say(generation=2, closed=0)
    assert len(world.model.decisions) == decisions
    close_round(world, ps, generation=2)
    assert told(world, "w3")[0] == "TRAIN"


def test_a_model_that_keeps_its_round_is_not_asked_again_for_the_same_close(world):
    def stubborn(fleet):
        return Plan({"w1": Steps(1)}, Gate(0), Fold("at_gate"), ("w1",), round=1, wake_at_s=1e6)

    ps, _, _ = planned(world, stubborn, workers=1)
    close_round(world, ps)
    decisions = len(world.model.decisions)
    world.wait(10)
    assert len(world.model.decisions) == decisions
    ps.say(generation=1, closed=2)
    assert world.model.decisions[-1].closed == 2


def test_a_gate_that_closes_with_every_step_does_not_call_the_model(world):
    def barrier(fleet):
        names = tuple(fleet.devices)
        return Plan({name: Steps(1) for name in names}, Gate(0), Fold("at_gate"), names)

    ps, evaluator, _ = planned(world, barrier)
    decisions = len(world.model.decisions)
    for closed in range(1, 200):
        ps.say(generation=1, closed=closed, version=closed)
    assert len(world.model.decisions) == decisions
    evaluator.evaluate(5, 1.0)
    assert world.model.decisions[-1].closed == 199, "but it may read the count when it is called"


def test_who_leaves_in_the_middle_of_a_round_begins_no_other_generation(world):
    """Those that have committed would commit again; the gate waits for who is left."""
    _, _, (_, w2, _) = planned(world, rounds([["w1", "w2", "w3"]]))
    generation = world.last("ps", "server").generation
    w2.leave()
    server = world.last("ps", "server")
    assert (server.generation, list(server.cohort)) == (generation, ["w1", "w3"])
    assert told(world, "w1") == ("TRAIN", generation, True)


def test_who_joins_in_the_middle_of_a_round_rests_and_the_others_hear_nothing(world):
    planned(world, rounds([["w1"]]), workers=2)
    before = {name: len(world.to(name)) for name in ("ps", "w1", "w2")}
    late = world.agent("worker", "w9").join()
    late.say(phase=W.READY)
    assert told(world, "w9") == ("REST", 0, False)
    kinds = [d.WhichOneof("kind") for d in world.to("ps")[before["ps"] :]]
    assert set(kinds) == {"next"}, "what goes into the newcomer's replies"
    assert len(world.to("w1")) == before["w1"]
    assert len(world.to("w2")) == before["w2"]


def test_the_model_is_called_when_a_round_loses_all_its_trainers(world):
    def plan(fleet):
        first = sorted(fleet.devices)[0]
        others = frozenset(fleet.devices) - {first}
        return Plan(
            {first: Steps(1)}, Gate(0), Fold("at_gate"), (first,), resting=others, round=int(first[1])
        )

    _, _, (w1, w2, w3) = planned(world, plan)
    w1.leave()
    assert told(world, "w2") == ("TRAIN", 2, True)
    w2.die()
    world.wait(15)
    assert told(world, "w3") == ("TRAIN", 3, True)
    w3.say(phase=W.FAILED, error="its disk broke")
    assert world.status().phase == pb.Status.WAITING
    back = world.agent("worker", "w1", "w1-2").join()
    back.say(phase=W.READY)
    assert told(world, "w1")[0] == "TRAIN"


def test_a_round_goes_on_after_the_scheduler_was_out_of_the_servers_sight(world):
    """The close is in every report: one that was lost with a stream comes with the next."""
    ps, _, _ = planned(world, rounds([["w1"], ["w2"]]))
    ps.cut()
    world.wait(3)
    ps.join()
    close_round(world, ps)
    assert told(world, "w2") == ("TRAIN", 2, True)
    assert world.last("ps", "server").generation == 2


def test_fedavg_draws_a_new_cohort_each_round_and_replays(tmp_path):
    world = World(tmp_path, make_model=make_model, start=7_654.321)
    ps, evaluator, workers = world.training(6, sync={"fedavg": {"fraction": 0.5}})
    drawn = set()
    for number in range(1, 8):
        world.wait(0.9)
        server = world.last("ps", "server")
        assert (server.generation, len(server.cohort)) == (number, 3)
        actions = {w.name: told(world, w.name)[0] for w in workers}
        assert {name for name, action in actions.items() if action == "TRAIN"} == set(server.cohort)
        drawn.add(tuple(server.cohort))
        for worker in workers:
            worker.say(
                phase=W.RESTING if worker.name not in server.cohort else W.TRAINING,
                steps=worker.report.steps + 8 * (worker.name in server.cohort),
                step_s=0.1,
            )
        evaluator.evaluate(number + 1, 1 / number)
        close_round(world, ps)
    assert len(drawn) > 1
    world.stop()
    world.wait(70)
    steps = list(replay(world.log_lines(), make_model))
    assert [step.event for step in steps if not step.is_same] == []


# ---- rest ------------------------------------------------------------------------------


def test_a_resting_worker_is_seen_as_such_and_has_no_interval(world):
    def plan(fleet):
        rest = frozenset({"w2"})
        return Plan({n: Grid(2.0) for n in fleet.devices if n != "w2"}, resting=rest, overlap=True)

    _, _, (w1, w2, _) = planned(world, plan)
    w1.say(steps=10)
    w2.say(phase=W.RESTING, time={"wait_s": 4.0})
    shown = {worker.name: worker for worker in world.status().workers}
    assert shown["w2"].report.phase == W.RESTING
    assert shown["w2"].report.time.wait_s == 4.0
    assert (shown["w1"].interval_s, shown["w2"].interval_s) == (2.0, 0.0)
    values = {
        (sample.name, sample.labels.get("worker")): sample.value
        for family in metrics.families(world.status())
        for sample in family.samples
    }
    assert values["offbeat_worker_resting", "w2"] == 1
    assert values["offbeat_worker_resting", "w1"] == 0


def test_rest_and_return_go_into_replies_as_well(world):
    resting = set()

    def plan(fleet):
        triggers = {name: Grid(2.0) for name in fleet.devices if name not in resting}
        return Plan(triggers, resting=frozenset(resting), overlap=True)

    _, evaluator, _ = planned(world, plan)
    resting.add("w2")
    evaluator.evaluate(2, 1.0)
    assert told(world, "w2")[0] == "REST"
    assert world.last("ps", "next").workers["w2"].action == D.REST
    assert world.last("w2").overlap, "what it has not committed may be committed as it leaves"
    resting.clear()
    evaluator.evaluate(3, 0.9)
    assert told(world, "w2")[0] == "TRAIN"
    assert world.last("ps", "next").workers["w2"].action == D.TRAIN
    assert told(world, "w2")[1] == 1, "without a gate nobody else is concerned"


def test_a_worker_that_dials_again_at_rest_is_told_the_same(world):
    _, _, (_, w2, _) = planned(world, rounds([["w1", "w3"]]))
    before = world.last("w2")
    w2.cut()
    world.wait(2)
    w2.join()
    assert world.last("w2") == before
    assert len(world.to("w2", "worker")) >= 2


def test_a_worker_that_returns_at_rest_after_its_lease_ended_rests_on(world):
    _, _, (_, w2, _) = planned(world, rounds([["w1", "w3"]]))
    w2.cut()
    world.wait(15)
    w2.join()
    w2.say(phase=W.RESTING)
    assert told(world, "w2")[0] == "REST"


def test_the_workers_losses_wait_for_nobody_who_has_not_been_drawn_yet(world):
    _, _, (w1, _, w3) = planned(world, rounds([["w1", "w3"], ["w2"]]), evaluator=False)
    w1.say(steps=10, samples=100, train_loss=2.0)
    assert not world.model.losses
    w3.say(steps=10, samples=100, train_loss=1.0)
    world.wait(10)
    assert world.model.losses[-1].value == pytest.approx(1.5)


# ---- groups, batches, weights -----------------------------------------------------------


def test_groups_reach_the_server_in_one_order_whatever_the_models(world):
    order = [0, 1]

    def plan(fleet):
        groups = [Group(("w3", "w1"), Gate(0, 4.0)), Group(("w2",), Gate(1))]
        triggers = {name: Steps(3) for name in fleet.devices}
        return Plan(triggers, fold=Fold("at_gate"), groups=tuple(groups[i] for i in order))

    _, evaluator, _ = planned(world, plan)
    server = world.last("ps", "server")
    assert [list(group.members) for group in server.groups] == [["w1", "w3"], ["w2"]]
    assert (server.groups[0].gate.slack, server.groups[0].gate.deadline_s) == (0, 4.0)
    assert not server.gate.HasField("slack")
    assert not world.last("w1").overlap
    sent = len(world.sent)
    order.reverse()
    evaluator.evaluate(2, 1.0)
    assert all(name == "ps" and d.WhichOneof("kind") == "keep_best" for _, name, d in world.sent[sent:])


def test_other_groups_are_another_generation(world):
    groups = [Group(("w1", "w2"), Gate(0)), Group(("w3",), Gate(0))]

    def plan(fleet):
        return Plan({n: Steps(3) for n in fleet.devices}, fold=Fold("at_gate"), groups=tuple(groups))

    _, evaluator, _ = planned(world, plan)
    groups[:] = [Group(("w1",), Gate(0)), Group(("w2", "w3"), Gate(0))]
    evaluator.evaluate(2, 1.0)
    assert world.last("ps", "server").generation == 2
    assert told(world, "w1") == ("TRAIN", 2, False)


def test_a_batch_of_its_own_goes_to_that_worker_only(world):
    batches = {"w1": 8}

    def plan(fleet):
        triggers = {name: Grid(2.0) for name in fleet.devices}
        return Plan(triggers, overlap=True, batches=dict(batches))

    _, evaluator, _ = planned(world, plan, training={"batch": 24})
    assert [world.last(name).batch for name in ("w1", "w2")] == [8, 24]
    plans, heard = len(world.plans()), len(world.to("w2"))
    batches["w1"] = 16
    evaluator.evaluate(2, 1.0)
    assert world.last("w1").batch == 16
    assert world.last("ps", "next").workers["w1"].batch == 16
    assert len(world.plans()) == plans + 1
    assert len(world.to("w2")) == heard
    assert told(world, "w1")[1] == 1


def test_samples_and_a_learning_rate_of_its_own_go_to_that_worker(tmp_path):
    world = World(tmp_path)
    rates = {"w1": 2.0}

    def plan(fleet):
        triggers = {name: Passes(2) for name in fleet.devices}
        return Plan(triggers, samples={"w2": 40}, rates=dict(rates))

    _, evaluator, _ = planned(world, plan, training={"learning_rate": 0.25})
    assert [world.last(name).learning_rate for name in ("w1", "w2")] == [0.5, 0.25]
    assert [world.last(name).draw for name in ("w1", "w2")] == [0, 40]
    made = next(line for line in world.decisions() if line["decision"] == "PlanMade")["plan"]
    assert (made["samples"], made["rates"]) == ({"w2": 40}, {"w1": 2.0})
    rates["w1"] = 3.0
    evaluator.evaluate(2, 1.0)
    assert world.last("w1").learning_rate == 0.75


def test_an_allotment_is_in_status_and_metrics(tmp_path):
    world = World(tmp_path)
    promised = Allotment(6.0, {"w1": 5.9, "w2": 5.8}, 2.0, 2.0, 0.025)

    def plan(fleet):
        triggers = {"w1": Passes(3), "w2": Passes(1)}
        return Plan(triggers, Gate(0, 6.6), samples={"w1": 80, "w2": 240}, allotment=promised)

    planned(world, plan, 2)
    status = world.status()
    assert status.allotment.cycle_s == 6.0
    assert [(w.allotted_passes, w.allotted_samples, w.allotted_s) for w in status.workers] == [
        (3, 80, 5.9),
        (1, 240, 5.8),
    ]
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.families(status)
        for sample in family.samples
    }
    assert shown["offbeat_allotment_max_staleness",] == 2.0
    assert shown["offbeat_allotment_idle_share",] == 0.025
    assert shown["offbeat_worker_allotted_samples", "w2"] == 240
    assert status.allotment.max_solve_s == 0.0  # without a stopwatch


def test_batches_and_local_updates_that_were_allotted_are_shown_beside_those_that_were_made(tmp_path):
    world = World(tmp_path)
    promised = Allotment(2.0, {}, 12.5, 8.33, 0.0, updates={"w1": 4.5, "w2": 17.0, "w3": 17.0})

    def plan(fleet):
        triggers = {name: Grid(2.0) for name in fleet.devices}
        return Plan(triggers, overlap=True, batches={"w1": 8, "w2": 96}, allotment=promised)

    ps, _, workers = planned(world, plan, 3)
    assert world.status().allotment.observed_max_staleness == 0.0, "nobody has committed yet"
    workers[1].say(steps=40, max_batch=64)
    counts = [
        pb.CommitCount(worker=f"w{k}", commits=2, steps=steps) for k, steps in ((1, 8), (2, 36), (3, 30))
    ]
    ps.say(counts=counts)
    status = world.status()
    assert [(w.batch, w.allotted_updates, w.local_updates) for w in status.workers] == [
        (8, 4.5, 4.0),
        (64, 17.0, 18.0),
        (32, 17.0, 15.0),
    ]
    found = status.allotment
    assert (found.max_staleness, found.observed_max_staleness) == (12.5, 14.0)
    assert found.observed_average_staleness == pytest.approx(28 / 3)
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.families(status)
        for sample in family.samples
    }
    assert shown["offbeat_worker_batch", "w2"] == shown["offbeat_worker_max_batch", "w2"] == 64
    assert shown["offbeat_worker_allotted_updates", "w1"] == 4.5
    assert shown["offbeat_allotment_observed_max_staleness",] == 14.0
    assert shown["offbeat_allotment_observed_average_staleness",] == pytest.approx(28 / 3)


def test_a_device_that_makes_smaller_updates_than_planned_is_named_until_the_plan_fits_it(tmp_path):
    world = World(tmp_path)
    batches = {"w1": 24}

    def plan(fleet):
        return Plan({name: Grid(2.0) for name in fleet.devices}, overlap=True, batches=dict(batches))

    _, evaluator, workers = planned(world, plan, 2)
    warning = "w1 makes local updates of 12 samples, not 24: more do not fit it"
    for steps in (10, 20, 30):
        workers[0].say(steps=steps, max_batch=12)
    assert world.status().warnings == [warning]
    assert world.said().count(warning) == 1
    batches["w1"] = 12
    evaluator.evaluate(2, 1.0)
    workers[0].say(steps=40)
    assert world.status().warnings == []
    workers[1].say(steps=40, max_batch=32)
    assert world.status().warnings == [], "the run's batch fits it"
    workers[1].say(max_batch=1)
    assert len(world.status().warnings) == 1
    workers[1].leave()
    assert world.status().warnings == []


def _allotting(stopwatch, tmp_path, seconds):
    """A run of rounds, each allotted anew; solving number n takes `seconds[n]`. Returns (world, ps)."""
    world = World(tmp_path, stopwatch=lambda: stopwatch["s"])
    state = {"round": 0, "solved": 0}
    lasts = {}

    def plan(fleet):
        state["round"] += fleet.closed
        if state["round"] not in lasts:
            lasts[state["round"]] = Allotment(6.0, {"w1": 5.9, "w2": 5.8}, 2.0, 2.0, 0.025)
            stopwatch["s"] += seconds[state["solved"]]
            state["solved"] += 1
        stopwatch["s"] += 0.001
        triggers = {"w1": Passes(3), "w2": Passes(1)}
        return Plan(
            triggers,
            Gate(0, 6.6),
            Fold("at_gate", "data"),
            ("w1", "w2"),
            samples={"w1": 80, "w2": 240},
            round=state["round"],
            allotment=lasts[state["round"]],
        )

    ps, evaluator, _ = planned(world, plan, 2)
    return world, ps, evaluator


def test_the_last_and_the_slowest_solution_of_an_allocation_are_in_status_and_metrics(tmp_path):
    world, ps, evaluator = _allotting({"s": 50.0}, tmp_path, [0.5, 0.25, 0.125])
    assert world.status().allotment.solve_s == pytest.approx(0.501)
    ps.say(generation=1, closed=1)
    evaluator.evaluate(2, 1.0)  # the model is asked, and solves nothing
    status = world.status()
    assert status.allotment.solve_s == pytest.approx(0.251)
    assert status.allotment.max_solve_s == pytest.approx(0.501)
    shown = {s.name: s.value for family in metrics.families(status) for s in family.samples}
    assert shown["offbeat_allotment_solve_seconds"] == pytest.approx(0.251)
    assert shown["offbeat_allotment_solve_max_seconds"] == pytest.approx(0.501)
    logged = [line["solve_s"] for line in map(json.loads, world.log_lines()) if "solve_s" in line]
    assert logged == pytest.approx([0.501, 0.251])


def test_what_was_measured_changes_no_decision(tmp_path):
    quick, slow = (
        _allotting({"s": 0.0}, tmp_path / str(seconds), [seconds, seconds])[0] for seconds in (0.001, 3.0)
    )
    assert quick.decisions() == slow.decisions()


def test_local_updates_that_were_made_are_passes_where_samples_are_allotted_else_steps(tmp_path):
    world, ps, _ = _allotting({"s": 0.0}, tmp_path, [0.0, 0.0])
    counts = {"w1": pb.CommitCount(worker="w1", commits=1, steps=9, samples=240)}
    counts["w2"] = pb.CommitCount(worker="w2", commits=2, steps=10, samples=720)
    ps.say(counts=list(counts.values()))
    made = {worker.name: worker.local_updates for worker in world.status().workers}
    assert made == {"w1": 3.0, "w2": 1.5}

    plain = World()
    ps, _, _ = planned(plain, lambda fleet: Plan({name: Steps(4) for name in fleet.devices}), 2)
    ps.say(counts=list(counts.values()))
    ps.say(counts=[pb.CommitCount(worker="w2", commits=4, steps=22, samples=1400)])
    status = plain.status()
    assert {worker.name: worker.local_updates for worker in status.workers} == {"w1": 9.0, "w2": 6.0}
    shown = {
        (s.name, *s.labels.values()): s.value for family in metrics.families(status) for s in family.samples
    }
    assert shown["offbeat_worker_local_updates", "w2"] == 6.0


@pytest.mark.parametrize("weight", ["equal", "samples", "data", "per_step"])
def test_each_weight_and_the_power_of_staleness_reach_the_server(world, weight):
    fold = Fold(weight=weight, server_rate=0.5, staleness_power=0.75)
    planned(world, lambda fleet: grid_plan(fleet, 2.0, fold=fold))
    sent = world.last("ps", "server").fold
    assert common.Fold.Weight.Name(sent.weight) == weight.upper()
    assert (sent.server_rate, sent.staleness_power) == (0.5, 0.75)


def test_all_of_a_plan_is_in_the_log(tmp_path):
    world = World(tmp_path)
    groups = (Group(("w1",), Gate(0, 9.0)),)

    def plan(fleet):
        return Plan(
            {"w1": Steps(2)},
            fold=Fold("at_gate", "per_step", staleness_power=0.5),
            groups=groups,
            resting=frozenset({"w3", "w2"}),
            round=3,
            batches={"w1": 5},
        )

    planned(world, plan)
    made = next(line for line in world.decisions() if line["decision"] == "PlanMade")["plan"]
    assert made["triggers"] == {"w1": {"Steps": {"steps": 2}}}
    assert made["groups"] == [{"members": ["w1"], "gate": {"slack": 0, "deadline_s": 9.0}}]
    assert made["resting"] == ["w2", "w3"]
    assert made["round"] == 3
    assert made["batches"] == {"w1": 5}
    assert made["fold"]["weight"] == "per_step"
    assert made["fold"]["staleness_power"] == 0.5


def test_a_plan_that_can_not_be_followed_ends_the_run_and_names_the_device(world):
    planned(world, lambda fleet: grid_plan(fleet, 2.0, resting=frozenset({"w2"})))
    status = world.status()
    assert status.phase in (pb.Status.FINISHING, pb.Status.IDLE)
    assert "'w2' a trigger and lets it rest" in status.message


def test_a_model_that_goes_on_changing_its_plan_hides_nothing_of_the_next(world):
    mine = {"w1": Steps(1)}

    def plan(fleet):
        return Plan(mine)

    _, evaluator, _ = planned(world, plan, workers=1)
    plans = len(world.plans())
    mine["w1"] = Steps(2)
    evaluator.evaluate(2, 1.0)
    assert len(world.plans()) == plans + 1
    assert world.last("w1").trigger.steps == 2
