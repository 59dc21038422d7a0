"""BSP and Fixed ADACOMM: a barrier, a mean, no overlap."""

import pytest

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.sync import Fleet, Steps
from support.virtual import run_settings, trio


@pytest.mark.parametrize(("sync", "steps"), [("bsp", 1), ("fixed-adacomm:16", 16)])
def test_everyone_commits_after_the_same_steps_and_waits_for_all(sync, steps):
    run = run_settings(sync)
    plan = make_model(run.sync, run).decide(Fleet(0.0, trio()))
    assert plan.triggers == dict.fromkeys(trio(), Steps(steps))
    assert plan.gate.slack == 0
    assert (plan.fold.when, plan.fold.weight) == ("at_gate", "equal")
    assert set(plan.cohort) == set(trio())
    assert not plan.overlap
    assert not plan.searching
    assert plan.commit_rate == 0


def test_the_cohort_is_who_is_there():
    run = run_settings("bsp")
    model = make_model(run.sync, run)
    model.decide(Fleet(0.0, trio()))
    left = {name: device for name, device in trio().items() if name != "slow"}
    assert set(model.decide(Fleet(1.0, left)).cohort) == set(left)


def test_m_outlasts_three_rounds_of_the_slowest():
    run = run_settings("fixed-adacomm:100", period_s=1.0)
    plan = make_model(run.sync, run).decide(Fleet(0.0, trio()))
    assert plan.membership_window_s >= 3 * 100 * 0.3


@pytest.mark.parametrize("tau", ["0", "x", "999999999999999999999"])
def test_a_tau_that_cannot_be_is_refused_with_its_value(tau):
    run = run_settings(f"fixed-adacomm:{tau}")
    with pytest.raises(OffbeatError, match=f"tau: '{tau}'"):
        make_model(run.sync, run)
