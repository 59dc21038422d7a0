"""How much progress a second of training makes at a commit interval.

Device i trains v_i steps per second, for the share of time in which no commit holds it:
1 - c_i/I at interval I. A step counts for less the older the model is that it was made on,
roughly 1/(1 + kappa * age); the age is the interval, and with overlap the travel d_i as well:

    P(I) = sum_i v_i (1 - c_i/I) / (1 + kappa (I + d_i))

Waiting for the commit: c_i = O_i, d_i = 0, and for equal devices the best interval is
O + sqrt(O^2 + O/kappa) (`docs/adsp.md`). Overlapped: c_i is what a commit holds of the training
thread, d_i = O_i, and the best interval is h + sqrt(h^2 + h (1/kappa + d)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PRIOR_KAPPA_PER_STEP = 0.004
"""kappa per second is this times the fleet's mean steps per second (`docs/adsp.md`)."""

GROUPS = 32
"""More devices than this are averaged in groups of like ones: the cost of a decision stays bounded."""


@dataclass(frozen=True)
class Terms:
    """What P(I) needs of each device: three vectors of shape (devices,).

    Args:
        speed: v_i, steps per second.
        held: c_i, seconds per commit in which the device does not train.
        delay: d_i, seconds by which a commit's travel ages the model.
    """

    speed: np.ndarray
    held: np.ndarray
    delay: np.ndarray

    @property
    def mean_speed(self) -> float:
        """Steps per second of the mean device; 0 without devices."""
        return float(self.speed.mean()) if self.speed.size else 0.0

    @cached_property
    def mean_held(self) -> float:
        """Weighted by speed."""
        return float(np.average(self.held, weights=self.speed))

    @cached_property
    def mean_delay(self) -> float:
        """Weighted by speed."""
        return float(np.average(self.delay, weights=self.speed))

    @cached_property
    def grouped(self) -> Terms:
        """At most `GROUPS` devices that stand for all of them; total speed is kept."""
        if self.speed.size <= GROUPS:
            return self
        order = np.lexsort((self.speed, self.delay, self.held))
        parts = np.array_split(order, GROUPS)
        speed = np.array([self.speed[part].sum() for part in parts])
        return Terms(
            speed,
            np.array([np.average(self.held[part], weights=self.speed[part]) for part in parts]),
            np.array([np.average(self.delay[part], weights=self.speed[part]) for part in parts]),
        )

    def progress(self, intervals: np.ndarray, kappa: np.ndarray) -> np.ndarray:
        """P in effective steps per second of the whole fleet.

        Args:
            intervals: seconds, shape (n,).
            kappa: 1/s, shape (k,).

        Returns:
            Shape (k, n).
        """
        terms = self.grouped
        intervals = np.asarray(intervals, dtype=float)
        kappa = np.asarray(kappa, dtype=float)
        total = np.zeros((kappa.size, intervals.size))
        for speed, held, delay in zip(terms.speed, terms.held, terms.delay, strict=True):
            share = speed * np.maximum(0.0, 1.0 - held / intervals)
            total += share / (1.0 + kappa[:, None] * (intervals + delay))
        return total


def equal_interval(held_s: float, delay_s: float, kappa: float) -> float:
    """The best interval of equal devices, seconds: h + sqrt(h^2 + h (1/kappa + d))."""
    return held_s + math.sqrt(held_s**2 + held_s * (1.0 / kappa + delay_s))


def candidates(floor_s: float, ceiling_s: float, count: int = 160) -> np.ndarray:
    """Intervals from floor to ceiling, evenly on a logarithmic scale, shape (count,)."""
    if ceiling_s <= floor_s:
        return np.array([ceiling_s])
    return np.geomspace(floor_s, ceiling_s, count)


def best_interval(terms: Terms, kappa: float, floor_s: float, ceiling_s: float) -> float:
    """The interval in [floor, ceiling] with the greatest P, seconds.

    Found on a logarithmic grid and again on a finer one around its best point: for unequal
    devices P is no simple function, but it is smooth.
    """
    intervals = candidates(floor_s, ceiling_s)
    for _ in range(2):
        values = terms.progress(intervals, np.array([kappa]))[0]
        best = int(values.argmax())
        low, high = intervals[max(0, best - 1)], intervals[min(intervals.size - 1, best + 1)]
        intervals = candidates(float(low), float(high), 64)
    values = terms.progress(intervals, np.array([kappa]))[0]
    return float(intervals[values.argmax()])
