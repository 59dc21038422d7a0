"""How long a local update takes on this device: the speed that decisions read."""

from __future__ import annotations

from offbeat_core.averages import SmoothedMean

CHUNK_S = 0.25


class StepTime:
    """Smoothed seconds per local update.

    Short updates are averaged over a quarter of a second first, or the smoothed value
    would follow the system's jitter; so it remembers about the last five updates, or the
    last 1.25 s if that is more. The first update, which warms caches up, counts only
    until there is a second one.
    """

    def __init__(self) -> None:
        self._mean = SmoothedMean()
        self._updates = 0
        self._sum = 0.0
        self._count = 0

    def add(self, step_s: float) -> None:
        self._updates += 1
        if self._updates == 1:
            self._mean.add(step_s)
            return
        if self._updates == 2:
            self._mean = SmoothedMean()
        self._sum += step_s
        self._count += 1
        if self._sum >= CHUNK_S or self._mean.count == 0:
            self._mean.add(self._sum / self._count)
            self._sum, self._count = 0.0, 0

    def resize(self, ratio: float) -> None:
        """Updates take `ratio` times the samples from now on: so much longer, until one was measured."""
        guess = self._mean.value * ratio
        self._mean = SmoothedMean()
        self._sum, self._count = 0.0, 0
        self._updates = 0
        if guess:
            self.add(guess)

    @property
    def value(self) -> float:
        """0 before the first update."""
        return self._mean.value
