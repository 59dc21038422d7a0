"""The run so far, as a search sees it: losses, and at what pace and interval the fleet trained.

Bounded however long the run is: when it is full, neighbouring losses are merged (a mean of two
with double weight loses little), and so are neighbouring phases of the older half.

An evaluation sees what was committed, not what was trained: all commit at the same deadlines, so the
server's model moves in stairs of one interval. Each loss is therefore dated to the last deadline whose
commits could be in it; read as if it were of its own time, a change of the interval would
look like a change of progress. The workers' own losses are of the moment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from offbeat_scheduler.search.progress import Terms
from offbeat_scheduler.sync import Loss

MAX_LOSSES = 160
MAX_PHASES = 240
RELAX_STEPS = 30.0
"""Local updates of the mean device within which the model forgets the interval that it came from."""

CHANGED = 0.05
"""A speed or a delay that moved by less goes on under the old value."""


@dataclass(frozen=True)
class Phase:
    """From `start_s` on the fleet trained like this. Speed is 0 while nothing was measured."""

    start_s: float
    interval_s: float
    speed: float  # steps per second of the mean device
    held_s: float
    delay_s: float
    origin_s: float = 0.0  # of the grid of deadlines
    travel_s: float = 0.0  # from a deadline until its commits are in the server's model


@dataclass(frozen=True)
class Point:
    """A loss, or the mean of several neighbours. `made_s`: when what it measures had been trained."""

    at_s: float
    value: float
    made_s: float
    weight: float = 1.0


class Record:
    """Losses and phases of a run, oldest first."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.phases: list[Phase] = []
        self.source = ""

    def observe(self, loss: Loss) -> bool:
        """Add a loss. True if it is of another source, so that those before it were dropped."""
        changed = bool(self.source) and loss.source != self.source
        if changed:
            self.points.clear()
        self.source = loss.source
        seen_before = bool(self.points) and self.points[-1].value == loss.value  # the same model again
        if np.isfinite(loss.value) and not seen_before:
            made_s = self._made_s(loss.at_s) if loss.source == "evaluator" else loss.at_s
            self.points.append(Point(loss.at_s, loss.value, made_s))
        if len(self.points) > MAX_LOSSES:
            self._thin()
        return changed

    def forget_before(self, moment: float) -> None:
        """Losses before `moment` belong to another problem."""
        self.points = [point for point in self.points if point.at_s >= moment]

    def train(self, now_s: float, interval_s: float, terms: Terms, travel_s: float, measured: bool) -> None:
        """From now on the fleet trains at this interval and pace."""
        goes_on = bool(self.phases) and self.phases[-1].interval_s == interval_s
        origin_s = self.phases[-1].origin_s if goes_on else now_s
        if terms.speed.size and measured:
            pace = (terms.mean_speed, terms.mean_held, terms.mean_delay)
        else:
            pace = (0.0, 0.0, 0.0)
        phase = Phase(now_s, interval_s, *pace, origin_s, travel_s)
        if self.phases and _alike(self.phases[-1], phase):
            return
        if self.phases and self.phases[-1].start_s >= now_s:
            self.phases.pop()
        self.phases.append(phase)
        if phase.speed:
            self._backfill(phase)
        if len(self.phases) > MAX_PHASES:
            self._merge()

    def pause(self, now_s: float) -> None:
        """From now on nobody trains."""
        if self.phases and self.phases[-1].held_s < self.phases[-1].interval_s:
            self.phases.append(replace(self.phases[-1], start_s=now_s, held_s=self.phases[-1].interval_s))

    def progress(self, kappa_per_step: np.ndarray) -> np.ndarray:
        """Effective steps of the mean device up to each loss.

        Args:
            kappa_per_step: shape (k,); kappa is this times the mean device's steps per second.

        Returns:
            Shape (k, losses).
        """
        start = np.array([phase.start_s for phase in self.phases])
        interval = np.array([phase.interval_s for phase in self.phases])
        speed = np.array([phase.speed for phase in self.phases])
        held = np.array([phase.held_s for phase in self.phases])
        delay = np.array([phase.delay_s for phase in self.phases])
        share = np.maximum(0.0, 1.0 - held / interval)
        kappa = kappa_per_step[:, None] * speed
        rate = speed * share / (1.0 + kappa * (interval + delay))  # (k, phases)
        reached = np.zeros_like(rate)
        reached[:, 1:] = np.cumsum(rate[:, :-1] * np.diff(start), axis=1)
        at = np.array([point.made_s for point in self.points])
        index = np.clip(np.searchsorted(start, at, side="right") - 1, 0, None)
        return reached[:, index] + rate[:, index] * np.maximum(0.0, at - start[index])

    def ages(self) -> np.ndarray:
        """How old the models were that the latest updates before each loss were made on, in steps of the
        mean device, shape (losses,): an average that forgets within `RELAX_STEPS`."""
        start = np.array([phase.start_s for phase in self.phases])
        speed = np.array([phase.speed for phase in self.phases])
        towards = speed * np.array([phase.interval_s + phase.delay_s for phase in self.phases])
        left = np.exp(-np.diff(start) * speed[:-1] / RELAX_STEPS)
        begin = towards.copy()
        for phase in range(1, start.size):
            begin[phase] = towards[phase - 1] + (begin[phase - 1] - towards[phase - 1]) * left[phase - 1]
        at = np.array([point.made_s for point in self.points])
        index = np.clip(np.searchsorted(start, at, side="right") - 1, 0, None)
        since = np.maximum(0.0, at - start[index])
        return towards[index] + (begin - towards)[index] * np.exp(-since * speed[index] / RELAX_STEPS)

    def _made_s(self, at_s: float) -> float:
        """The last deadline whose commits can be in a model that is evaluated at `at_s`."""
        if not self.phases:
            return at_s
        until_s = at_s - self.phases[-1].travel_s
        phase = next((p for p in reversed(self.phases) if p.start_s <= until_s), self.phases[0])
        deadlines = np.floor((until_s - phase.origin_s) / phase.interval_s + 1e-6)
        return max(0.0, phase.origin_s + float(deadlines) * phase.interval_s)

    def values(self) -> np.ndarray:
        """Losses, shape (losses,)."""
        return np.array([point.value for point in self.points])

    def weights(self) -> np.ndarray:
        """How many losses each point stands for, shape (losses,)."""
        return np.array([point.weight for point in self.points])

    def between(self, start_s: float, end_s: float) -> list[Point]:
        return [point for point in self.points if start_s <= point.at_s <= end_s]

    def cadence_s(self) -> float:
        """Seconds between two losses, of late; 0 while unknown."""
        recent = [point.at_s for point in self.points[-6:]]
        gaps = [later - earlier for earlier, later in itertools.pairwise(recent)]
        return float(np.median(gaps)) if gaps else 0.0

    def _backfill(self, phase: Phase) -> None:
        """What was not measured at the run's start was as it was when first measured."""
        self.phases = [
            past
            if past.speed
            else replace(past, speed=phase.speed, held_s=phase.held_s, delay_s=phase.delay_s)
            for past in self.phases
        ]

    def _thin(self) -> None:
        """Merge the two neighbours that are closest, measured by how far they are from both ends of the run.

        So the steep beginning and the present stay fine, and what lies between is long and flat.
        """
        at = np.array([point.at_s for point in self.points])
        middle = (at[1:] + at[:-1]) / 2
        apart = np.diff(at) / (np.minimum(middle - at[0], at[-1] - middle) + self.cadence_s() + 1e-9)
        first = int(apart.argmin())
        self.points[first : first + 2] = [_mean(*self.points[first : first + 2])]

    def _merge(self) -> None:
        """The older half in pairs, each the mean of two by their duration."""
        half = MAX_PHASES // 2
        ends = [phase.start_s for phase in self.phases[1 : half + 1]]
        old = [_blend(self.phases[i], self.phases[i + 1], ends[i], ends[i + 1]) for i in range(0, half, 2)]
        self.phases = old + self.phases[half:]


def _mean(first: Point, second: Point) -> Point:
    weight = first.weight + second.weight

    def mean(one: float, two: float) -> float:
        return (one * first.weight + two * second.weight) / weight

    return Point(
        mean(first.at_s, second.at_s),
        mean(first.value, second.value),
        mean(first.made_s, second.made_s),
        weight,
    )


def _blend(first: Phase, second: Phase, first_end_s: float, second_end_s: float) -> Phase:
    one, two = first_end_s - first.start_s, second_end_s - second.start_s
    share = one / (one + two) if one + two > 0 else 0.5

    def mean(a: float, b: float) -> float:
        return share * a + (1 - share) * b

    return Phase(
        first.start_s,
        mean(first.interval_s, second.interval_s),
        mean(first.speed, second.speed),
        mean(first.held_s, second.held_s),
        mean(first.delay_s, second.delay_s),
        first.origin_s,
        second.travel_s,
    )


def _alike(first: Phase, second: Phase) -> bool:
    if bool(first.speed) != bool(second.speed):
        return False
    near = CHANGED * second.interval_s
    return (
        first.interval_s == second.interval_s
        and abs(first.speed - second.speed) <= CHANGED * second.speed
        and abs(first.held_s - second.held_s) <= near
        and abs(first.delay_s - second.delay_s) <= near
    )
