"""What a solver answers: samples and local updates for each learner, and how good that is.

Staleness between two learners is the difference of their numbers of local updates; the maximum
is what the solvers minimise, the average is the mean over all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from offbeat_scheduler.allocation.problem import Floats, Problem

Scheme = Literal["async", "sync", "eta", "sai"]
Integer = Literal["maximal", "full-cycle", "relaxed"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
INTEGERS: tuple[Integer, ...] = get_args(Integer)


@dataclass(frozen=True, eq=False)
class Allocation:
    """An answer to `problem`. Where it is infeasible, tau and samples are empty and the figures None.

    Attributes:
        feasible: is there an allocation? A baseline's may leave learners without an update: it
            is feasible all the same, and `reason` names them.
        reason: if infeasible, which bound of which learner, or which total, is at fault and by how much.
        tau: local updates of each learner, shape (K,); whole (int64), or float64 if relaxed.
        samples: d_k of each learner, as tau.
        solve_s: seconds that solving took.
    """

    problem: Problem
    scheme: Scheme
    integer: Integer
    feasible: bool
    reason: str
    tau: npt.NDArray[Any]
    samples: npt.NDArray[Any]
    solve_s: float = 0.0

    @property
    def max_staleness(self) -> float | None:
        """max |tau_k - tau_l|: the solvers' z; an int for whole numbers."""
        return (self.tau.max() - self.tau.min()).item() if self.feasible else None

    @property
    def average_staleness(self) -> float | None:
        """The mean of |tau_k - tau_l| over all pairs; 0 for one learner."""
        return average_staleness(self.tau) if self.feasible else None

    @property
    def cycle_time_s(self) -> Floats:
        """t_k of each learner, seconds; empty if infeasible."""
        return self.problem.time_s(self.tau, self.samples) if self.feasible else np.empty(0)

    @property
    def idle_share(self) -> float | None:
        """Of all learners' time in a cycle, the share in which they have nothing to do."""
        if not self.feasible:
            return None
        return max(0.0, float(1 - self.cycle_time_s.mean() / self.problem.cycle_s))

    @property
    def updates_total(self) -> float | None:
        """The sum of tau_k; an int for whole numbers."""
        return self.tau.sum().item() if self.feasible else None


def infeasible(problem: Problem, scheme: Scheme, integer: Integer, reason: str) -> Allocation:
    """No allocation, and why."""
    dtype = float if integer == "relaxed" else np.int64
    return Allocation(problem, scheme, integer, False, reason, np.empty(0, dtype), np.empty(0, dtype))


def average_staleness(tau: npt.NDArray[Any]) -> float:
    """The mean of |tau_k - tau_l| over the pairs of tau, shape (K,). O(K log K).

    In ascending order the i-th of K values (from 0) is the larger one in i pairs and the smaller
    one in K - 1 - i. Of equal values rounding may make it a little less than 0, which is cut.
    """
    count = len(tau)
    if count < 2:
        return 0.0
    weights = 2.0 * np.arange(count) - (count - 1)
    return max(0.0, float(weights @ np.sort(np.asarray(tau, float)) / (count * (count - 1) / 2)))
