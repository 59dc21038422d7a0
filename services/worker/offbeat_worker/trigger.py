"""When to commit: at deadlines of a fixed grid, after n steps, or after n passes over the samples.

Pure: the training thread asks at each batch boundary and passes the time in.

Deadlines lie at t0 + k * interval (`docs/adsp.md`). The next one is the first grid point
later than the last one served + interval / 2, so that a grid which shifts by the
network's jitter, or changes its interval, neither serves a deadline twice nor
loses one. A deadline that passes while a commit is in flight stays due until the
flight ends; of several missed ones a single one is served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Commit at origin_s + k * interval_s, on this device's monotonic clock."""

    origin_s: float
    interval_s: float

    def first_after(self, moment_s: float) -> float:
        """The first grid point later than `moment_s`."""
        k = math.floor((moment_s - self.origin_s) / self.interval_s) + 1
        point = self.origin_s + k * self.interval_s
        # Rounding may put the point on, or before, the moment.
        return point if point > moment_s else self.origin_s + (k + 1) * self.interval_s

    def last_up_to(self, moment_s: float) -> float:
        """The last grid point not later than `moment_s`."""
        return self.first_after(moment_s) - self.interval_s


@dataclass(frozen=True)
class Steps:
    """Commit after so many local updates."""

    count: int


@dataclass(frozen=True)
class Passes:
    """Commit after so many passes over the given samples."""

    count: int


Rule = Grid | Steps | Passes


class Trigger:
    """Says at a batch boundary whether a commit is due."""

    def __init__(self) -> None:
        self._rule: Rule | None = None
        self._deadline: float | None = None  # the next one, under a grid
        self._served: float | None = None  # the last one

    def set(self, rule: Rule, now_s: float) -> None:
        """A new rule holds from now on. A deadline that is due stays due."""
        overdue = self._deadline if self._deadline is not None and self._deadline <= now_s else None
        self._rule = rule
        if not isinstance(rule, Grid):
            self._deadline = None
        elif overdue is not None:
            self._deadline = overdue
        else:
            # Points of the new grid that already lie behind us were never ours to serve.
            after = now_s if self._served is None else max(now_s, self._served + rule.interval_s / 2)
            self._deadline = rule.first_after(after)

    def due(self, now_s: float, steps: int, passes: int) -> bool:
        """Is a commit due, `steps` and `passes` after the last cut? Never without a step."""
        if steps == 0:
            return False
        match self._rule:
            case Grid():
                return self._deadline is not None and now_s >= self._deadline
            case Steps(count):
                return steps >= count
            case Passes(count):
                return passes >= count
            case _:
                return False

    def served(self, now_s: float) -> None:
        """A commit was cut."""
        if isinstance(self._rule, Grid) and self._deadline is not None:
            # Deadlines missed meanwhile count as served by this commit.
            self._served = max(self._deadline, self._rule.last_up_to(now_s))
            self._deadline = self._rule.first_after(self._served + self._rule.interval_s / 2)

    @property
    def deadline_s(self) -> float | None:
        """The next deadline under a grid, else None."""
        return self._deadline
