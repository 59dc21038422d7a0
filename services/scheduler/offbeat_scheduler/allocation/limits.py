"""What fits into a cycle: samples by updates, updates by samples, in whole and in real numbers.

Each learner has one or two budgets, the cycle's seconds and perhaps joules, and spends of each

    per_update · tau · d + per_sample · d + fixed   <=   limit

The most samples at tau, D_k(tau) = (limit - fixed) / (per_update tau + per_sample), fall with tau; so
does the minimum of two such curves, and nothing else is asked of them anywhere.

Whether whole numbers fit is decided in one place, `fits`, and floors are corrected until they
agree with it: a quotient that is an ulp off can't say in one place that 3 updates fit and in another
that they don't. Rounding is monotone, so `fits` never becomes true again as tau or d
grows, and `samples_at` and `updates_on` are exact inverses of each other:

    d <= samples_at(tau)   if and only if   tau <= updates_on(d)      (tau >= 0, d >= 1)

A budget of 0.3 s holds 3 samples of 0.1 s, although 3 x 0.1 > 0.3 in binary: what exceeds a limit by no more
than rounding (`ROUNDING` of it) fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat_scheduler.allocation.problem import MOST_WHOLE, Floats, Ints, Problem

ROUNDING = 1e-12


@dataclass(frozen=True)
class Budget:
    """Of one kind, for each learner: shape (K,). `unit` is for people."""

    per_update: Floats
    per_sample: Floats
    fixed: Floats
    limit: Floats
    unit: str

    def use(self, tau: npt.ArrayLike, samples: npt.ArrayLike) -> Floats:
        """Of whole numbers: tau x samples is exact, so that each term grows with both."""
        d = np.asarray(samples)
        updates: Ints = np.asarray(tau) * d
        return np.asarray(self.per_update * updates + self.per_sample * d + self.fixed)


@dataclass(frozen=True)
class Limits:
    """The budgets of K learners. Arguments are of shape (K,) or scalars; results of shape (K,)."""

    budgets: tuple[Budget, ...]

    @classmethod
    def of(cls, problem: Problem) -> Limits:
        cycle = np.full(problem.learners, problem.cycle_s)
        time = Budget(problem.compute, problem.transfer, problem.fixed, cycle, "s")
        if (energy := problem.energy) is None or not np.isfinite(energy.limit).any():
            return cls((time,))
        joules = Budget(energy.per_sample_update, energy.per_sample, energy.fixed, energy.limit, "J")
        return cls((time, joules))

    @property
    def learners(self) -> int:
        return len(self.budgets[0].limit)

    def part(self, k: int) -> Limits:
        """Those of one learner."""
        at = slice(k, k + 1)
        return Limits(
            tuple(
                Budget(b.per_update[at], b.per_sample[at], b.fixed[at], b.limit[at], b.unit)
                for b in self.budgets
            )
        )

    # ---- whole numbers ------------------------------------------------------------

    def fits(self, tau: npt.ArrayLike, samples: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Can each learner make tau updates on so many samples?"""
        fits = np.ones(self.learners, bool)
        for budget in self.budgets:
            fits &= budget.use(tau, samples) <= budget.limit * (1 + ROUNDING)
        return fits

    def samples_at(self, tau: npt.ArrayLike) -> Ints:
        """The most samples on which tau updates fit: 0 if not even one, at most MOST_WHOLE."""
        most = np.clip(np.floor(self.room(tau, 1 + ROUNDING)), 0, MOST_WHOLE).astype(np.int64)
        while (over := (most > 0) & ~self.fits(tau, most)).any():
            most -= over
        while (under := (most < MOST_WHOLE) & self.fits(tau, most + 1)).any():
            most += under
        return most

    def updates_on(self, samples: npt.ArrayLike) -> Ints:
        """The most updates that fit on so many samples; -1 if not even their transfer does."""
        d = np.asarray(samples)
        most = np.clip(np.floor(self.pace(d, 1 + ROUNDING)), -1, MOST_WHOLE).astype(np.int64)
        while (over := (most >= 0) & ~self.fits(most, d)).any():
            most -= over
        while (under := self.fits(most + 1, d)).any():
            most += under
        return most

    def samples_filling(self, tau: npt.ArrayLike, share: float) -> Ints:
        """The least samples, 1 or more, with which tau updates use at least `share` of one of the budgets."""
        least = np.clip(np.ceil(self.room(tau, share * (1 - ROUNDING))), 1, MOST_WHOLE).astype(np.int64)
        while (under := (least < MOST_WHOLE) & ~self._fills(tau, least, share)).any():
            least += under
        while (over := (least > 1) & self._fills(tau, least - 1, share)).any():
            least -= over
        return least

    def _fills(self, tau: npt.ArrayLike, samples: Ints, share: float) -> npt.NDArray[np.bool_]:
        fills = np.zeros(self.learners, bool)
        for budget in self.budgets:
            fills |= budget.use(tau, samples) >= budget.limit * (share * (1 - ROUNDING))
        return fills

    # ---- real numbers -------------------------------------------------------------

    def room(self, tau: npt.ArrayLike, share: float = 1.0) -> Floats:
        """D_k(tau), within `share` of the limits: real samples; negative where the fixed part is more."""
        updates = np.asarray(tau)
        room = np.full(self.learners, math.inf)
        for budget in self.budgets:
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                one = (budget.limit * share - budget.fixed) / (
                    budget.per_update * updates + budget.per_sample
                )
            np.fmin(room, one, out=room)
        return room

    def pace(self, samples: npt.ArrayLike, share: float = 1.0) -> Floats:
        """tau_k(d), within `share` of the limits: real updates; negative where the transfer is more."""
        d = np.asarray(samples)
        pace = np.full(self.learners, math.inf)
        for budget in self.budgets:
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                one = (budget.limit * share - budget.fixed - budget.per_sample * d) / (budget.per_update * d)
            np.fmin(pace, one, out=pace)
        return pace
