"""How long a model takes to solve an allocation: for the operator. No decision reads it."""

from __future__ import annotations

from collections.abc import Callable


def still() -> float:
    """A clock that stands still, for decisions that are simulated or replayed."""
    return 0.0


class SolveTime:
    """Seconds of the last allocation and of the slowest.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = still) -> None:
        self.now = clock
        self.last_s = 0.0
        self.max_s = 0.0
        self._not_taken_s = 0.0

    def took(self, began: float) -> None:
        """An allocation that was begun at `began` is there."""
        self.last_s = self._not_taken_s = self.now() - began
        self.max_s = max(self.max_s, self.last_s)

    def take(self) -> float:
        """Seconds of an allocation that is new since the last call; 0: there is none."""
        taken, self._not_taken_s = self._not_taken_s, 0.0
        return taken
