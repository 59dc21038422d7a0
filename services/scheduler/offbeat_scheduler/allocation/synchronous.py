"""The synchronous baseline: everybody makes the same number of updates, the most for which d samples fit.

Learners then wait for the end of the cycle: staleness is 0, and the price is idle time (Mohammad and Sorour,
arXiv 1811.03748).
"""

from __future__ import annotations

import numpy as np

from offbeat_scheduler.allocation import relaxed
from offbeat_scheduler.allocation.apportion import apportion
from offbeat_scheduler.allocation.faults import fault
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.maximal import greatest_a, highest
from offbeat_scheduler.allocation.problem import Problem
from offbeat_scheduler.allocation.solution import Allocation, Integer, infeasible


def solve(problem: Problem, integer: Integer = "maximal") -> Allocation:
    """The same tau for all, as large as it can be; in real numbers if `integer` is "relaxed"."""
    if reason := fault(problem, whole=integer != "relaxed"):
        return infeasible(problem, "sync", integer, reason)
    limits = Limits.of(problem)
    filled = relaxed.point(problem, limits)
    if integer == "relaxed":
        # Whoever must hold more samples than fit at the common number sets the pace for all.
        tau = min(filled.common, float(limits.pace(problem.min_samples).min()))
        return Allocation(problem, "sync", integer, True, "", np.full(problem.learners, tau), filled.samples)
    updates = greatest_a(problem, limits)
    samples = apportion(
        filled.samples, problem.min_samples, highest(problem, limits, updates), problem.samples
    )
    return Allocation(
        problem, "sync", integer, True, "", np.full(problem.learners, updates, np.int64), samples
    )
