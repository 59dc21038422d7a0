"""Whole numbers by the maximal rule: nobody could make one more update. Exact, in O(K (log + z)).

The rule ties updates to samples, tau_k = updates_on(d_k). For numbers of updates between a and b learner k
may hold lo_k(b) to hi_k(a) samples, where

    hi_k(a) = min(max_k, samples_at(a))         falls with a
    lo_k(b) = max(min_k, samples_at(b + 1) + 1)    falls with b

so (a, b) has a solution if and only if no range is empty and sum lo <= d <= sum hi. That is three conditions:
a is at most A, by hi >= min and the sum of hi; b is at least B, by lo <= max and the sum of lo; and b is at
least updates_on(hi_k(a)) for each k, for else no sample count of k makes any number from a to b. The last one
counts where learners hold few samples: from 3 to 2 samples tau may jump from 20 to 30.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from offbeat_scheduler.allocation import relaxed
from offbeat_scheduler.allocation.apportion import apportion
from offbeat_scheduler.allocation.faults import fault
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Ints, Problem
from offbeat_scheduler.allocation.solution import Allocation, infeasible


def solve(problem: Problem) -> Allocation:
    """The allocation with the least max staleness; of several, one whose least tau is the highest."""
    if reason := fault(problem):
        return infeasible(problem, "async", "maximal", reason)
    limits = Limits.of(problem)
    least, most = best_range(problem, limits)
    wish = relaxed.point(problem, limits).samples
    samples = apportion(wish, lowest(problem, limits, most), highest(problem, limits, least), problem.samples)
    return Allocation(problem, "async", "maximal", True, "", limits.updates_on(samples), samples)


def highest(problem: Problem, limits: Limits, least: int) -> Ints:
    """hi_k(a): the most samples of each learner with at least `least` updates, (K,)."""
    return np.minimum(limits.samples_at(least), problem.max_samples)


def lowest(problem: Problem, limits: Limits, most: int) -> Ints:
    """lo_k(b): the fewest samples of each learner with at most `most` updates, (K,)."""
    return np.maximum(limits.samples_at(most + 1) + 1, problem.min_samples)


def best_range(problem: Problem, limits: Limits) -> tuple[int, int]:
    """The (a, b) of the least b - a that has a solution. The problem must be feasible.

    From a = A downwards. A smaller a can only be better with b(a) < a + z for the z found so far, so
    every learner whose hi(a) makes more updates than that must get a sample more: all a in between are
    skipped, as they change nothing for the one that has to change most.
    """
    a = greatest_a(problem, limits)
    least_b = _least_b(problem, limits)
    best: tuple[int, int] | None = None
    while True:
        hi = highest(problem, limits, a)
        updates = limits.updates_on(hi)
        b = max(least_b, int(updates.max()))
        if best is None or b - a < best[1] - best[0]:
            best = (a, b)
        bar = (a - 1) + (best[1] - best[0]) - 1  # the next a must come with a b of at most this
        if least_b > bar or a == 1:
            return best
        over = updates > bar
        if (over & (hi == problem.max_samples)).any():
            return best
        a -= 1
        if over.any():
            a = min(a, int(limits.updates_on(hi + 1)[over].min()))
        if a < 1:
            return best


def greatest_a(problem: Problem, limits: Limits) -> int:
    """A: the largest a with hi >= min everywhere and a sum of hi of at least d."""
    bound = int(limits.updates_on(problem.min_samples).min())
    return last(1, bound, lambda a: int(highest(problem, limits, a).sum()) >= problem.samples)


def _least_b(problem: Problem, limits: Limits) -> int:
    """B: the smallest b with lo <= max everywhere and a sum of lo of at most d."""
    bound = max(1, int(limits.updates_on(problem.max_samples).max()))
    enough = int(limits.updates_on(problem.min_samples).max())
    return first(bound, enough, lambda b: int(lowest(problem, limits, b).sum()) <= problem.samples)


def last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last whole number for which it holds; it holds at `low`, and then up to some number."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first whole number for which it holds; it holds at `high`, and from some number on."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
