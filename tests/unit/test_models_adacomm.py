"""ADACOMM: tau falls with the loss, never rises, and no single loss decides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_scheduler.models import make_model
from offbeat_scheduler.sync import Fleet, Loss, Steps
from support.virtual import run_settings, trio

PERIOD_S = 10.0


def adacomm(tau0=20):
    run = run_settings({"adacomm": {"tau0": tau0}}, PERIOD_S)
    return make_model(run.sync, run)


def observe(model, losses, from_s=0.0, source="evaluator"):
    for index, value in enumerate(losses):
        model.observe(Loss(from_s + index, value, 0, source))


def taus_after(model, now_s):
    triggers = model.decide(Fleet(now_s, trio())).triggers
    assert set(triggers) == set(trio())
    assert len(set(triggers.values())) == 1
    return next(iter(triggers.values())).steps


def test_tau_is_tau0_times_the_root_of_the_losss_fall():
    model = adacomm(20)
    observe(model, [2.0] * 5)
    assert taus_after(model, 0.0) == 20
    observe(model, [0.5] * 5, 5)
    assert taus_after(model, 10.0) == 10
    observe(model, [0.125] * 5, 15)
    assert taus_after(model, 20.0) == 5


def test_tau_is_halved_where_the_loss_would_not_lower_it():
    model = adacomm(20)
    observe(model, [1.0] * 10)
    assert [taus_after(model, k * PERIOD_S) for k in range(2)] == [20, 10]
    observe(model, [5.0] * 10, 10)
    assert taus_after(model, 20.0) == 5


def test_tau_changes_at_the_end_of_a_check_period_and_at_no_other_time():
    model = adacomm(20)
    observe(model, [1.0] * 5)
    plans = [model.decide(Fleet(now_s, trio())) for now_s in (0.0, 3.0, 9.99)]
    assert {plan.triggers["slow"] for plan in plans} == {Steps(20)}
    assert {plan.wake_at_s for plan in plans} == {PERIOD_S}
    assert taus_after(model, PERIOD_S) == 10


def test_one_loss_far_out_decides_nothing():
    calm, noisy = adacomm(), adacomm()
    observe(calm, [1.0] * 5 + [0.5] * 5)
    observe(noisy, [1.0] * 5 + [0.5, 0.5, 0.001, 0.5, 0.5])
    assert taus_after(noisy, PERIOD_S) == taus_after(calm, PERIOD_S)
    first = adacomm()
    observe(first, [1000.0] + [1.0] * 4 + [0.5] * 5)
    assert taus_after(first, PERIOD_S) == taus_after(adacomm(), 0.0) * math.sqrt(0.5) // 1 + 1


def test_a_period_without_a_loss_changes_nothing():
    model = adacomm()
    assert taus_after(model, 3 * PERIOD_S) == 20
    observe(model, [1.0] * 5, 30)
    assert taus_after(model, 4 * PERIOD_S) == 10
    assert taus_after(model, 5 * PERIOD_S) == 10


def test_losses_of_another_kind_go_on_from_where_the_former_ones_stood():
    model = adacomm(20)
    observe(model, [2.0] * 5 + [0.5] * 5)
    observe(model, [8.0] * 5, 10, source="workers")  # another measure of the same model
    assert taus_after(model, PERIOD_S) == 10


NEXT_TO_0 = 5e-324
"""A loss of 1 over this one is beyond any number."""


@pytest.mark.parametrize(
    "losses",
    [[0.0] * 5, [-1.0] * 5, [math.nan, math.inf], [1.0, *[0.0] * 9], [NEXT_TO_0] * 5 + [1.0] * 5],
)
def test_losses_that_have_no_root_or_ratio_do_no_harm(losses):
    model = adacomm()
    observe(model, losses)
    assert 1 <= taus_after(model, PERIOD_S) <= 20
    observe(model, [1.0] * 5 + [0.0] * 5, 10, source="workers")
    assert 1 <= taus_after(model, 2 * PERIOD_S) <= 20


@given(
    losses=st.lists(
        st.one_of(st.floats(), st.floats(0, 10)),
        max_size=60,
    ),
    tau0=st.integers(1, 100),
)
def test_tau_never_rises_and_stays_positive(losses, tau0):
    model = adacomm(tau0)
    before = tau0
    for index, value in enumerate(losses):
        model.observe(Loss(float(index), value, 0, "evaluator" if index % 7 else "workers"))
        tau = taus_after(model, float(index))
        assert 1 <= tau <= before
        before = tau
