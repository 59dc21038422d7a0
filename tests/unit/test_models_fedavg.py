"""FedAvg: rounds of a sampled cohort, whoever comes and goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet, Gate, Passes, Steps
from support.virtual import run_settings


def fedavg(seed=1, **options):
    run = run_settings({"fedavg": options}, training={"seed": seed})
    return make_model(run.sync, run)


def fleet(names, closed=0, now_s=0.0):
    return Fleet(now_s, {name: Device(name, step_s=0.1, shard_samples=64) for name in names}, closed=closed)


TEN = [f"d{i}" for i in range(10)]


def test_a_round_trains_its_sample_and_all_others_rest():
    plan = fedavg(fraction=0.3).decide(fleet(TEN))
    assert len(plan.triggers) == 3
    assert set(plan.triggers) | plan.resting == set(TEN)
    assert set(plan.cohort) == set(plan.triggers)
    assert plan.round == 1
    assert plan.gate == Gate(slack=0)
    assert (plan.fold.when, plan.fold.weight) == ("at_gate", "data")
    assert set(plan.triggers.values()) == {Steps(8)}


def test_the_same_round_goes_on_until_its_gate_has_closed():
    model = fedavg(fraction=0.3)
    first = model.decide(fleet(TEN))
    assert model.decide(fleet(TEN, now_s=5.0)) == first
    second = model.decide(fleet(TEN, closed=1, now_s=6.0))
    assert second.round == 2
    assert second.cohort != first.cohort


def test_the_same_seed_draws_the_same_cohorts_and_another_one_others():
    def cohorts(seed):
        model = fedavg(seed, fraction=0.3)
        return [model.decide(fleet(TEN, closed=int(k > 0))).cohort for k in range(8)]

    assert cohorts(1) == cohorts(1)
    assert cohorts(1) != cohorts(2)
    assert {name for cohort in cohorts(1) for name in cohort} > set(cohorts(1)[0])


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.25, 2), (0.5, 5), (1.0, 10)])
def test_the_fraction_gives_so_many_devices_and_one_at_least(fraction, count):
    assert len(fedavg(fraction=fraction).decide(fleet(TEN)).triggers) == count


def test_who_joins_in_the_middle_of_a_round_rests_until_the_next():
    model = fedavg()
    first = model.decide(fleet(TEN[:3]))
    joined = model.decide(fleet(TEN[:4], now_s=1.0))
    assert joined.resting == {TEN[3]}
    assert (joined.round, joined.cohort, joined.triggers) == (first.round, first.cohort, first.triggers)
    assert TEN[3] in model.decide(fleet(TEN[:4], closed=1, now_s=2.0)).triggers


def test_who_leaves_is_not_replaced_and_goes_on_when_it_returns():
    model = fedavg(fraction=0.5)
    first = model.decide(fleet(TEN))
    gone = first.cohort[0]
    left = model.decide(fleet([name for name in TEN if name != gone], now_s=1.0))
    assert left.round == first.round
    assert set(left.triggers) == set(left.cohort) == set(first.triggers) - {gone}
    assert model.decide(fleet(TEN, now_s=2.0)).triggers == first.triggers


def test_a_round_that_lost_all_its_devices_makes_room_for_the_next():
    model = fedavg(fraction=0.2)
    first = model.decide(fleet(TEN))
    rest = [name for name in TEN if name not in first.cohort]
    second = model.decide(fleet(rest, now_s=1.0))
    assert second.round == 2
    assert set(second.cohort) <= set(rest)


def test_passes_take_the_place_of_tau():
    plan = fedavg(passes=2).decide(fleet(TEN))
    assert set(plan.triggers.values()) == {Passes(2)}
    assert plan.interval_s == pytest.approx(2 * 2 * 0.1)  # 64 samples in batches of 32


@pytest.mark.parametrize("options", [{"fraction": 0}, {"fraction": 1.1}, {"tau": 0}, {"tau": 3, "passes": 1}])
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(OffbeatError, match=r"sync\.fedavg"):
        fedavg(**options)


@given(
    steps=st.lists(st.tuples(st.sets(st.sampled_from(TEN)), st.booleans()), max_size=40),
    fraction=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**64 - 1),
)
def test_whoever_comes_and_goes_each_plan_can_be_followed(steps, fraction, seed):
    model = fedavg(seed, fraction=fraction)
    last_round = 0
    for now_s, (names, closes) in enumerate(steps):
        now = fleet(sorted(names), closed=int(closes and last_round > 0), now_s=float(now_s))
        plan = model.decide(now)
        if not names:
            continue
        check(plan, now)
        assert plan.triggers
        assert len(plan.triggers) <= max(1, round(fraction * len(TEN)))
        assert plan.round in (last_round, last_round + 1)
        last_round = plan.round
