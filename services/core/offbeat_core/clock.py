"""The real and the virtual clock.

Decisions never read a clock: the driver that calls them does, and passes the time
in. Both clocks count seconds from an arbitrary origin; nothing compares the wall
clocks of two devices.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...


class RealClock:
    """`time.monotonic`."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A discrete-event clock: time jumps from one scheduled call to the next.

    Calls due at the same time run in the order in which they were scheduled, so a
    simulation is deterministic.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule `call`; a time in the past means now."""
        heapq.heappush(self._queue, (max(when, self._now), next(self._order), call))

    def call_later(self, delay: float, call: Callable[[], None]) -> None:
        self.call_at(self._now + delay, call)

    @property
    def next_s(self) -> float | None:
        """When the next call is due; None if there is none."""
        return self._queue[0][0] if self._queue else None

    def step(self) -> bool:
        """Run the next call; False if there is none."""
        if not self._queue:
            return False
        self._now, _, call = heapq.heappop(self._queue)
        call()
        return True

    def run_until(self, when: float) -> None:
        """Run every call due up to `when`, then stand at `when`."""
        while self._queue and self._queue[0][0] <= when:
            self.step()
        self._now = max(self._now, when)
