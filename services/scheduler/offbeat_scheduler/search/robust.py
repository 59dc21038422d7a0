"""Offbeat's own search: probe around the best guess, and judge by the whole run.

What it does about each fault of the source's search (`docs/adsp.md`, "The alternatives"):

1. *three points*: the curve is fitted to all losses of the run, robustly; a probe in which the
   loss did not fall earns nothing, a run in which it does not fall teaches nothing.
2. *l\\**: none. The reward is effective steps per second, the same scale for every candidate.
3. *slopes at different times*: time and progress are modelled apart (`posterior.py`): what share of
   the time trains is computed from measured times; only kappa is learned from the loss.
4. *probe length*: at least three commits of each worker (two, where three don't fit a check period),
   and at least two losses.
5. *change*: searched again when a device joins or leaves, when a speed changes by 30 %, when the
   loss rises by 30 %, and each epoch.
6. *flat optimum*: it ends as soon as knowing kappa better promises less than `ENOUGH` of progress.

Probes cycle I/1.6, I, 1.6 I, I around the best interval under what is known so far: the short ones
first, for too long an interval may cost a multiple, too short a one a share. The first one begins
with the training, at a safe interval, for step and commit times are yet to be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from offbeat_scheduler.search.base import Search, Segment, period, start_interval
from offbeat_scheduler.search.formula import PATIENCE_PERIODS, TOO_SHORT, WORTH, neighbours, round_rate
from offbeat_scheduler.search.pace import Pace
from offbeat_scheduler.search.posterior import Posterior
from offbeat_scheduler.search.progress import PRIOR_KAPPA_PER_STEP, candidates
from offbeat_scheduler.search.record import Point, Record
from offbeat_scheduler.sync import Loss, Probe

STEP = 1.6
CYCLE = (1 / STEP, 1.0, STEP, 1.0)
DISTINCT = 1.15
"""Intervals closer than this factor are the same probe."""

COMMITS_PER_PROBE = 3
LOSSES_PER_PROBE = 3
MIN_LOSSES = 2
MIN_PROBES = 2

KNOWN = 0.8
"""The search ends when the spread of log kappa is below this, or"""

ENOUGH = 0.01
"""when knowing kappa promises less than this share of progress."""

WASTE = 0.1
"""The first probe goes on at another interval if its own makes this share less progress."""

TOO_LONG = 0.03
"""Where the loss rises by this share in a probe, the interval is too long: no fall is as noisy."""

LEAST_FALL = 0.1
"""Without a target, the fall that counts is this share of the loss."""

CHANGE = 0.3
"""Share by which a speed, or the loss, has to change for a new search."""

SMOOTH = 5
"""The loss that rises is the mean of so many."""


@dataclass(frozen=True)
class _Open:
    """The probe under way."""

    start_s: float
    interval_s: float
    commits: int = 0  # planned so far


@dataclass(frozen=True)
class _Reference:
    """The fleet and the time at the last search's end: what changes are measured against."""

    end_s: float
    took_s: float
    pace: Pace


class RobustSearch(Search):
    """A rate that loses little whatever kappa is.

    Args:
        epoch_s: search again after so long, changed or not.
        max_probes: of one search.
        kappa_per_step: the prior's centre.
        target_loss: of the run; infinite: none.
    """

    def __init__(
        self,
        epoch_s: float = 1200.0,
        max_probes: int = 8,
        kappa_per_step: float = PRIOR_KAPPA_PER_STEP,
        target_loss: float = math.inf,
    ) -> None:
        super().__init__()
        self.epoch_s = epoch_s
        self.max_probes = max_probes
        self.target_loss = target_loss
        self.searching = True
        self.posterior = Posterior(kappa_per_step)
        self._record = Record()
        self._open: _Open | None = None
        self._began_s = 0.0
        self._finished: list[Probe] = []  # of this search
        self._position = 0  # in the cycle
        self._rate = 0  # the one that the last search ended with
        self._reference: _Reference | None = None
        self._recent: list[float] = []
        self._lowest = math.inf
        self._ceiling_s = math.inf  # no longer interval in this search and after it
        self._odd_checkpoints = 0

    # ---- what it is told -----------------------------------------------------------

    def observe(self, loss: Loss) -> None:
        if self._record.observe(loss):
            self._recent.clear()
            self._lowest = math.inf
            self._finished.clear()
        self._recent = [*self._recent, loss.value][-SMOOTH:]
        if len(self._recent) == SMOOTH:
            self._lowest = min(self._lowest, sum(self._recent) / SMOOTH)

    def _fall(self) -> float:
        """How far the loss is yet to fall: to the target, but at least by a tenth. 0: not yet known."""
        loss = sum(self._recent) / SMOOTH if len(self._recent) == SMOOTH else 0.0
        return max(loss - self.target_loss, LEAST_FALL * loss)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return (*self._probes, *self._finished)

    # ---- what it says --------------------------------------------------------------

    def next(self, pace: Pace) -> Segment:
        if self._open is None and self._reason_to_search(pace):
            self._begin(pace)
        if self._open is not None and self._complete(pace, self._open):
            self._finish(pace, self._open)
        segment = self._probe(pace) if self.searching else period(pace, self._settled_rate(pace))
        return self._under_way(pace, segment)

    def revise(self, pace: Pace, current: Segment) -> Segment | None:
        self._record.train(pace.now_s, current.interval_s, pace.terms, pace.travel_s, pace.known)
        too_short = current.interval_s < TOO_SHORT * pace.floor_s
        if not too_short and not self._started_badly(pace, current):
            return None
        # Commit times turned out long for the interval: the same probe (or rate) at a better one.
        if self._open is not None:
            interval_s = self._fitting(pace, self._best_interval(pace) / STEP**2)
            made = int((pace.now_s - self._open.start_s) / interval_s)
            self._open = replace(self._open, interval_s=interval_s, commits=made)
        return self.next(pace)

    def pause(self, now_s: float) -> None:
        self._record.pause(now_s)
        self._open = None  # the probe under way means nothing any more

    def _started_badly(self, pace: Pace, current: Segment) -> bool:
        """The first probe began before anything was measured: is it a waste, now that it is?"""
        if self._open is None or self._finished or self._reference is not None or not pace.measured:
            return False
        intervals = np.array([self._best_interval(pace), current.interval_s])
        best, now = self._worth(pace, intervals)
        return intervals[1] < intervals[0] / STEP and best - now > WASTE

    # ---- one search ----------------------------------------------------------------

    def _begin(self, pace: Pace) -> None:
        self.searching = True
        self._began_s = pace.now_s
        self._probes.extend(self._finished)
        self._finished = []
        self._position = 0
        self._ceiling_s = math.inf
        interval_s = self._best_interval(pace) if pace.measured else start_interval(pace)
        self._open = _Open(pace.now_s, interval_s)

    def _probe(self, pace: Pace) -> Segment:
        """The rest of the probe under way, as far as it can be planned."""
        if self._open is None:
            self._open = _Open(pace.now_s, self._next_interval(pace))
        probe = self._open
        elapsed_s = pace.now_s - probe.start_s
        missing_s = max(self._losses(pace) * self._record.cadence_s() - elapsed_s, 0.0)
        commits = max(
            self._commits(pace, probe.interval_s) - probe.commits,
            math.ceil(missing_s / probe.interval_s),
            1,
        )
        if not pace.measured:
            commits = 1  # look again soon
        self._open = replace(probe, commits=probe.commits + commits)
        return Segment(probe.interval_s, commits)

    def _complete(self, pace: Pace, probe: _Open) -> bool:
        elapsed_s = pace.now_s - probe.start_s
        if probe.commits < self._commits(pace, probe.interval_s):
            return False
        patient_s = max(PATIENCE_PERIODS * pace.check_period_s, 4 * probe.interval_s)
        if pace.usable and elapsed_s >= patient_s:
            return True  # no loss, or no measurement, for so long: go on without
        return pace.measured and len(self._record.between(probe.start_s, pace.now_s)) >= MIN_LOSSES

    def _commits(self, pace: Pace, interval_s: float) -> int:
        """How many commits of each worker make a probe."""
        fit = math.floor(pace.check_period_s / interval_s + 1e-9)
        return min(COMMITS_PER_PROBE, max(COMMITS_PER_PROBE - 1, fit))

    def _losses(self, pace: Pace) -> int:
        """How many losses a probe should see: fewer where that would take longer than a check period."""
        fit = LOSSES_PER_PROBE * self._record.cadence_s() <= pace.check_period_s
        return LOSSES_PER_PROBE if fit else MIN_LOSSES

    def _finish(self, pace: Pace, probe: _Open) -> None:
        points = self._record.between(probe.start_s, pace.now_s)
        first, last = _ends(points)
        self._finished.append(
            Probe(
                rate=pace.check_period_s / probe.interval_s,
                interval_s=probe.interval_s,
                start_s=probe.start_s,
                end_s=pace.now_s,
                loss_start=first,
                loss_end=last,
                reward=0.0,
            )
        )
        self._open = None
        if points and last > (1 + TOO_LONG) * first:
            self._ceiling_s = min(self._ceiling_s, probe.interval_s / STEP)
        # Both are of this moment and stay together: what an interval adds to the loss falls along with the
        # loss. Held against a fall that shrinks towards the target, it made intervals ever shorter.
        self.posterior.fall = self._fall()
        self.posterior.update(self._record)
        self._appraise(pace)
        if self._done(pace):
            self._end(pace)

    def _appraise(self, pace: Pace) -> None:
        """Rewards of this search's probes, under what is known now: comparable whenever they were made."""
        intervals = np.array([probe.interval_s for probe in self._finished])
        progress = self.posterior.progress(pace.terms, intervals)
        self._finished = [
            replace(probe, reward=float(value) if probe.loss_end < probe.loss_start else 0.0)
            for probe, value in zip(self._finished, progress, strict=True)
        ]

    def _done(self, pace: Pace) -> bool:
        if len(self._finished) < MIN_PROBES:
            return False
        if len(self._finished) >= self.max_probes or self.posterior.spread < KNOWN:
            return True
        intervals = self._candidates(pace)
        chosen = int(self.posterior.worth(pace.terms, intervals).argmax())
        return self.posterior.regret(pace.terms, intervals, chosen) < ENOUGH

    def _end(self, pace: Pace) -> None:
        self.searching = False
        self._rate = self._best_rate(pace)
        self._reference = _Reference(pace.now_s, pace.now_s - self._began_s, pace)
        self._odd_checkpoints = 0
        self._lowest = math.inf
        interval_s = pace.check_period_s / self._rate
        earned = [probe for probe in self._finished if probe.reward > 0] or self._finished
        nearest = min(earned, key=lambda probe: abs(math.log(probe.interval_s / interval_s)))
        self._probes.extend(self._finished)
        self._finished = []
        self._mark_chosen(nearest)

    def _next_interval(self, pace: Pace) -> float:
        """The next of the cycle that differs from the probe before."""
        centre = self._best_interval(pace)
        last = self._finished[-1].interval_s if self._finished else 0.0
        for _ in CYCLE:
            interval_s = self._fitting(pace, centre * CYCLE[self._position % len(CYCLE)])
            self._position += 1
            if not last or abs(math.log(interval_s / last)) > math.log(DISTINCT):
                return interval_s
        return self._fitting(pace, centre / STEP if centre * STEP > pace.check_period_s else centre * STEP)

    def _fitting(self, pace: Pace, interval_s: float) -> float:
        """Within what the fleet can keep; short of a check period so that two commits fit it, if they can."""
        if interval_s > pace.check_period_s / 2 > DISTINCT * pace.floor_s:
            interval_s = pace.check_period_s / 2 if self._short_of_time(pace) else interval_s
        return max(min(interval_s, pace.check_period_s, self._ceiling_s), pace.floor_s)

    def _short_of_time(self, pace: Pace) -> bool:
        """Until the first search has its two probes, a long one would delay everything."""
        return self._reference is None and len(self._finished) < MIN_PROBES

    # ---- the rate ------------------------------------------------------------------

    def _candidates(self, pace: Pace) -> np.ndarray:
        return candidates(pace.floor_s, min(pace.check_period_s, max(self._ceiling_s, pace.floor_s)))

    def _best_interval(self, pace: Pace) -> float:
        intervals = self._candidates(pace)
        return float(intervals[self.posterior.worth(pace.terms, intervals).argmax()])

    def _best_rate(self, pace: Pace) -> int:
        interval_s = self._best_interval(pace)
        rates = neighbours(pace, interval_s)
        return round_rate(pace, interval_s, self._worth(pace, pace.check_period_s / rates), rates)

    def _worth(self, pace: Pace, intervals: np.ndarray) -> np.ndarray:
        return self.posterior.worth(pace.terms, intervals, self._candidates(pace))

    def _settled_rate(self, pace: Pace) -> int:
        """The rate in use, unless measured times have moved the optimum away from it."""
        best = self._best_rate(pace) if pace.measured else self._rate
        worth = self._worth(pace, pace.check_period_s / np.array([best, self._rate]))
        if self._rate > pace.max_rate or worth[0] - worth[1] > WORTH:
            self._rate = best if pace.measured else min(self._rate, pace.max_rate)
        return self._rate

    # ---- when to search again --------------------------------------------------------

    def _reason_to_search(self, pace: Pace) -> bool:
        if self.searching:
            return self._reference is None and not self._finished  # the run's first
        then = self._reference
        if then is None:
            return True
        if pace.now_s >= then.end_s + self.epoch_s:
            return True
        if self._loss_rose():
            self._record.forget_before(then.end_s)
            self._lowest = math.inf
            return True
        odd = pace.names != then.pace.names or _speed_changed(then.pace, pace)
        self._odd_checkpoints = self._odd_checkpoints + 1 if odd else 0
        # Not at once and not without end: a fleet in which someone always comes or goes has to train.
        rested = pace.now_s >= then.end_s + max(2 * pace.check_period_s, 2 * then.took_s)
        return odd and rested and (pace.names != then.pace.names or self._odd_checkpoints > 1)

    def _loss_rose(self) -> bool:
        if len(self._recent) < SMOOTH or not math.isfinite(self._lowest):
            return False
        return sum(self._recent) / SMOOTH > (1 + CHANGE) * self._lowest

    def _under_way(self, pace: Pace, segment: Segment) -> Segment:
        self._record.train(pace.now_s, segment.interval_s, pace.terms, pace.travel_s, pace.known)
        return segment


def _speed_changed(then: Pace, now: Pace) -> bool:
    bound = math.log(1 + CHANGE)
    pairs = [(then.step_s[name], now.step_s[name]) for name in then.step_s if name in now.step_s]
    if then.travel_s > 0 and now.travel_s > 0:
        pairs.append((then.travel_s, now.travel_s))
    return any(abs(math.log(after / before)) > bound for before, after in pairs)


def _ends(points: list[Point]) -> tuple[float, float]:
    """The loss at a probe's start and at its end: means of a third of its points (at least one) each."""
    if not points:
        return 0.0, 0.0
    third = max(1, len(points) // 3)
    values = [point.value for point in points]
    return sum(values[:third]) / third, sum(values[-third:]) / third
