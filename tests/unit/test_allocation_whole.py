"""Whole numbers: the maximal rule and the full-cycle rule, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import Allocation, Problem, few_kinds, full_cycle, maximal, solve
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.most_work import Choice, Options, most_updates, most_work
from offbeat_scheduler.allocation.windows import Windows
from support.allocation import Small, fleet, published, smalls


def check_kept(problem: Problem, found: Allocation) -> None:
    """Samples sum to d within the bounds; everybody makes an update, and keeps to time and energy."""
    assert found.samples.dtype == found.tau.dtype == np.int64
    assert found.samples.sum() == problem.samples
    assert (found.samples >= problem.min_samples).all()
    assert (found.samples <= problem.max_samples).all()
    assert (found.tau >= 1).all()
    assert (found.cycle_time_s <= problem.cycle_s * (1 + 1e-9)).all()
    assert Limits.of(problem).fits(found.tau, found.samples).all()


def check_maximal(problem: Problem, found: Allocation) -> None:
    check_kept(problem, found)
    assert not Limits.of(problem).fits(found.tau + 1, found.samples).any()


# ---- the maximal rule -------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(smalls())
def test_the_maximal_rule_has_the_least_staleness_that_brute_force_finds(small: Small) -> None:
    found = solve(small.problem)
    assert found.max_staleness == small.maximal()
    assert bool(found.reason) != found.feasible
    if found.feasible:
        check_maximal(small.problem, found)
        assert found.tau.tolist() == [small.most_updates(k, d) for k, d in enumerate(found.samples.tolist())]


@settings(max_examples=20, deadline=None)
@given(smalls(learners=2, most_samples=60))
def test_where_a_sample_more_costs_many_updates_the_least_staleness_is_found_too(small: Small) -> None:
    assert solve(small.problem).max_staleness == small.maximal()


@settings(max_examples=60, deadline=None)
@example(328, 2, 6)  # better by 1 only
@example(9, 2, 12)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(4, 12))
def test_no_range_is_skipped_that_is_better(seed: int, learners: int, wide: int) -> None:
    """Against a look at each a. Some learners hold few samples that take long, others many that don't: the
    best a lies below A where the former jump over it."""
    rng = np.random.default_rng(seed)
    fine = np.where(rng.random(learners) < 0.5, 1, 8)
    low = rng.integers(1, 3, learners)
    high = (low + rng.integers(0, wide + 1, learners)) * fine
    compute = rng.uniform(0.5, 1.5, learners) / (30 * fine)
    names = [str(k) for k in range(learners)]
    nothing = np.zeros(learners)
    total = int(rng.integers(low.sum(), high.sum() + 1))
    problem = Problem(names, compute, nothing, nothing, low, high, total, float(wide))
    limits = Limits.of(problem)
    if not solve(problem).feasible:
        return
    best, b = None, 1
    while maximal.lowest(problem, limits, b).sum() > total or (limits.updates_on(high) > b).any():
        b += 1
    for a in range(1, int(limits.updates_on(low).min()) + 1):
        hi = maximal.highest(problem, limits, a)
        if hi.sum() >= total:
            z = max(b, int(limits.updates_on(hi).max())) - a
            best = z if best is None else min(best, z)
    least, greatest = maximal.best_range(problem, limits)
    assert greatest - least == best == solve(problem).max_staleness


def test_a_range_that_no_sample_count_of_some_learner_makes_is_not_taken() -> None:
    """With 3 samples learner-0 makes 33 updates, with 2 it makes 50: never 40, which suits learner-1."""
    problem = Problem(["0", "1"], [0.1, 0.025], [0, 0], [0, 0], [2, 5], [3, 13], 13, 10.0)
    found = solve(problem)
    assert sorted(zip(found.tau.tolist(), found.samples.tolist(), strict=True)) == [(33, 3), (40, 10)]


def test_thousands_of_learners_keep_the_maximal_rule() -> None:
    for cycle_s in (7.5, 60.0):
        problem = fleet(5000, cycle_s=cycle_s)
        found = solve(problem)
        check_maximal(problem, found)
        relaxed = solve(problem, integer="relaxed").max_staleness
        assert found.max_staleness is not None
        assert relaxed is not None
        assert found.max_staleness >= relaxed - 1


def test_a_learner_with_few_samples_and_many_updates_costs_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """tau jumps by tens of thousands from sample to sample: what lies between is skipped."""
    looks = []
    highest = maximal.highest

    def counted(problem: Problem, limits: Limits, least: int) -> np.ndarray:
        looks.append(least)
        return highest(problem, limits, least)

    monkeypatch.setattr(maximal, "highest", counted)
    problem = Problem(
        [str(k) for k in range(6)], np.linspace(1e-5, 3e-5, 6), np.zeros(6), np.zeros(6),
        np.ones(6), np.full(6, 20), 60, 10.0,
    )  # fmt: skip
    found = solve(problem)
    check_maximal(problem, found)
    assert found.max_staleness is not None
    assert found.max_staleness > 1000
    assert len(looks) < 100


# ---- the full-cycle rule ----------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(smalls(), st.sampled_from([20, 100, 300]), st.sampled_from(["updates", "work"]))
def test_the_full_cycle_rule_is_as_good_as_brute_force(small: Small, idle: int, prefer: str) -> None:
    found = full_cycle.solve(small.problem, idle / 1000, prefer)  # type: ignore[arg-type]
    known = small.full_cycle(idle)
    assert found.feasible == bool(known)
    assert bool(found.reason) != found.feasible
    if not found.feasible:
        return
    check_kept(small.problem, found)
    least = min(z for z, _, _ in known)
    work = int(found.tau @ found.samples)
    if prefer == "work":
        assert (found.max_staleness, work) == (least, max(w for z, _, w in known if z == least))
    else:
        best = max((updates, work) for z, updates, work in known if z == least)
        assert (found.max_staleness, found.updates_total, work) == (least, *best)
    for k, (tau, d) in enumerate(zip(found.tau.tolist(), found.samples.tolist(), strict=True)):
        assert tau in small.full_updates(k, d, idle)


def test_everybody_works_98_percent_of_the_cycle() -> None:
    problem = fleet(300, cycle_s=15.0)
    found = solve(problem, integer="full-cycle")
    check_kept(problem, found)
    assert (found.cycle_time_s >= 0.98 * problem.cycle_s).all()
    assert found.idle_share is not None
    assert found.idle_share < 0.01


def test_a_share_of_idling_that_is_none_is_refused() -> None:
    for eps in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(OffbeatError, match="eps"):
            full_cycle.solve(published(10, 7.5), eps)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            Problem(["a", "b"], [0.1, 0.1], [0, 0], [0, 0], [6, 1], [7, 20], 17, 1.0),
            "a fills 98 % of the cycle with 1 update on at least 10 samples, max_samples is 7: 3 too few; "
            "2 updates fit on at most 5, min_samples is 6: 1 too many",
        ),
        (
            Problem(["a", "b"], [0.1, 0.1], [0, 0], [0, 0], [4, 4], [10, 10], 9, 1.0),
            "hold at least 10 samples together, samples is 9: 1 too few",
        ),
        (
            Problem(["a", "b"], [0.1, 0.1], [0, 0], [0, 0], [2, 2], [9, 9], 11, 1.0),
            "hold at most 10 samples together, samples is 11: 1 too many",
        ),
        (
            Problem(["a", "b"], [0.1, 0.1], [0, 0], [0, 0], [4, 4], [10, 10], 12, 1.0),
            "with which all learners work 98 % of the cycle sum to samples, 12; 10 would do",
        ),
    ],
)
def test_what_is_at_fault_under_the_full_cycle_rule_is_said(problem: Problem, reason: str) -> None:
    assert solve(problem).feasible
    found = solve(problem, integer="full-cycle")
    assert not found.feasible
    assert reason in found.reason


# ---- its parts --------------------------------------------------------------------


@st.composite
def options(draw: st.DrawFn) -> Options:
    """One to four learners with two or three options each, of which some choice sums to d."""
    count, first = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    updates = np.arange(first, first + draw(st.integers(1, 3)))
    lo = np.array([[draw(st.integers(0, 12)) for _ in range(count)] for _ in updates])
    hi = lo + np.array([[draw(st.integers(-1, 3)) for _ in range(count)] for _ in updates])
    rows = np.array([draw(st.integers(0, len(updates) - 1)) for _ in range(count)])
    chosen = rows, np.arange(count)
    hi[chosen] = np.maximum(hi[chosen], lo[chosen])
    total = sum(draw(st.integers(int(a), int(b))) for a, b in zip(lo[chosen], hi[chosen], strict=True))
    return Options(updates, lo, hi, total)


def choices(some: Options) -> list[tuple[int, int]]:
    """(sum of updates, sum of work) of all choices."""
    per_learner = [
        [
            (int(some.updates[row]), d)
            for row in range(len(some.updates))
            for d in range(int(some.lo[row, k]), int(some.hi[row, k]) + 1)
        ]
        for k in range(some.lo.shape[1])
    ]
    return [
        (sum(t for t, _ in one), sum(t * d for t, d in one))
        for one in itertools.product(*per_learner)
        if sum(d for _, d in one) == some.total
    ]


def check_choice(some: Options, choice: Choice) -> None:
    assert choice.samples.sum() == some.total
    row, learners = choice.updates - some.updates[0], np.arange(some.lo.shape[1])
    assert (some.lo[row, learners] <= choice.samples).all()
    assert (choice.samples <= some.hi[row, learners]).all()


@settings(max_examples=80, deadline=None)
@given(options(), st.booleans())
def test_the_search_finds_the_most_updates_and_work(some: Options, few: bool) -> None:
    known = choices(some)
    with pytest.MonkeyPatch.context() as patch:
        if not few:  # as for many learners: by two prices first, and with cores that grow
            patch.setattr("offbeat_scheduler.allocation.most_work.FEW", 0)
            patch.setattr("offbeat_scheduler.allocation.most_work.FIRST_CORE", 1)
            patch.setattr("offbeat_scheduler.allocation.most_work.CORE_GROWS", 2)
        most = most_updates(some)
        assert most.updates_sum == max(updates for updates, _ in known)
        both = most_work(some, most)
        assert (both.updates_sum, both.work) == max(known)
        alone = most_work(some)
        assert alone.work == max(work for _, work in known)
    for choice in (most, both, alone):
        check_choice(some, choice)


@settings(max_examples=20, deadline=None)
@given(options(), st.integers(2, 3))
def test_of_many_that_are_alike_the_program_finds_what_the_search_finds(some: Options, copies: int) -> None:
    many = Options(
        some.updates,
        np.repeat(some.lo, copies, axis=1),
        np.repeat(some.hi, copies, axis=1),
        some.total * copies,
    )
    for of_updates in (True, False):
        searched = most_work(many, most_updates(many) if of_updates else None)
        program = few_kinds.most_work(many, most_updates=of_updates)
        assert program is not None
        check_choice(many, program)
        assert program.work == searched.work
        if of_updates:
            assert program.updates_sum == searched.updates_sum


def test_of_many_that_differ_two_ways_to_search_find_the_same() -> None:
    problem = fleet(90, cycle_s=7.5)
    windows = Windows(problem, Limits.of(problem), 0.98)
    ((a, b),) = full_cycle.best_ranges(problem, Limits.of(problem), windows)
    some = Options(np.arange(a, b + 1), *windows.table(a, b), problem.samples)
    most = most_updates(some)
    found = most_work(some, most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat_scheduler.allocation.most_work.FEW", 1000)
        assert (most_work(some, most).updates_sum, most_work(some, most).work) == (
            found.updates_sum,
            found.work,
        )
    check_choice(some, found)
    assert found.updates_sum == most.updates_sum


@settings(max_examples=80, deadline=None)
@given(smalls(learners=4, most_samples=8), st.sampled_from([20, 300]), st.data())
def test_windows_reach_exactly_the_sums_of_what_they_hold(
    small: Small, idle: int, data: st.DataObject
) -> None:
    problem = small.problem
    windows = Windows(problem, Limits.of(problem), 1 - idle / 1000)
    least = data.draw(st.integers(1, 8))
    most = data.draw(st.integers(least, 60))
    held = [
        [
            d
            for d in range(low, high + 1)
            if any(least <= tau <= most for tau in small.full_updates(k, d, idle))
        ]
        for k, (low, high) in enumerate(small.bounds)
    ]
    sums = {sum(one) for one in itertools.product(*held)}
    for total in range(sum(low for low, _ in small.bounds), sum(high for _, high in small.bounds) + 1):
        assert windows.reach(least, most, total) == (total in sums), total
