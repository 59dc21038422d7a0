"""The relaxed problem: samples and updates in real numbers, everybody works the full cycle. Globally optimal.

With t_k = T, tau_k falls with d_k. Choose c with

    sum_k clip(D_k(c), min_k, max_k) = d

and give each learner the clipped value. No other division has a smaller spread: in one with all tau between a
and b, d_k lies between max(min_k, D_k(b)) and min(max_k, D_k(a)), so that a <= c <= b for a suitable c; and
whoever is clipped to max_k makes at least tau_k(max_k) > c updates in any division, whoever is clipped to
min_k at most tau_k(min_k) < c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat_scheduler.allocation.faults import fault
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Floats, Problem
from offbeat_scheduler.allocation.solution import Allocation, infeasible


@dataclass(frozen=True)
class Point:
    """The optimum: the common number of updates c, and samples and updates of each learner, (K,)."""

    common: float
    samples: Floats
    tau: Floats


def solve(problem: Problem) -> Allocation:
    """The allocation with the least max staleness in real numbers."""
    if reason := fault(problem, whole=False):
        return infeasible(problem, "async", "relaxed", reason)
    found = point(problem, Limits.of(problem))
    return Allocation(problem, "async", "relaxed", True, "", found.tau, found.samples)


def point(problem: Problem, limits: Limits) -> Point:
    """The optimum of a problem that is feasible in real numbers. O(K) per halving of the error."""
    low, high = problem.min_samples, problem.max_samples

    def division(common: float) -> Floats:
        return np.clip(limits.room(common), low, high)

    # Down to neighbouring floats: the division differs from d by rounding only.
    below, above = 1.0, max(1.0, float(limits.pace(low).max()))
    while below < (middle := (below + above) / 2) < above:
        if division(middle).sum() >= problem.samples:
            below = middle
        else:
            above = middle
    samples = division(above)
    room = limits.room(above)
    free = (room > low) & (room < high)
    return Point(above, samples, np.where(free, above, limits.pace(samples)))
