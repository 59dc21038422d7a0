"""What a device's own counts show it to need between two commits.

A step and a commit that fit the interval on average may still come too late for many
deadlines: where a device runs in bursts (a container's share of a processor, a radio
that sleeps), the stall between two bursts decides, and no mean shows it. So the counts do. A
device that visibly made fewer commits than it was dealt needs the interval that it achieved, and
is not given a shorter one; while it keeps up, that comes down again slowly, towards what
its measured times say, for what slowed it down may be over. Each time that it has to rise again it stays up
for twice as long: the interval neither swings nor stays long for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ENOUGH_DEADLINES = 10
ALL_DEADLINES = 30
"""A device is judged by so many deadlines at a time: it falls short after the lower number at the
earliest, and has kept up after the higher one."""

TOLERATED = 0.1
"""The share of deadlines that may be missed: those are made up for in the next check period."""

TOLERATED_COMMITS = 2
"""One may be on its way, and one just missed."""

SAME = 0.1
"""An interval that differs by less is the same."""

SPARE = 1.1
"""The interval is so much longer than the one achieved: who always misses some can catch up on none."""

RISE = 1.6
"""It rises by no more at a time: who was cut off for a moment is not slow."""

FALL_PERIODS = 16.0
"""What it has in excess of the measured need falls to 1/e of itself in so many check periods."""

HOLD_PERIODS = 4.0
MOST_HOLD_PERIODS = 64.0
NEAR = 1.02


@dataclass
class Shown:
    """One device's evidence. `need_s`: seconds that it needs for each commit; 0: it keeps up."""

    check_period_s: float
    need_s: float = 0.0
    _interval_s: float = 0.0
    _span_s: float = 0.0
    _dealt: int = 0
    _missed: int = 0
    _held_until_s: float = -math.inf
    _hold_periods: float = HOLD_PERIODS
    _fell: bool = False

    def take(
        self, now_s: float, interval_s: float, span_s: float, dealt: int, missed: int, measured_s: float
    ) -> None:
        """What came of the deadlines of the last `span_s` seconds.

        Args:
            interval_s: of the whole fleet; where it changes, the evidence begins anew.
            dealt: deadlines that it was given.
            missed: of these, and of earlier ones, what has by now turned out to be missing; negative
                where that was said of commits which have come after all.
            measured_s: its step and commit time.
        """
        if abs(interval_s - self._interval_s) > SAME * interval_s:
            self._interval_s, self._span_s, self._dealt, self._missed = interval_s, 0.0, 0, 0
        self._span_s += span_s
        self._dealt += dealt
        self._missed += missed
        short = self._missed > max(TOLERATED_COMMITS, TOLERATED * self._dealt)
        if self._dealt < (ENOUGH_DEADLINES if short else ALL_DEADLINES):
            return
        span_s, dealt, made = self._span_s, self._dealt, self._dealt - self._missed
        self._span_s, self._dealt, self._missed = 0.0, 0, 0
        if short and made > 0:  # who made none was not there, which says nothing of its pace
            self._rise(now_s, span_s / made, interval_s)
        elif not short:
            # What was kept is not too short, whatever was thought of it.
            self.need_s = min(self.need_s, interval_s)
            if now_s >= self._held_until_s:
                self._fall(span_s, measured_s)

    def _rise(self, now_s: float, achieved_s: float, interval_s: float) -> None:
        need_s = min(SPARE * achieved_s, RISE * max(self.need_s, interval_s))
        if need_s <= self.need_s:
            return
        if self._fell:
            self._hold_periods = min(2 * self._hold_periods, MOST_HOLD_PERIODS)
        self.need_s, self._fell = need_s, False
        self._held_until_s = now_s + self._hold_periods * self.check_period_s

    def _fall(self, span_s: float, measured_s: float) -> None:
        if self.need_s <= NEAR * measured_s:
            self.need_s = 0.0
            return
        left = math.exp(-span_s / (FALL_PERIODS * self.check_period_s))
        self.need_s = measured_s + left * (self.need_s - measured_s)
        self._fell = True
