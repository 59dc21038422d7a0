"""Smoothed measurements: step times, commit times, losses."""

from __future__ import annotations

import statistics
from collections import deque


class SmoothedMean:
    """Exponential average without bias towards its start.

    The first value counts fully, as in Adam's correction (Kingma, Ba 2015, sec. 3):
    the weights of the values seen so far always sum to 1.

    Args:
        weight: of a new value, in (0, 1]; 0.2 remembers about the last five.
    """

    def __init__(self, weight: float = 0.2) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"weight: {weight} is not in (0, 1]")
        self._weight = weight
        self._sum = 0.0
        self._norm = 0.0
        self.count = 0

    def add(self, value: float) -> float:
        self._sum += self._weight * (value - self._sum)
        self._norm += self._weight * (1.0 - self._norm)
        self.count += 1
        return self.value

    @property
    def value(self) -> float:
        """The average so far; 0 before the first value."""
        return self._sum / self._norm if self._norm else 0.0


class RunningMedian:
    """The median of the last few values: one far out changes nothing, a change shows after half of them.

    Args:
        window: how many values.
    """

    def __init__(self, window: int = 5) -> None:
        if window < 1:
            raise ValueError(f"window: {window} is not positive")
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> float:
        self._values.append(value)
        return self.value

    @property
    def value(self) -> float:
        """0 before the first value."""
        return statistics.median(self._values) if self._values else 0.0
