"""A run on the parameter server's data set: who is told what, and when the run is refused."""

from __future__ import annotations

import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import Settings
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from offbeat_scheduler.sync import Device, Fleet, Fold, Gate, Passes, Plan
from support.scheduler_world import FakeModel, World

D = common.WorkerDirective
W = pb.WorkerReport
SYNC = {"mel-async": {"mode": "parallelized", "cycle_s": 8.0}}
HELD = 1000
REMEDY = "start it with samples: FILE"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, make_model=lambda spec, run: make_model(spec, run))


def server(world, samples=HELD, incarnation=None, name="ps"):
    ps = world.agent("ps", name, incarnation)
    ps.hello.samples = samples
    return ps.join()


def began(world, workers=3):
    ps = server(world)
    trainers = [world.agent("worker", f"w{i}").join() for i in range(1, workers + 1)]
    world.submit(workers=workers, sync=SYNC, training={"batch": 8})
    ps.say(seeded=True, version=1)
    for trainer in trainers:
        trainer.say(phase=W.READY)
        trainer.report.phase = W.TRAINING
    return ps, trainers


def shares(world):
    return dict(world.last("ps", "server").shares)


def cycle(world, ps, trainers):
    """Each has trained on what it was dealt, 0.01 s a sample, which came in 0.001 s; and the gate closes."""
    for trainer in trainers:
        told = world.last(trainer.name)
        samples = trainer.report.samples + told.draw * told.trigger.passes
        trainer.say(
            samples=samples,
            time={"compute_s": 0.01 * samples},
            fetched_samples=trainer.report.fetched_samples + told.draw,
            fetch_s=0.001 * (trainer.report.fetched_samples + told.draw),
        )
    ps.say(generation=world.last("ps", "server").generation, closed=1)


def test_workers_are_told_at_once_that_samples_will_be_dealt_and_then_how_many(world):
    ps, trainers = began(world)
    assert all(directive.parallelized for directive in world.to("w1", "worker")[1:])
    assert shares(world) == {f"w{i}": 64 for i in (1, 2, 3)}
    assert world.last("ps", "server").seed == 1
    assert world.last("w1").draw == 64
    cycle(world, ps, trainers)
    told = {trainer.name: world.last(trainer.name) for trainer in trainers}
    assert shares(world) == {name: directive.draw for name, directive in told.items()}
    assert sum(shares(world).values()) == HELD
    assert {directive.generation for directive in told.values()} == {world.last("ps", "server").generation}


def test_the_server_hears_of_a_deal_before_its_learners(world):
    ps, trainers = began(world)
    before = len(world.sent)
    cycle(world, ps, trainers)
    order = [(name, directive.WhichOneof("kind")) for _, name, directive in world.sent[before:]]
    assert order.index(("ps", "server")) < order.index(("w1", "worker"))


def test_who_leaves_keeps_its_share_so_that_nobody_elses_changes(world):
    ps, trainers = began(world)
    cycle(world, ps, trainers)
    before, generation = shares(world), world.last("ps", "server").generation
    trainers[0].leave()
    assert world.status().workers[0].attached is False
    assert (shares(world), world.last("ps", "server").generation) == (before, generation)
    cycle(world, ps, trainers[1:])
    assert shares(world).keys() == {"w2", "w3"}
    assert sum(shares(world).values()) == HELD


@pytest.mark.parametrize("first", ["server", "run"])
def test_a_run_whose_server_holds_no_data_is_refused_with_the_remedy(world, first):
    if first == "server":
        server(world, samples=0)
    world.submit(sync=SYNC)
    if first == "run":
        assert world.status().phase == pb.Status.WAITING
        server(world, samples=0)
    status = world.status()
    assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.FAILED)
    assert "parameter server 'ps' holds no data set" in status.message
    assert REMEDY in status.message
    assert world.last("ps", "server").run_id == ""


def test_a_server_that_comes_back_without_its_data_ends_the_run_and_says_why(world):
    ps, trainers = began(world)
    cycle(world, ps, trainers)
    ps.die()
    server(world, samples=0, incarnation="ps-2")
    world.wait(10)
    status = world.status()
    assert status.outcome == pb.Status.FAILED
    assert REMEDY in status.message


def test_a_server_that_comes_back_with_its_data_deals_anew(world):
    ps, trainers = began(world)
    cycle(world, ps, trainers)
    before = world.last("ps", "server")
    ps.die()
    again = server(world, incarnation="ps-2")
    after = world.last("ps", "server")
    assert after.resume
    assert after.generation == before.generation + 1
    assert after.shares == before.shares
    again.say(seeded=True, version=5)
    assert world.last("w1").generation == after.generation
    assert world.status().phase == pb.Status.TRAINING


def test_a_second_server_without_data_disturbs_nobody(world):
    began(world)
    server(world, samples=0, name="ps-other")
    assert world.status().phase == pb.Status.TRAINING


def test_its_log_replays_to_the_same_decisions(world):
    ps, trainers = began(world)
    for _ in range(3):
        world.wait(4)
        cycle(world, ps, trainers)
    trainers[1].leave()
    cycle(world, ps, [trainers[0], trainers[2]])
    world.stop()
    world.wait(100)
    steps = list(replay(world.log_lines(), lambda spec, run: make_model(spec, run)))
    assert len(steps) > 20
    assert all(step.recorded == step.replayed for step in steps)


# ---- a model's own ------------------------------------------------------------------------

DEVICES = {name: Device(name) for name in ("a", "b")}


def plan(shares, samples=None):
    given = dict.fromkeys(DEVICES, 5) if samples is None else samples
    return Plan(
        {name: Passes(1) for name in DEVICES}, Gate(slack=0), Fold("at_gate"), samples=given, shares=shares
    )


@pytest.mark.parametrize(
    ("bad", "held", "parallelized", "said"),
    [
        (plan({"a": 5}), 100, True, "share for 'b' is None, and its samples are 5"),
        (plan({"a": 5, "b": 6}), 100, True, "share for 'b' is 6, and its samples are 5"),
        (plan({"a": 5, "b": 5}, {"a": 5}), 100, True, "share for 'b' is 5, and its samples are None"),
        (plan({"a": 5, "b": 5, "away": 5}), 14, True, "deals 15 samples; the parameter server holds 14"),
        (plan({"a": 5, "b": 5, "away": 0}), 100, True, "share for 'away' is 0"),
        (plan({"a": 5, "b": 5}), 100, False, "its model is not parallelized"),
    ],
)
def test_a_deal_that_can_not_be_made_is_refused(bad, held, parallelized, said):
    from offbeat_scheduler.plan_check import check

    with pytest.raises(ValueError, match=said):
        check(bad, Fleet(0.0, DEVICES, samples=held), parallelized=parallelized)
    check(plan({"a": 5, "b": 5, "away": 5}), Fleet(0.0, DEVICES, samples=15), parallelized=True)


class Dealing(FakeModel):
    parallelized = True


def test_another_deal_is_another_generation_so_that_nobody_mixes_two():
    dealt = {"w1": 5, "w2": 6}

    def make(spec, run):
        model = Dealing(Settings(), run)
        model.plan = lambda fleet: Plan(
            {name: Passes(1) for name in fleet.devices},
            Gate(slack=0),
            Fold("at_gate"),
            samples={name: dealt[name] for name in fleet.devices},
            shares=dict(dealt),
            wake_at_s=fleet.now_s + 5,
        )
        return model

    world = World(make_model=make)
    ps = server(world)
    trainers = [world.agent("worker", f"w{i}").join() for i in (1, 2)]
    world.submit(workers=2)
    ps.say(seeded=True, version=1)
    for trainer in trainers:
        trainer.say(phase=W.READY)
    world.wait(12)
    first = world.last("ps", "server")
    assert (first.generation, dict(first.shares)) == (1, dealt)
    dealt["w2"] = 7
    world.wait(6)
    second = world.last("ps", "server")
    assert (second.generation, dict(second.shares)) == (2, dealt)
    assert [(world.last(name).generation, world.last(name).draw) for name in ("w1", "w2")] == [(2, 5), (2, 7)]
