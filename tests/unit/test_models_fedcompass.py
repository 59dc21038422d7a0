"""FedCompass: groups whose members arrive together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.arrivals import Pace, group
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet
from support.virtual import run_settings

PERIOD_S = 10.0


def fedcompass(**options):
    run = run_settings({"fedcompass": options}, PERIOD_S)
    return make_model(run.sync, run)


def devices(steps=100, **step_s):
    return {name: Device(name, steps=steps, step_s=seconds, commit_s=0.1) for name, seconds in step_s.items()}


def decide(model, now_s, fleet):
    now = Fleet(now_s, fleet)
    plan = model.decide(now)
    check(plan, now)
    return plan


def members(plan):
    return [set(group.members) for group in plan.groups]


def taus(plan):
    return {name: trigger.steps for name, trigger in plan.triggers.items()}


# ---- groups ------------------------------------------------------------------------------


def test_whoever_can_make_the_least_steps_in_the_fastest_ones_cycle_is_in_its_group():
    paces = {"slow": Pace(0.3, 0.1), "fast": Pace(0.1, 0.1), "middle": Pace(0.2, 0.1)}
    (only,) = group(paces, 4, 20)
    assert only.steps == {"fast": 20, "middle": 10, "slow": 6}
    assert only.cycle_s == pytest.approx(2.1)


def test_a_slow_group_arrives_together_with_a_later_cycle_of_the_fast_one():
    paces = {"fast": Pace(0.1, 0.0), "slow": Pace(1.5, 0.0), "stone": Pace(9.0, 0.0)}
    first, second, third = group(paces, 4, 20)
    assert (first.cycle_s, second.cycle_s, third.cycle_s) == pytest.approx((2.0, 14.0, 82.0))
    assert (first.steps, second.steps, third.steps) == ({"fast": 20}, {"slow": 9}, {"stone": 9})


@given(
    st.dictionaries(
        st.text("abcdefgh", min_size=1, max_size=3),
        st.tuples(st.floats(1e-4, 1e3), st.floats(0, 100)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 50),
    st.integers(0, 200),
)
def test_each_device_is_in_one_group_and_arrives_when_the_group_does(times, min_steps, more):
    paces = {name: Pace(*pace) for name, pace in times.items()}
    groups = group(paces, min_steps, min_steps + more)
    assert sorted(name for made in groups for name in made.steps) == sorted(paces)
    for made in groups:
        for name, steps in made.steps.items():
            assert min_steps <= steps <= min_steps + more
            assert paces[name].arrives_s(steps) <= made.cycle_s * (1 + 1e-6) + 1e-6
            if steps < min_steps + more:
                assert made.cycle_s - paces[name].arrives_s(steps) < paces[name].step_s * (1 + 1e-6)


# ---- in a run -----------------------------------------------------------------------------------


def test_before_speeds_are_known_all_make_the_least_steps_together():
    plan = decide(fedcompass(), 0.0, {name: Device(name) for name in "abc"})
    assert members(plan) == [{"a", "b", "c"}]
    assert set(taus(plan).values()) == {4}
    assert plan.groups[0].gate.deadline_s is None
    assert plan.wake_at_s == pytest.approx(0.5)


def test_known_speeds_make_groups_with_a_deadline_each():
    plan = decide(fedcompass(), 1.0, devices(fast=0.1, slow=0.3, stone=3.0))
    assert members(plan) == [{"fast", "slow"}, {"stone"}]
    assert taus(plan) == {"fast": 20, "slow": 6, "stone": 9}
    assert [made.gate.slack for made in plan.groups] == [0, 0]
    assert plan.groups[0].gate.deadline_s == pytest.approx(1.5 * 2.1)
    assert (plan.fold.when, plan.fold.weight, plan.fold.staleness_power) == ("at_gate", "equal", 0.5)
    assert plan.wake_at_s == PERIOD_S


def test_a_newcomer_disturbs_no_group_until_its_speed_is_known():
    model = fedcompass()
    first = decide(model, 1.0, devices(fast=0.1, slow=0.3))
    joined = decide(model, 2.0, {**devices(fast=0.1, slow=0.3), "new": Device("new")})
    assert joined.groups[0] == first.groups[0]
    assert members(joined) == [{"fast", "slow"}, {"new"}]
    assert members(decide(model, 3.0, devices(fast=0.1, slow=0.3, new=0.2))) == [{"fast", "slow", "new"}]


def test_when_somebody_leaves_its_group_goes_on_without_it():
    model = fedcompass()
    decide(model, 1.0, devices(fast=0.1, slow=0.3, stone=3.0))
    plan = decide(model, 2.0, devices(slow=0.3, stone=3.0))
    assert {name for names in members(plan) for name in names} == {"slow", "stone"}


def test_jitter_makes_no_new_groups():
    model = fedcompass()
    turn = (0.9, 1.1, 1.0, 0.95, 1.07)
    plans = [
        decide(model, now_s, devices(fast=0.1 * turn[now_s % 5], slow=0.3 * turn[now_s % 3]))
        for now_s in range(1, 60)
    ]
    assert len({plan.groups for plan in plans}) <= 2  # the first reading alone, then means


def test_a_device_that_gets_slower_is_followed_at_a_check_periods_end():
    model = fedcompass()
    assert members(decide(model, 1.0, devices(fast=0.1, slow=0.3))) == [{"fast", "slow"}]
    plans = [decide(model, float(now_s), devices(fast=0.1, slow=3.0)) for now_s in range(2, 22)]
    assert members(plans[5]) == [{"fast", "slow"}]
    assert members(plans[-1]) == [{"fast"}, {"slow"}]


def test_the_options_are_taken():
    model = fedcompass(min_steps=2, max_steps=10, deadline_factor=2, weight="data", server_rate=0.9)
    plan = decide(model, 1.0, devices(fast=0.1, slow=0.3))
    assert taus(plan) == {"fast": 10, "slow": 3}
    assert plan.groups[0].gate.deadline_s == pytest.approx(2 * 1.1)
    assert (plan.fold.weight, plan.fold.server_rate) == ("data", 0.9)


@pytest.mark.parametrize(
    "options", [{"min_steps": 0}, {"min_steps": 30}, {"deadline_factor": 0.9}, {"server_rate": 1.5}]
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(OffbeatError, match=r"sync\.fedcompass"):
        fedcompass(**options)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from("abcdefgh"), st.tuples(st.floats(0, 10), st.floats(0, 100)), max_size=8
            ),
            st.floats(0, 15),
        ),
        max_size=30,
    )
)
def test_whatever_the_fleet_does_each_plan_can_be_followed(moments):
    model, now_s = fedcompass(), 0.0
    for times, wait_s in moments:
        fleet = {
            name: Device(name, steps=50, step_s=step_s, commit_s=commit_s)
            for name, (step_s, commit_s) in times.items()
        }
        decide(model, now_s, fleet)
        now_s += wait_s
