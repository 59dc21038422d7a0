"""The baselines: synchronous, equal shares, suggest-and-improve."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from offbeat_scheduler.allocation import Problem, sai, solve
from offbeat_scheduler.allocation.apportion import apportion, level
from offbeat_scheduler.allocation.limits import Limits
from support.allocation import CASES, Small, fleet, published, read_case, smalls


@settings(max_examples=100, deadline=None)
@given(smalls())
def test_synchronous_learners_make_as_many_updates_as_all_can(small: Small) -> None:
    found = solve(small.problem, "sync")
    common = [min(small.most_updates(k, d) for k, d in enumerate(division)) for division in small.divisions()]
    best = max(common, default=0)
    assert found.feasible == (best >= 1)
    if found.feasible:
        assert found.tau.tolist() == [best] * len(small.bounds)
        assert found.samples.sum() == small.samples
        assert min(small.most_updates(k, d) for k, d in enumerate(found.samples.tolist())) == best


def test_in_real_numbers_the_one_who_must_hold_too_much_sets_the_pace() -> None:
    problem = Problem(["a", "b"], [0.01, 0.1], [0, 0], [0, 0], [1, 20], [200, 30], 120, 10.0)
    found = solve(problem, "sync", "relaxed")
    assert found.tau == pytest.approx([5.0, 5.0])
    assert found.samples == pytest.approx([100, 20])
    assert found.cycle_time_s == pytest.approx([5.0, 10.0])
    free = published(20, 7.5)
    assert solve(free, "sync", "relaxed").tau == pytest.approx(solve(free, integer="relaxed").tau)


def test_equal_shares_are_as_equal_as_bounds_allow() -> None:
    problem = Problem(list("abcd"), [0.01] * 4, [0] * 4, [0] * 4, [1, 1, 1, 60], [10, 90, 90, 90], 150, 10.0)
    assert solve(problem, "eta").samples.tolist() == [10, 40, 40, 60]
    assert solve(problem, "eta", "relaxed").samples == pytest.approx([10, 40, 40, 60])
    assert solve(published(7, 30.0), "eta").samples.tolist() == [8572] * 3 + [8571] * 4


def test_who_makes_no_update_is_named() -> None:
    found = solve(published(10, 7.5), "eta")
    assert found.feasible
    assert found.tau.tolist() == [2, 0] * 5
    assert found.reason == "learner-1, learner-3, learner-5 and 2 more make no update in a cycle of 7.5 s"
    # Not even the samples arrive in time: 0 as well.
    late = Problem(["a", "b"], [0.001] * 2, [0.001, 0.1], [0, 0], [1, 1], [90, 90], 100, 1.0)
    found = solve(late, "eta")
    assert found.tau.tolist() == [19, 0]
    assert found.reason == "b makes no update in a cycle of 1 s"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_suggest_and_improve_lies_between_equal_shares_and_the_optimum(path: Path) -> None:
    problem, _ = read_case(path)
    found, equal, best = (solve(problem, scheme).max_staleness for scheme in ("sai", "eta", "async"))
    if found is None:
        assert equal is None
        return
    assert found <= (equal or 0)
    if best is not None:
        assert found >= best


def test_suggest_and_improve_improves() -> None:
    for problem in (published(20, 7.5), published(20, 30.0), published(20, 7.5, 0.3), fleet(60)):
        limits = Limits.of(problem)
        equal = solve(problem, "eta")
        better = sai.improve(problem, limits, equal.samples)
        tau = limits.updates_on(better)
        assert better.sum() == problem.samples
        assert (better >= problem.min_samples).all()
        assert (better <= problem.max_samples).all()
        assert tau.max() - tau.min() < (equal.max_staleness or 0)
    assert solve(published(20, 7.5), "sai").max_staleness == 0


def test_what_suggest_and_improve_may_not_move_stays() -> None:
    problem = published(20, 7.5, 0.0)
    found = solve(problem, "sai")
    assert found.samples.tolist() == [3000] * 20
    assert found.max_staleness == 4


@settings(max_examples=100, deadline=None)
@given(smalls(learners=5, most_samples=40))
def test_apportioned_samples_keep_bounds_and_sum_and_are_the_nearest(small: Small) -> None:
    low, high = np.array(small.bounds).T
    wish = np.array([seconds[0] for seconds in small.seconds], float)
    samples = apportion(wish, low, high, small.samples)
    assert samples.sum() == small.samples
    assert (samples >= low).all()
    assert (samples <= high).all()
    real = level(wish, low, high, small.samples)
    assert real.sum() == pytest.approx(small.samples)
    assert (np.abs(samples - real) < 1 + 1e-6).all()
    # Nearest: whoever could take more is shifted by at least as much as whoever could give.
    shift = real - wish
    takes, gives = real < high - 1e-6, real > low + 1e-6
    if takes.any() and gives.any():
        assert shift[takes].min() >= shift[gives].max() - 1e-6
