"""When a run ends by itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.config import RunSettings
from offbeat_scheduler.stop import Outcome, StopRules


def rules(**values):
    return StopRules(RunSettings.model_validate({"task": "digits", **values}))


def accuracy_rules(accuracy=0.9, confirm=3, smooth=1):
    return rules(target={"accuracy": accuracy, "confirm": confirm, "smooth": smooth})


def test_nothing_ends_a_run_without_rules():
    stop = rules()
    for at in range(100):
        stop.metric(at, 1.0)
        stop.loss(at, 0.0)
    assert stop.verdict(1e9, 10**9) is None
    assert stop.target_text == ""


def test_the_target_needs_k_evaluations_in_a_row():
    stop = accuracy_rules(confirm=3)
    for at, value in enumerate([0.91, 0.92, 0.89, 0.93, 0.94]):
        stop.metric(at, value)
        assert stop.verdict(at, 0) is None
    stop.metric(5, 0.95)
    verdict = stop.verdict(5, 0)
    assert verdict.outcome is Outcome.REACHED
    assert (stop.confirmation.first_s, stop.confirmation.confirmed_s) == (3, 5)
    assert verdict.message == "accuracy 0.95 after 5 s"


def test_an_accuracy_of_exactly_the_target_in_float32_meets_it():
    stop = accuracy_rules(accuracy=0.95, confirm=1)
    stop.metric(1, 0.9499999973509047)
    assert stop.confirmation
    stop = accuracy_rules(accuracy=0.95, confirm=1)
    stop.metric(1, 0.9499)
    assert not stop.confirmation


def test_the_mean_of_the_last_evaluations_is_compared_once_there_are_enough():
    stop = accuracy_rules(confirm=1, smooth=3)
    stop.metric(0, 0.99)
    stop.metric(1, 0.99)
    assert not stop.confirmation
    stop.metric(2, 0.60)
    assert not stop.confirmation
    stop.metric(3, 0.99)
    stop.metric(4, 0.99)
    assert not stop.confirmation
    stop.metric(5, 0.99)
    assert stop.confirmation.value == pytest.approx(0.99)


def test_a_value_that_is_no_number_begins_the_confirmation_anew():
    stop = accuracy_rules(confirm=2)
    for at, value in enumerate([0.95, math.nan, 0.95]):
        stop.metric(at, value)
    assert not stop.confirmation
    stop.metric(3, 0.95)
    assert stop.confirmation


def test_a_loss_target_is_met_from_above():
    stop = rules(target={"loss": 0.5, "confirm": 1})
    stop.metric(0, 0.99)
    stop.loss(0, 0.6)
    assert stop.verdict(0, 0) is None
    stop.loss(1, 0.5)
    assert stop.verdict(1, 0).outcome is Outcome.REACHED
    assert stop.target_text == "loss <= 0.5"
    often = rules(target={"loss": 0.5, "confirm": 3})
    assert often.target_text == "loss <= 0.5, 3 times in a row"


def test_losses_of_another_source_confirm_nothing_of_the_ones_before():
    stop = rules(target={"loss": 0.5, "confirm": 2}, converged={"variance": 1.0, "window": 3})
    stop.loss(0, 0.4)
    stop.loss(1, 0.6)
    stop.losses_change_source()
    stop.loss(2, 0.4)
    assert stop.verdict(2, 0) is None
    stop.loss(3, 0.4)
    assert stop.verdict(3, 0).outcome is Outcome.REACHED


def test_limits_end_the_run_at_their_value():
    stop = rules(limits={"seconds": 60, "commits": 100})
    assert stop.verdict(59.9, 99) is None
    assert stop.verdict(60.0, 0).outcome is Outcome.LIMIT
    assert "seconds" in stop.verdict(60.0, 0).message
    assert stop.verdict(0, 100).outcome is Outcome.LIMIT
    assert "commits" in stop.verdict(0, 100).message


def test_a_confirmed_target_is_reached_even_if_the_limit_came_at_the_same_time():
    stop = rules(target={"accuracy": 0.5, "confirm": 1}, limits={"seconds": 10})
    stop.metric(10, 0.6)
    assert stop.verdict(10, 0).outcome is Outcome.REACHED


def test_a_loss_that_stands_still_over_the_whole_window_has_converged():
    stop = rules(converged={"variance": 0.01, "window": 4})
    for at, value in enumerate([5.0, 0.5, 0.5, 0.5]):
        stop.loss(at, value)
        assert stop.verdict(at, 0) is None
    stop.loss(4, 0.5)
    assert stop.verdict(4, 0).outcome is Outcome.CONVERGED


def test_a_loss_that_is_no_number_has_not_converged():
    stop = rules(converged={"variance": 0.01, "window": 2})
    for value in (0.5, math.inf, 0.5):
        stop.loss(0, value)
    assert stop.verdict(0, 0) is None


values = st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=60)


@given(values, st.floats(0.05, 1.0), st.integers(1, 5), st.integers(1, 5))
def test_the_first_confirmation_is_the_one_that_the_definition_gives(series, target, confirm, smooth):
    stop = accuracy_rules(target, confirm, smooth)
    for at, value in enumerate(series):
        stop.metric(float(at), value)

    def meets(end):
        """Does the evaluation at `end` confirm, by the mean of the last `smooth`?"""
        window = series[max(0, end - smooth + 1) : end + 1]
        if len(window) < smooth or any(math.isnan(value) for value in window):
            return False
        return math.fsum(window) / smooth >= target * (1 - 1e-6)

    ends = [end for end in range(confirm - 1, len(series)) if all(meets(end - i) for i in range(confirm))]
    if not ends:
        assert stop.confirmation is None
    else:
        assert stop.confirmation.confirmed_s == ends[0]
        assert stop.confirmation.first_s == ends[0] - confirm + 1


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.integers(2, 10), st.floats(1e-6, 10))
def test_convergence_is_the_variance_of_the_last_losses(series, window, variance):
    stop = rules(converged={"variance": variance, "window": window})
    for at, value in enumerate(series):
        stop.loss(float(at), value)
    last = series[-window:]
    mean = math.fsum(last) / len(last)
    real = math.fsum((value - mean) ** 2 for value in last) / len(last)
    expected = len(last) == window and real < variance
    if abs(real - variance) > 1e-9:
        assert (stop.verdict(0, 0) is not None) == expected
