"""The source's search, to the letter (Hu, Wang, Wu, AAAI 2020, its scheduler's algorithm).

    each epoch:  r1 = evaluate(C), r2 = evaluate(C + 1), from C = 1;
                 while r2 > r1: C += 1, r1 = r2, r2 = evaluate(C + 1);  keep the last that improved
    evaluate(C): train one probe; take three losses, at its start, middle and end, each the mean of
                 the last evaluations; fit l(t) = 1/(a1^2 t + a2) + a3;
                 reward r = a1^2 / (1/(l* - a3) - a2)

l* is the target loss if the run has one, else 0.9 of the loss at the search's start. Three points
determine three parameters, so the fit is exact. It is here for comparison and keeps its weaknesses
(`docs/adsp.md`, "The alternatives"); `robust.py` is free of them.
"""

from __future__ import annotations

import math
from collections import deque

from offbeat_scheduler.search.base import Search, Segment, period
from offbeat_scheduler.search.pace import Pace
from offbeat_scheduler.sync import Loss, Probe

GOAL = 0.9
"""Without a target loss, l* is this times the loss at the search's start."""

KEPT_LOSSES = 1000


def fit_three(start: float, middle: float, end: float, duration: float) -> tuple[float, float, float] | None:
    """(a1 squared, a2, a3) of l(t) = 1/(a1^2 t + a2) + a3 through three equidistant losses, t from 0.

    1/(l - a3) is linear in t, so at the middle it is the mean of its ends; that fixes a3. None
    where no such curve passes through them: on a line, through the asymptote, or if a1 is not real.
    """
    bend = start + end - 2 * middle
    if bend == 0 or duration <= 0:
        return None
    a3 = (2 * start * end - middle * (start + end)) / bend
    if a3 in (start, end):
        return None
    a2 = 1 / (start - a3)
    a1_squared = (1 / (end - a3) - a2) / duration
    return (a1_squared, a2, a3) if a1_squared >= 0 else None


def reward(curve: tuple[float, float, float] | None, goal: float) -> float:
    """The source's reward: one over the time from the probe's start to the goal. 0 where it is undefined."""
    if curve is None:
        return 0.0
    a1_squared, a2, a3 = curve
    if goal == a3:
        return 0.0
    steps = 1 / (goal - a3) - a2
    return a1_squared / steps if steps else 0.0


class SourceSearch(Search):
    """Climb from one commit per check period as long as the reward rises.

    Args:
        probe_s: seconds per probe; 0: one check period.
        epoch_s: search again after so long.
        evaluations: each of a probe's three losses is the mean of the last so many.
        target_loss: l*, or None.
    """

    def __init__(
        self,
        probe_s: float = 0.0,
        epoch_s: float = 1200.0,
        evaluations: int = 3,
        target_loss: float | None = None,
    ) -> None:
        super().__init__()
        self.probe_s = probe_s
        self.epoch_s = epoch_s
        self.target_loss = target_loss
        self._recent: deque[Loss] = deque(maxlen=KEPT_LOSSES)
        self._evaluations = evaluations
        self._goal = 0.0
        self._epoch_start: float | None = None
        self._rate = 1
        self._best: Probe | None = None
        self._trying = 0  # the candidate of the probe under way; 0: none
        self._probe_start = 0.0

    def observe(self, loss: Loss) -> None:
        if self._recent and self._recent[-1].source != loss.source:
            # Never two kinds of loss in one search: this one starts over.
            self._recent.clear()
            self._trying = 0
            self._epoch_start = None
        self._recent.append(loss)

    def next(self, pace: Pace) -> Segment:
        if self._trying:
            self._finish(pace)
        elif self._due(pace):
            self._begin(pace)
        if self._trying:
            self.searching = True
            self._probe_start = pace.now_s
            return self._probe(pace, self._trying)
        self.searching = self._epoch_start is None
        return period(pace, self._rate)

    def revise(self, pace: Pace, current: Segment) -> Segment | None:
        # l* needs a loss: the first search begins with the first one.
        if self._epoch_start is None and not self._trying and self._recent:
            return self.next(pace)
        return None

    def _due(self, pace: Pace) -> bool:
        if not self._recent:
            return False
        return self._epoch_start is None or pace.now_s >= self._epoch_start + self.epoch_s

    def _begin(self, pace: Pace) -> None:
        self._epoch_start = pace.now_s
        self._goal = self.target_loss if self.target_loss is not None else GOAL * self._loss_at(pace.now_s)
        self._best = None
        self._rate = 1
        self._trying = 1

    def _finish(self, pace: Pace) -> None:
        end = pace.now_s
        middle = (self._probe_start + end) / 2
        first, second, last = (self._loss_at(moment) for moment in (self._probe_start, middle, end))
        gained = reward(fit_three(first, second, last, end - self._probe_start), self._goal)
        probe = Probe(
            rate=self._trying,
            interval_s=self._probe(pace, self._trying).interval_s,
            start_s=self._probe_start,
            end_s=end,
            loss_start=first,
            loss_end=last,
            reward=gained,
        )
        self._probes.append(probe)
        if self._best is None or gained > self._best.reward:
            self._best, self._rate = probe, self._trying
            self._trying = self._trying + 1 if self._trying < pace.max_rate else 0
        else:
            self._trying = 0
        if self._trying == 0:
            self._mark_chosen(self._best)

    def _probe(self, pace: Pace, rate: int) -> Segment:
        if not self.probe_s:
            return period(pace, rate)
        commits = max(1, round(rate * self.probe_s / pace.check_period_s))
        return Segment(self.probe_s / commits, commits)

    def _loss_at(self, moment: float) -> float:
        """The mean of the last evaluations up to a moment; of the first one if all are later."""
        values = [loss.value for loss in self._recent if loss.at_s <= moment][-self._evaluations :]
        if not values:
            values = [self._recent[0].value]
        return math.fsum(values) / len(values)
