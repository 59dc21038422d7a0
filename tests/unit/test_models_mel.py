"""Mobile edge learning in virtual time: cycles that everybody fills, whoever comes, goes or slows down."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.learners import RESTS
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet, Gate, Passes
from support.virtual import Watched, run_settings

T = 6.0
HELD = 640
BATCH = 8
MODELS = ("mel-async", "mel-sync", "mel-eta")


def make(name, **options):
    run = run_settings({name: options}, T, training={"batch": BATCH})
    return make_model(run.sync, run)


class Learning(Watched):
    def rounds(self):
        """The first plan of each cycle, with its time."""
        firsts = {}
        for fleet, plan in self.seen:
            firsts.setdefault(plan.round, (fleet.now_s, plan))
        return list(firsts.values())


FLEET = [
    VirtualDevice("slow-1", step_s=0.2, commit_s=0.1),
    VirtualDevice("slow-2", step_s=0.2, commit_s=0.1),
    VirtualDevice("twice", step_s=0.1, commit_s=0.1),
    VirtualDevice("fast", step_s=0.05, commit_s=0.1),
]


def ran(name, fleet=FLEET, max_s=60, **options):
    watched = Learning(make(name, **options))
    result = simulate(
        watched.run,
        fleet,
        PowerLaw(0.02, samples=HELD),
        max_s=max_s,
        model=watched,
        report_every_s=0.5,
        control_s=0.01,
    )
    return watched, result


def busy_s(plan, fleet):
    """What the planned passes take on these devices."""
    speeds = {device.name: device.step_s / BATCH for device in fleet}
    return {
        name: speeds[name] * trigger.passes * plan.samples[name] for name, trigger in plan.triggers.items()
    }


def test_the_first_cycle_measures_and_the_next_ones_are_filled():
    watched, _ = ran("mel-async")
    first, *rest = [plan for _, plan in watched.rounds()]
    assert set(first.triggers.values()) == {Passes(1)}
    assert set(first.samples.values()) == {8 * BATCH}
    for plan in rest[1:]:
        for name, seconds in busy_s(plan, FLEET).items():
            assert seconds + 0.1 == pytest.approx(T, rel=0.1), name
        assert HELD < sum(plan.samples.values()) < 3 * HELD  # about half of what they hold
        assert plan.gate.slack == 0
        assert (plan.fold.when, plan.fold.weight) == ("at_gate", "data")


def test_the_plan_promises_what_it_holds():
    watched, _ = ran("mel-async")
    for _, plan in watched.rounds()[2:]:
        passes = [trigger.passes for trigger in plan.triggers.values()]
        assert plan.allotment.max_staleness == max(passes) - min(passes)
        assert plan.allotment.busy_s.keys() == plan.triggers.keys()
        assert plan.allotment.idle_share < 0.03


def test_when_a_learner_slows_down_the_plan_follows_within_two_cycles():
    slowing = [*FLEET[:3], replace(FLEET[3], speeds=((25.0, 0.1),))]
    watched, _ = ran("mel-async", slowing)
    rounds = watched.rounds()
    changed = next(k for k, (at_s, _) in enumerate(rounds) if at_s >= 25.0)  # the first that begins after it
    after = [*FLEET[:3], replace(FLEET[3], step_s=0.1)]
    for _, plan in rounds[changed + 1 :]:
        assert busy_s(plan, after)["fast"] + 0.1 == pytest.approx(T, rel=0.1)


def test_synchronous_learners_all_make_the_same_passes():
    watched, _ = ran("mel-sync")
    for _, plan in watched.rounds()[1:]:
        assert len({trigger.passes for trigger in plan.triggers.values()}) == 1
        assert plan.allotment.max_staleness == 0


def test_equal_samples_are_equal_and_who_has_no_update_is_told_so():
    watched, _ = ran("mel-eta", samples=800)
    for _, plan in watched.rounds()[1:]:
        assert set(plan.samples.values()) == {200}
    late = [*FLEET[:3], VirtualDevice("snail", step_s=2.0, commit_s=0.1)]
    watched, result = ran("mel-eta", late, max_s=120, samples=800)
    plans = [plan for _, plan in watched.rounds()[2:]]
    assert plans
    resting = [plan for plan in plans if "snail" in plan.resting]
    assert all("snail rests in this cycle" in " ".join(plan.notes) for plan in resting)
    # Else it is measured, now and then: one pass over a few batches.
    assert {plan.triggers["snail"] for plan in plans if plan not in resting} == {Passes(1)}
    assert {plan.samples["snail"] for plan in plans if plan not in resting} == {8 * BATCH}
    assert len(resting) >= len(plans) * RESTS // (RESTS + 2)
    assert result.devices["twice"].commits > 3


@pytest.mark.parametrize("name", MODELS)
def test_who_joins_is_measured_and_then_takes_part(name):
    joining = [*FLEET[:3], replace(FLEET[3], joins_s=15.0)]
    watched, result = ran(name, joining)
    theirs = [plan for _, plan in watched.rounds() if "fast" in plan.triggers]
    assert theirs[0].samples["fast"] == 8 * BATCH
    assert theirs[0].triggers["fast"] == Passes(1)
    assert all(len(plan.triggers) > 1 for plan in theirs[1:])
    assert len(theirs) > 4
    assert result.devices["fast"].commits >= 4


@settings(deadline=None, max_examples=8)
@given(
    name=st.sampled_from(MODELS),
    steps=st.lists(st.floats(0.02, 1.5), min_size=1, max_size=5),
    leaves=st.sampled_from([None, 9.0, 20.0]),
    joins=st.sampled_from([0.0, 4.0, 25.0]),
    jitter=st.sampled_from([0.0, 0.2]),
)
def test_cycles_go_on_and_are_not_waited_for(name, steps, leaves, joins, jitter):
    fleet = [VirtualDevice(f"d{k}", step_s=step, commit_s=0.1, jitter=jitter) for k, step in enumerate(steps)]
    fleet[0] = replace(fleet[0], leaves_s=leaves if len(fleet) > 1 else None)
    fleet[-1] = replace(fleet[-1], joins_s=joins if len(fleet) > 2 else 0.0)
    watched, _ = ran(name, fleet, max_s=120)
    starts = [at_s for at_s, _ in watched.rounds()]
    assert starts[-1] > 80
    # A cycle, its grace, the step under way, and at worst a lease.
    assert max(later - earlier for earlier, later in pairwise(starts)) < 1.1 * T + 10 + 2 * max(steps) + 1
    # Where everybody rests there is no commit that could close a gate.
    assert all(plan.gate == Gate(0, 1.1 * T) for _, plan in watched.seen if plan.triggers)


def test_bounds_that_cannot_be_kept_are_refused_or_said():
    with pytest.raises(OffbeatError, match=r"min_samples.*crossed"):
        make("mel-async", min_samples=50, max_samples=20)
    with pytest.raises(OffbeatError, match="cycle_s"):
        make("mel-sync", cycle_s=0)
    model = make("mel-async", min_samples=600)
    devices = {"a": Device("a", shard_samples=HELD, pull_s=0.1)}
    model.decide(Fleet(0.0, devices))
    devices["a"] = replace(devices["a"], samples=64, trained_s=6.4, commit_s=0.2)  # 0.1 s a sample
    plan = model.decide(Fleet(6.4, devices, closed=1))
    assert plan.resting == {"a"}
    assert "58 samples at most, and 600 are the least" in plan.notes[0]


@pytest.mark.parametrize("per_sample_s", [1e-9, 1e-7, 1e-5])
def test_learners_that_could_make_any_number_of_passes_still_get_a_plan(per_sample_s):
    model = make("mel-async", cycle_s=60.0)
    devices = {name: Device(name, shard_samples=400, commit_s=0.1) for name in ("a", "b", "c")}
    model.decide(Fleet(0.0, devices))
    devices = {
        name: replace(device, samples=6400, trained_s=6400 * per_sample_s * factor)
        for factor, (name, device) in enumerate(devices.items(), 1)
    }
    plan = model.decide(Fleet(60.0, devices, closed=1))
    check(plan, Fleet(60.0, devices, closed=1))
    assert plan.triggers.keys() == devices.keys()
    assert plan.allotment.idle_share < 0.03


def test_who_was_too_slow_is_measured_again_some_cycles_later():
    """Here it is the only one, so that no other's commit closes the cycles."""
    hot = [VirtualDevice("a", step_s=3.0, commit_s=0.1, speeds=((30.0, 0.1),))]
    watched, result = ran("mel-async", hot, max_s=120, min_samples=40)
    rests = [(fleet.now_s, plan) for fleet, plan in watched.seen if plan.resting]
    assert (RESTS - 1) * T <= rests[-1][0] - rests[0][0] <= RESTS * T
    assert all("rests in this cycle" in plan.notes[0] for _, plan in rests)
    at_s, last = watched.rounds()[-1]
    assert at_s > 100
    assert busy_s(last, [replace(hot[0], step_s=0.1)])["a"] == pytest.approx(T, rel=0.1)
    assert result.devices["a"].commits > 8
