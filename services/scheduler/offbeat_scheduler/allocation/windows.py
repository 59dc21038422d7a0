"""The sample counts on which a learner works the full cycle, per number of updates; which sums they reach.

With tau updates learner k works at least the share 1 - eps of the cycle (or uses it of its joules) on the
samples of one window [lo_k(tau), hi_k(tau)], which may be empty. Between the windows of tau + 1 and tau
there is a gap where tau is small; from tau of about 1/eps on they overlap.

A learner that may make a to b updates can hold the samples in the union of its windows. Which totals all
learners together reach is the sum of these unions, kept as a list of disjoint intervals. It stays short:
once an interval is as long as the next learner's gaps, it closes them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Ints, Problem


class Windows:
    """The windows of a problem's learners, each number of updates computed once."""

    def __init__(self, problem: Problem, limits: Limits, share: float) -> None:
        self._problem = problem
        self._limits = limits
        self._share = share
        self._at: dict[int, tuple[Ints, Ints]] = {}
        # From here on the window of tau + 1 reaches down to that of tau, for every learner.
        self._joined = 0
        for budget in limits.budgets:
            limited = np.isfinite(budget.limit)
            least = share * budget.limit[limited] - budget.fixed[limited]
            gap = (budget.limit[limited] - budget.fixed[limited]) - least
            joined = least / gap - budget.per_sample[limited] / budget.per_update[limited]
            self._joined = max(self._joined, math.ceil(float(joined.max())) + 1)

    def at(self, updates: int) -> tuple[Ints, Ints]:
        """lo and hi, both (K,); empty where lo > hi."""
        if updates not in self._at:
            problem = self._problem
            self._at[updates] = (
                np.maximum(self._limits.samples_filling(updates, self._share), problem.min_samples),
                np.minimum(self._limits.samples_at(updates), problem.max_samples),
            )
        return self._at[updates]

    def table(self, least: int, most: int) -> tuple[Ints, Ints]:
        """lo and hi of the windows of least to most updates: both (most - least + 1, K)."""
        rows = [self.at(updates) for updates in range(least, most + 1)]
        return np.array([lo for lo, _ in rows]), np.array([hi for _, hi in rows])

    def reach(self, least: int, most: int, samples: int | None = None) -> bool:
        """Do d samples, or `samples`, part into one window per learner, of least to most updates?"""
        lo, hi = self.union(least, most)
        real = lo <= hi
        if not real.any(axis=0).all():
            return False
        total = self._problem.samples if samples is None else samples
        fewest, most_samples = np.where(real, lo, total + 1).min(axis=0), np.where(real, hi, 0).max(axis=0)
        if not fewest.sum() <= total <= most_samples.sum():
            return False
        alone = real.sum(axis=0) == 1
        only = real & alone
        reached = np.array([[int(lo[only].sum()), int(hi[only].sum())]])
        # The widest first: their windows close the gaps of the others.
        rest = np.flatnonzero(~alone)
        rest = rest[np.argsort(-hi[0, rest], kind="stable")]
        return _reaches(total, reached, lo[:, rest], hi[:, rest])

    def union(self, least: int, most: int) -> tuple[Ints, Ints]:
        """As `table`, but with the windows that overlap anyhow in one row."""
        last = min(most, max(least, self._joined))
        lo, hi = self.table(least, last)
        if last < most:
            below = self.at(most)[0]
            lo, hi = np.vstack([lo[:-1], below]), np.vstack([hi[:-1], hi[-1]])
        return lo, hi


def _merged(lo: Ints, hi: Ints) -> npt.NDArray[np.int64]:
    """Disjoint intervals, ascending, shape (n, 2), of those given in any order; neighbours become one."""
    order = np.argsort(lo, kind="stable")
    lo, hi = lo[order], np.maximum.accumulate(hi[order])
    starts = np.concatenate(([True], lo[1:] > hi[:-1] + 1))
    ends = np.concatenate((starts[1:], [True]))
    return np.stack((lo[starts], hi[ends]), axis=1)


def _reaches(total: int, reached: npt.NDArray[np.int64], lo: Ints, hi: Ints) -> bool:
    """Is `total` in the sum of `reached`, disjoint intervals, and of a window, lo to hi (n, K), per learner?

    In each column windows descend.
    """
    real = lo <= hi
    # Sums of what the learners from a column on hold at least and at most, and their longest gap.
    least = _from_here(np.where(real, lo, np.iinfo(np.int64).max).min(axis=0, initial=np.iinfo(np.int64).max))
    most = _from_here(np.where(real, hi, 0).max(axis=0, initial=0))
    below = np.zeros(lo.shape[1], np.int64)
    gaps = np.zeros(lo.shape[1], np.int64)
    for row in range(len(lo) - 1, -1, -1):
        gap = np.where(real[row] & (below > 0), lo[row] - below - 1, 0)
        gaps, below = np.maximum(gaps, gap), np.where(real[row], hi[row], below)
    longest = np.maximum.accumulate(gaps[::-1])[::-1]
    for k in range(lo.shape[1]):
        # To an interval as long as every gap that is to come, all sums between the ends are reached.
        solid = reached[:, 1] - reached[:, 0] >= longest[k]
        if (solid & (reached[:, 0] + least[k] <= total) & (total <= reached[:, 1] + most[k])).any():
            return True
        part = _merged(lo[real[:, k], k], hi[real[:, k], k])
        sums = (reached[:, None, :] + part[None, :, :]).reshape(-1, 2)
        useful = (sums[:, 0] + least[k + 1] <= total) & (total <= sums[:, 1] + most[k + 1])
        if not useful.any():
            return False
        reached = _merged(sums[useful, 0], sums[useful, 1])
    return bool(((reached[:, 0] <= total) & (total <= reached[:, 1])).any())


def _from_here(values: Ints) -> Ints:
    """Of (K,) the sums from each on, (K + 1,): the last one is 0."""
    return np.append(np.cumsum(values[::-1])[::-1], 0)
