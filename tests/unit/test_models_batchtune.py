"""BatchTune: batches by speed, with a total that stands."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.r2sp import StepCost, allot, fixed_part
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet, Steps
from support.virtual import run_settings

BATCH = 32


class World:
    """Devices whose step time follows their batch: fixed_s + sample_s * batch."""

    def __init__(self, costs, sync="batchtune-bsp", period_s=10.0):
        run = run_settings(sync, period_s, training={"batch": BATCH})
        self.model = make_model(run.sync, run)
        self.costs = dict(costs)  # name: (fixed_s, sample_s)
        self.steps = dict.fromkeys(self.costs, 0.0)
        self.fits = {}  # samples at a time, where they are bounded
        self.noise = lambda name: 1.0
        self.now_s = 0.0
        self.plan = None
        self.history = []
        self.decide()

    def step_s(self, name):
        fixed_s, sample_s = self.costs[name]
        batch = self.plan.batches.get(name, BATCH) if self.plan else BATCH
        return fixed_s + sample_s * min(batch, self.fits.get(name, batch))

    def decide(self):
        devices = {
            name: Device(
                name,
                steps=int(self.steps.setdefault(name, 0.0)),
                step_s=self.step_s(name) * self.noise(name) if self.steps[name] >= 1 else 0.0,
                max_batch=self.fits.get(name, 0),
            )
            for name in self.costs
        }
        fleet = Fleet(self.now_s, devices)
        self.plan = self.model.decide(fleet)
        check(self.plan, fleet)
        if devices:
            room = sum(self.fits.get(name, 10**6) for name in devices)
            assert sum(self.plan.batches.values()) == min(BATCH * len(devices), room)
            assert set(self.plan.batches) == set(devices)
            assert min(self.plan.batches.values()) >= 1
        if not self.history or self.plan.batches != self.history[-1]:
            self.history.append(dict(self.plan.batches))

    def to(self, when_s):
        while self.now_s < when_s:
            self.now_s += 0.5
            slowest_s = max((self.step_s(name) for name in self.costs), default=1.0)
            for name in self.costs:
                self.steps[name] = self.steps.get(name, 0.0) + 0.5 / slowest_s
            self.decide()


def sample_times(**step_s):
    """Devices without a fixed part, by the seconds that a step at the run's batch takes."""
    return {name: (0.0, seconds / BATCH) for name, seconds in step_s.items()}


# ---- the allotment ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "batches"),
    [([1.0, 1.0], [32, 32]), ([1.0, 3.0], [48, 16]), ([0.1, 0.1, 0.3], [41, 41, 14]), ([1.0], [32])],
)
def test_without_a_fixed_part_it_is_the_sources_formula(times, batches):
    costs = {f"d{i}": StepCost(seconds, BATCH) for i, seconds in enumerate(times)}
    total = BATCH * len(times)
    made = allot(total, costs, {})
    assert list(made.values()) == batches
    for seconds, batch in zip(times, made.values(), strict=True):
        source = int(total / (seconds * math.fsum(1 / other for other in times)))
        assert 0 <= batch - source <= 1


def test_with_a_fixed_part_all_end_a_step_at_the_same_time():
    costs = {"a": StepCost(0.1, 32, fixed=16.0), "b": StepCost(0.4, 32, fixed=8.0), "c": StepCost(0.2, 32)}
    made = allot(96, costs, {})
    times = [cost.at(made[name]) for name, cost in costs.items()]
    assert max(times) / min(times) < 1.1


def test_nobody_gets_more_than_it_holds_while_the_others_can_take_it():
    costs = {"small": StepCost(0.1, 32), "b": StepCost(0.4, 32), "c": StepCost(0.4, 32)}
    assert allot(96, costs, {"small": 10, "b": 500}) == {"small": 10, "b": 43, "c": 43}
    assert sum(allot(96, costs, {"small": 10, "b": 10, "c": 10}).values()) == 96


def test_what_does_not_fit_a_device_the_others_take():
    world = World(sample_times(a=0.1, b=0.3, c=0.3))
    world.to(20)
    assert world.plan.batches["a"] > 40
    world.fits["a"] = 20  # it ran out of memory
    world.decide()
    assert world.plan.batches == {"a": 20, "b": 38, "c": 38}
    world.to(60)
    assert world.plan.batches == {"a": 20, "b": 38, "c": 38}
    world.fits |= {"b": 20, "c": 20}
    world.to(100)
    assert world.plan.batches == {"a": 20, "b": 20, "c": 20}


def test_a_bound_that_is_known_holds_before_speeds_are():
    model = World({}).model
    plan = model.decide(Fleet(0.0, {"a": Device("a", max_batch=8), "b": Device("b")}))
    assert plan.batches == {"a": 8, "b": BATCH}


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 1e3), st.integers(1, 1000), st.floats(0, 500), st.integers(0, 300)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 300),
)
def test_the_total_is_exact_and_everyone_has_a_sample(devices, batch):
    costs = {f"d{i}": StepCost(seconds, at, fixed) for i, (seconds, at, fixed, _) in enumerate(devices)}
    most = {f"d{i}": held for i, (*_, held) in enumerate(devices) if held}
    made = allot(batch * len(costs), costs, most)
    assert sum(made.values()) == batch * len(costs)
    assert min(made.values()) >= 1


@given(st.floats(0, 300), st.integers(1, 200), st.integers(1, 200), st.floats(1e-3, 1))
def test_two_batches_that_differ_enough_tell_the_fixed_part(fixed, small, large, sample_s):
    costs = [StepCost(sample_s * (fixed + batch), batch) for batch in (small, large)]
    found = fixed_part(*costs, most=512.0)
    if max(small, large) < 1.5 * min(small, large):
        assert found is None
    else:
        assert found == pytest.approx(fixed, rel=1e-3, abs=1e-3)


# ---- in a run --------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "steps"), [("batchtune-bsp", 1), ("batchtune-fixed-adacomm:6", 6)])
def test_batches_follow_speed_and_updates_count_by_samples(sync, steps):
    world = World(sample_times(slow=0.3, fast1=0.1, fast2=0.1), sync)
    assert set(world.plan.batches.values()) == {BATCH}
    world.to(5)
    assert world.plan.batches == {"fast1": 41, "fast2": 41, "slow": 14}
    assert set(world.plan.triggers.values()) == {Steps(steps)}
    assert world.plan.gate.slack == 0
    assert (world.plan.fold.when, world.plan.fold.weight) == ("at_gate", "samples")


def test_what_was_measured_at_the_tuned_batch_is_not_taken_for_the_runs():
    """Else it would swing: at their tuned batches all take the same time."""
    world = World(sample_times(slow=0.3, fast=0.1))
    world.to(200)
    assert world.history[1:] == [{"fast": 48, "slow": 16}]


def test_a_fixed_part_is_found_from_two_batches():
    world = World({"slow": (0.2, 0.4 / 32), "fast": (0.02, 0.1 / 32)})
    world.to(100)
    times = [world.step_s(name) for name in world.costs]
    assert max(times) / min(times) < 1.12


def test_jitter_changes_no_batches():
    world = World(sample_times(**{f"d{i:02}": 0.1 + 0.05 * (i % 4) for i in range(12)}))
    world.to(20)
    made = len(world.history)
    turn = iter(range(10**9))
    world.noise = lambda name: (0.9, 1.1, 1.0, 0.95, 1.07)[next(turn) % 5]
    world.to(300)
    assert len(world.history) <= made + 1


def test_a_device_that_gets_slower_is_followed_within_two_check_periods():
    world = World(sample_times(a=0.1, b=0.1))
    world.to(50)
    assert world.plan.batches == {"a": 32, "b": 32}
    world.costs.update(sample_times(b=0.3))
    world.to(75)
    assert world.plan.batches["a"] / world.plan.batches["b"] == pytest.approx(3, rel=0.1)


def test_a_joiner_of_unknown_speed_counts_as_a_typical_one_at_first():
    world = World(sample_times(a=0.1, b=0.3))
    world.to(20)
    world.costs.update(sample_times(new=0.9))
    world.decide()
    assert world.plan.batches["a"] > world.plan.batches["new"] > world.plan.batches["b"]
    world.to(60)
    assert world.plan.batches["a"] / world.plan.batches["new"] == pytest.approx(9, rel=0.2)


def test_when_somebody_leaves_the_others_share_the_new_total_at_once():
    world = World(sample_times(a=0.1, b=0.2, c=0.4))
    world.to(20)
    del world.costs["a"]
    world.decide()
    assert sum(world.plan.batches.values()) == 2 * BATCH
    assert world.plan.batches["b"] / world.plan.batches["c"] == pytest.approx(2, rel=0.15)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"),
            st.sampled_from(["join", "leave", "change"]),
            st.floats(0, 1),
            st.floats(1e-4, 0.1),
        ),
        max_size=12,
    )
)
def test_whatever_the_fleet_does_the_total_is_the_runs_batch_for_each(events):
    world = World({"a": (0.0, 0.01)})
    for name, event, fixed_s, sample_s in events:
        if event == "leave":
            world.costs.pop(name, None)
            world.steps.pop(name, None)
        elif event == "join" or name in world.costs:
            world.costs[name] = (fixed_s, sample_s)
        world.to(world.now_s + 7)
