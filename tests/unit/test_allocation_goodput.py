"""The batch by goodput: against brute force over all whole batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_scheduler.allocation.goodput import Costs, Rule, best, goodput, spread, within

positive = st.floats(0.001, 10)


@st.composite
def problems(draw: st.DrawFn, largest: int = 400) -> tuple[Costs, Rule]:
    count = draw(st.integers(1, 6))

    def each(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    least = each(st.integers(1, 20)).astype(int)
    most = least + each(st.integers(0, largest)).astype(int)
    costs = Costs(each(st.one_of(st.just(0.0), st.floats(0, 1000))), each(positive), least, most)
    rule = Rule(draw(st.integers(1, 128)), draw(st.floats(1, 1e6)), draw(st.floats(1, 8)))
    return costs, rule


@given(problems())
def test_no_batch_within_the_bounds_has_a_higher_goodput(problem: tuple[Costs, Rule]) -> None:
    costs, rule = problem
    found = best(costs, rule)
    assert found.dtype == np.int64
    for device, batch in enumerate(found.tolist()):
        low, high = int(costs.least[device]), int(costs.most[device])
        assert low <= batch <= high
        one = Costs(
            *(part[device : device + 1] for part in (costs.fixed, costs.sample_s, costs.least, costs.most))
        )
        values = goodput(one, rule, np.arange(low, high + 1))
        assert goodput(one, rule, np.array([batch]))[0] >= values.max() * (1 - 1e-9)


@settings(max_examples=40)
@given(problems(largest=12), st.integers(0, 6), st.floats(0.5, 50))
def test_within_a_bound_it_is_near_the_best_combination_or_misses_the_bound_by_less_than_a_sample(
    problem: tuple[Costs, Rule], bound: int, updates: float
) -> None:
    costs, rule = problem
    keep = slice(0, 3)  # 13 ** 3 combinations
    costs = Costs(costs.fixed[keep], costs.sample_s[keep], costs.least[keep], costs.most[keep])
    interval_s = updates * float(costs.seconds(costs.least).max())
    found = within(costs, rule, interval_s, bound)
    assert (found >= costs.least).all()
    assert (found <= costs.most).all()
    ranges = [range(int(low), int(high) + 1) for low, high in zip(costs.least, costs.most, strict=True)]
    every = [np.array(batch) for batch in itertools.product(*ranges)]
    kept = [batch for batch in every if spread(costs, interval_s, batch) <= bound]
    if kept:
        # A bound on real numbers, which whole batches may miss by less than one of them.
        step = max(spread(costs, interval_s, found) - bound, 0.0)
        assert step <= 1e-6 or step < _one_sample(costs, interval_s)
        top = max(float(goodput(costs, rule, batch).sum()) for batch in kept)
        assert float(goodput(costs, rule, found).sum()) >= 0.9 * top or step > 1e-6
    else:
        least = min(spread(costs, interval_s, batch) for batch in every)
        assert spread(costs, interval_s, found) <= least + _one_sample(costs, interval_s)


def _one_sample(costs: Costs, interval_s: float) -> float:
    """What one sample of the smallest batch changes in updates per interval."""
    return float(
        (interval_s / costs.seconds(costs.least) - interval_s / costs.seconds(costs.least + 1)).max()
    )


def test_where_time_is_proportional_small_batches_win_and_where_it_is_fixed_large_ones() -> None:
    pi, jetson = 0.0, 2000.0
    costs = Costs(np.array([pi, jetson]), np.array([0.01, 0.0001]), np.array([8, 8]), np.array([256, 256]))
    small, large = best(costs, Rule(32, noise=100.0, cap=3.0)).tolist()
    assert small == 8
    assert large > 100


def test_without_a_cap_or_a_bound_it_is_the_root_of_noise_times_fixed_part() -> None:
    costs = Costs(np.array([64.0]), np.array([0.01]), np.array([1]), np.array([10_000]))
    assert best(costs, Rule(32, noise=100.0, cap=1e9)).tolist() == [80]


def test_the_cap_bounds_the_learning_rate_and_not_the_batch() -> None:
    costs = Costs(np.array([1e6]), np.array([0.01]), np.array([1]), np.array([10_000]))
    rule = Rule(32, noise=1e9, cap=3.0)
    assert best(costs, rule).tolist() == [10_000]
    assert rule.rate(np.array([16, 64, 10_000])).tolist() == pytest.approx([0.5, 2.0, 3.0], rel=1e-6)


@given(st.integers(1, 128), st.floats(1, 1e6))
def test_a_gain_is_1_at_the_runs_batch_and_at_most_linear_above(base: int, noise: float) -> None:
    rule = Rule(base, noise, cap=1e9)
    assert rule.gain(np.array([base]))[0] == pytest.approx(1.0)
    larger = np.arange(base, 8 * base + 1)
    gain = rule.gain(larger)
    assert (gain <= larger / base + 1e-9).all()
    assert (np.diff(gain) >= 0).all()


def test_equal_devices_get_equal_batches_whatever_the_bound() -> None:
    costs = Costs(np.full(5, 10.0), np.full(5, 0.01), np.full(5, 8), np.full(5, 256))
    for bound in (0, 1, 5):
        assert len(set(within(costs, Rule(32, 100.0, 1.5), 10.0, bound).tolist())) == 1
