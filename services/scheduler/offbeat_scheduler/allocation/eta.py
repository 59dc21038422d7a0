"""Equal task allocation, the baseline that knows nothing: d/K samples for each, as many updates as fit.

Bounds that d/K violates are kept: samples are then as equal as the bounds allow. A learner for
which not one update fits makes none; the allocation's reason names it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat_scheduler.allocation.apportion import apportion, level
from offbeat_scheduler.allocation.faults import fault_of_sums, names
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Problem
from offbeat_scheduler.allocation.solution import Allocation, Integer, Scheme, infeasible


def solve(problem: Problem, integer: Integer = "maximal") -> Allocation:
    """Infeasible only where no division keeps the bounds."""
    if reason := fault_of_sums(problem):
        return infeasible(problem, "eta", integer, reason)
    limits = Limits.of(problem)
    nothing = np.zeros(problem.learners)
    low, high, total = problem.min_samples, problem.max_samples, problem.samples
    if integer == "relaxed":
        shares = level(nothing, low, high, total)
        return marked(problem, "eta", integer, np.maximum(limits.pace(shares), 0), shares)
    samples = apportion(nothing, low, high, total)
    return marked(problem, "eta", integer, np.maximum(limits.updates_on(samples), 0), samples)


def marked(
    problem: Problem, scheme: Scheme, integer: Integer, tau: npt.NDArray[Any], samples: npt.NDArray[Any]
) -> Allocation:
    """A baseline's allocation, with a reason that names those for whom not one update fits."""
    without = [problem.names[k] for k in np.flatnonzero(tau < 1)]
    reason = ""
    if without:
        what = "no whole update" if integer == "relaxed" else "no update"
        verb = "makes" if len(without) == 1 else "make"
        reason = f"{names(without)} {verb} {what} in a cycle of {problem.cycle_s:g} s"
    return Allocation(problem, scheme, integer, True, reason, tau, samples)
