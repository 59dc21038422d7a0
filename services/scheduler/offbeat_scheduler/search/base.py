"""What a search is, and the simplest one: a fixed rate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, replace

from offbeat_scheduler.search.pace import Pace
from offbeat_scheduler.sync import Loss, Probe

KEPT_PROBES = 100
"""Probes are reported for so long: a run of days must not grow."""

START_INTERVAL_S = 2.0
"""Before anything is measured: short enough to measure a commit within seconds."""


@dataclass(frozen=True)
class Segment:
    """`commits` commits of each worker, `interval_s` apart.

    At its end counts are compared, and the search is asked again.
    """

    interval_s: float
    commits: int

    @property
    def duration_s(self) -> float:
        return self.interval_s * self.commits


def start_interval(pace: Pace) -> float:
    """A safe interval while commit times are unknown, seconds."""
    return max(min(pace.check_period_s / 4, START_INTERVAL_S), pace.floor_s)


def period(pace: Pace, rate: int) -> Segment:
    """One check period at a rate."""
    return Segment(pace.check_period_s / rate, rate)


class Search(ABC):
    """Chooses the interval, segment by segment."""

    def __init__(self) -> None:
        self.searching = False
        self._probes: deque[Probe] = deque(maxlen=KEPT_PROBES)

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Finished ones, oldest first."""
        return tuple(self._probes)

    def observe(self, loss: Loss) -> None:  # noqa: B027 - a search may do without losses
        """A new loss."""

    def pause(self, now_s: float) -> None:  # noqa: B027
        """Nobody trains from now on, until `next` or `revise` is called again."""

    @abstractmethod
    def next(self, pace: Pace) -> Segment:
        """What comes now: training begins, or the last segment has ended. The fleet is not empty."""

    def revise(self, pace: Pace, current: Segment) -> Segment | None:
        """A segment to cut the current one short with, or None. Asked at every decision."""
        return None

    def _mark_chosen(self, chosen: Probe | None) -> None:
        self._probes = deque(
            (replace(probe, chosen=probe is chosen) for probe in self._probes), maxlen=KEPT_PROBES
        )


class FixedRate(Search):
    """The operator's rate, whatever the fleet."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate

    def next(self, pace: Pace) -> Segment:
        return period(pace, self.rate)
