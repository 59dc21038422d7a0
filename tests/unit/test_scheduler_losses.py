"""Whose losses decisions read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_scheduler.losses import LossSource, TrainingLoss


def test_an_evaluator_that_attends_at_the_beginning_is_read_and_the_workers_never():
    source = LossSource(1.0, evaluator_attends=True)
    assert source.trained(0, [TrainingLoss(1.0, 10)], 10) is None
    assert source.evaluated(1.0, 0.5, 10).value == 0.5
    assert not source.reconsider(evaluator_attends=False, searching=False)
    assert source.trained(9, [TrainingLoss(1.0, 10)], 10) is None
    assert source.evaluated(20.0, 0.4, 20).source == "evaluator"


def test_an_evaluator_that_never_evaluated_gives_way_to_the_workers():
    source = LossSource(1.0, evaluator_attends=True)
    assert source.reconsider(evaluator_attends=False, searching=True)
    assert source.trained(0, [TrainingLoss(1.0, 10)], 10).source == "workers"


def test_an_evaluator_that_comes_later_is_read_once_no_search_is_under_way():
    source = LossSource(1.0, evaluator_attends=False)
    assert source.trained(0, [TrainingLoss(1.0, 10)], 10)
    assert not source.reconsider(evaluator_attends=True, searching=True)
    assert source.evaluated(1.0, 0.5, 10) is None
    assert source.reconsider(evaluator_attends=True, searching=False)
    assert source.evaluated(2.0, 0.5, 10)
    assert source.trained(9, [TrainingLoss(1.0, 10)], 10) is None


def test_the_workers_losses_wait_until_everyone_has_trained():
    source = LossSource(1.0, evaluator_attends=False)
    assert source.trained(0, [TrainingLoss(1.0, 10), TrainingLoss(0.0, 0)], 10) is None
    assert source.trained(0, [], 0) is None


def test_the_weights_are_the_samples_that_each_device_holds():
    source = LossSource(1.0, evaluator_attends=False)
    loss = source.trained(0, [TrainingLoss(1.0, 9000, shard=100), TrainingLoss(4.0, 10, shard=200)], 1)
    assert loss.value == pytest.approx(3.0)


def test_where_a_device_does_not_say_what_it_holds_the_samples_trained_on_are_the_weights():
    source = LossSource(1.0, evaluator_attends=False)
    loss = source.trained(0, [TrainingLoss(1.0, 300, shard=100), TrainingLoss(4.0, 100)], 1)
    assert loss.value == pytest.approx(1.75)


def test_the_workers_losses_come_no_more_often_than_evaluations_would():
    source = LossSource(2.0, evaluator_attends=False)
    times = [at / 10 for at in range(100) if source.trained(at / 10, [TrainingLoss(1.0, 5)], at)]
    assert times == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_losses_that_are_no_numbers_come_no_more_often_either():
    source = LossSource(2.0, evaluator_attends=False)
    times = [at / 10 for at in range(50) if source.trained(at / 10, [TrainingLoss(math.nan, 5)], at)]
    assert times == [0.0, 2.0, 4.0]
    assert source.last is None


def test_a_loss_that_is_no_number_does_not_stand_as_the_last():
    source = LossSource(1.0, evaluator_attends=True)
    source.evaluated(0, 0.5, 1)
    assert math.isnan(source.evaluated(1, math.nan, 1).value)
    assert source.last.value == 0.5


happenings = st.lists(
    st.tuples(st.sampled_from(["evaluated", "trained", "come", "go"]), st.booleans()), max_size=60
)


@given(happenings, st.booleans())
def test_the_source_never_changes_within_a_search_and_never_back_to_the_workers(happenings, attends):
    source = LossSource(0.001, evaluator_attends=attends)
    series = []  # (source, search number); a search is a stretch of searching
    search, was_searching = 0, False
    for at, (what, searching) in enumerate(happenings):
        search += searching != was_searching
        was_searching = searching
        if what in ("come", "go"):
            attends = what == "come"
        source.reconsider(evaluator_attends=attends, searching=searching)
        loss = None
        if what == "evaluated" and attends:
            loss = source.evaluated(float(at), 0.5, at)
        elif what == "trained":
            loss = source.trained(float(at), [TrainingLoss(1.0, 1)], at)
        if loss:
            series.append((loss.source, search if searching else None))
    for number in {number for _, number in series if number is not None}:
        assert len({who for who, n in series if n == number}) == 1
    order = [who for who, _ in series]
    assert order == sorted(order, key=lambda who: who == "evaluator")
