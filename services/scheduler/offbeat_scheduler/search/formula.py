"""The constant formula: the best interval if kappa is what it was elsewhere.

No probe, no loss: I* follows from measured step and commit times alone (`progress.py`), with
kappa = 0.004 * mean steps per second. The optimum is flat, so this comes within 10 % of the
best fixed rate on what it was tried on (`docs/adsp.md`); it is the fallback of the robust search.
"""

from __future__ import annotations

import math

import numpy as np

from offbeat_scheduler.search.base import Search, Segment, period, start_interval
from offbeat_scheduler.search.pace import Pace
from offbeat_scheduler.search.progress import PRIOR_KAPPA_PER_STEP, best_interval

WORTH = 0.02
"""A rate in use is left for one that promises this much more progress: measured times jitter."""

PATIENCE_PERIODS = 2
"""A device of which nothing was measured for so many check periods is not waited for."""

TOO_SHORT = 0.9
"""An interval below this share of the floor is given up at once, not at the next checkpoint."""


def round_rate(pace: Pace, interval_s: float, value: np.ndarray, rates: np.ndarray) -> int:
    """The best of whole `rates` by `value`; both of shape (n,). `interval_s` only breaks ties."""
    best = value.max()
    tied = rates[value >= best - 1e-12 * abs(best)]
    return int(min(tied, key=lambda rate: abs(math.log(pace.check_period_s / rate / interval_s))))


def neighbours(pace: Pace, interval_s: float) -> np.ndarray:
    """The whole rates next to an interval, within what the fleet can keep; shape (1,) or (2,)."""
    exact = pace.check_period_s / interval_s
    rates = {min(max(1, rate), pace.max_rate) for rate in (math.floor(exact + 1e-9), math.ceil(exact - 1e-9))}
    return np.array(sorted(rates))


class FormulaSearch(Search):
    """I* from the prior, taken anew at each checkpoint."""

    def __init__(self, kappa_per_step: float = PRIOR_KAPPA_PER_STEP) -> None:
        super().__init__()
        self.kappa_per_step = kappa_per_step
        self._rate = 0
        self._names: tuple[str, ...] = ()
        self._began_s: float | None = None

    def next(self, pace: Pace) -> Segment:
        self._began_s = pace.now_s if self._began_s is None else self._began_s
        late = pace.usable and pace.now_s >= self._began_s + PATIENCE_PERIODS * pace.check_period_s
        if not (pace.measured or late):
            # As soon as everything is measured, `revise` ends this.
            return period(pace, self._rate) if self._rate else Segment(start_interval(pace), 1)
        best = self._best(pace)
        if self._rate == 0 or pace.names != self._names or self._gain(pace, best) > WORTH:
            self._rate = best
        self._names = pace.names
        return period(pace, self._rate)

    def revise(self, pace: Pace, current: Segment) -> Segment | None:
        if self._rate == 0:
            return self.next(pace) if pace.measured else None
        if current.interval_s < TOO_SHORT * pace.floor_s:
            self._rate = 0
            return self.next(pace)
        return None

    def _kappa(self, pace: Pace) -> np.ndarray:
        return np.array([self.kappa_per_step * pace.terms.mean_speed])

    def _best(self, pace: Pace) -> int:
        kappa = self._kappa(pace)
        interval_s = best_interval(pace.terms, float(kappa[0]), pace.floor_s, pace.check_period_s)
        rates = neighbours(pace, interval_s)
        value = pace.terms.progress(pace.check_period_s / rates, kappa)[0]
        return round_rate(pace, interval_s, value, rates)

    def _gain(self, pace: Pace, rate: int) -> float:
        """By how much more progress `rate` makes than the one in use; infinite if that is too high."""
        if self._rate > pace.max_rate:
            return math.inf
        intervals = pace.check_period_s / np.array([rate, self._rate])
        new, old = pace.terms.progress(intervals, self._kappa(pace))[0]
        return float(new / old - 1) if old > 0 else math.inf
