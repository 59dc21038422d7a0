"""When a run ends by itself: its target is confirmed, a limit is met, or the loss stands still."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from offbeat_core.config import RunSettings

TOLERANCE = 1e-6
"""Of the target: a mean over float32 comes out as 0.94999999 where 0.95 is meant."""


class Outcome(Enum):
    """How a run ended."""

    REACHED = "reached"
    LIMIT = "limit"
    CONVERGED = "converged"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """The run is to end, and why."""

    outcome: Outcome
    message: str


@dataclass(frozen=True)
class Confirmation:
    """The target, confirmed by `confirm` evaluations in a row.

    Args:
        first_s: when the first of them was made.
        confirmed_s: when the last was: the run's time to target.
        value: what the last one compared, the mean of the last `smooth` evaluations.
    """

    first_s: float
    confirmed_s: float
    value: float


class StopRules:
    """Takes evaluations and losses as they come; says when the run is to end.

    An evaluation confirms an accuracy or loss target if the mean of the last `smooth` of
    them, itself included, meets it; with fewer than `smooth` there is no mean and nothing
    is confirmed. A value that is not a number confirms nothing and begins both windows anew.
    """

    def __init__(self, run: RunSettings) -> None:
        self._target = run.target
        self._limits = run.limits
        self._converged = run.converged
        self._evaluations: deque[float] = deque(maxlen=run.target.smooth if run.target else 1)
        self._losses: deque[float] = deque(maxlen=run.converged.window if run.converged else 1)
        self._in_a_row = 0
        self._first_s = 0.0
        self.confirmation: Confirmation | None = None
        self._metric_name = "accuracy"

    def metric(self, at_s: float, value: float, name: str = "") -> None:
        """An evaluation's metric, for an accuracy target."""
        self._metric_name = name or self._metric_name
        if self._target and self._target.accuracy is not None:
            self._evaluate(at_s, value)

    def loss(self, at_s: float, value: float) -> None:
        """A loss that decisions read, for a loss target and for convergence."""
        if self._target and self._target.loss is not None:
            self._evaluate(at_s, value)
        if math.isfinite(value):
            self._losses.append(value)
        else:
            self._losses.clear()

    def losses_change_source(self) -> None:
        """Another source of losses from now on: what one measured can't confirm what the other did."""
        self._losses.clear()
        if self._target and self._target.loss is not None:
            self._begin_anew()

    def verdict(self, now_s: float, commits: int) -> Verdict | None:
        """Is the run to end? `now_s`: seconds since training began; `commits`: of the whole fleet."""
        if self.confirmation:
            shown = f"{self._target_name} {self.confirmation.value:.4g}"
            return Verdict(Outcome.REACHED, f"{shown} after {self.confirmation.confirmed_s:.0f} s")
        if self._limits.seconds is not None and now_s >= self._limits.seconds:
            return Verdict(Outcome.LIMIT, f"limits.seconds: {self._limits.seconds:g} s have passed")
        if self._limits.commits is not None and commits >= self._limits.commits:
            return Verdict(Outcome.LIMIT, f"limits.commits: {commits} of {self._limits.commits} commits")
        if self._converged and len(self._losses) == self._converged.window:
            variance = _variance(self._losses)
            if variance < self._converged.variance:
                return Verdict(
                    Outcome.CONVERGED,
                    f"the variance of the last {self._converged.window} losses is {variance:.3g}, "
                    f"under {self._converged.variance:g}",
                )
        return None

    @property
    def target_text(self) -> str:
        """The target for a person; empty if there is none."""
        if self._target is None:
            return ""
        often = f", {self._target.confirm} times in a row" if self._target.confirm > 1 else ""
        if self._target.accuracy is not None:
            return f"{self._metric_name} >= {self._target.accuracy:g}{often}"
        return f"loss <= {self._target.loss:g}{often}"

    @property
    def _target_name(self) -> str:
        return self._metric_name if self._target and self._target.accuracy is not None else "loss"

    def _evaluate(self, at_s: float, value: float) -> None:
        target = self._target
        if target is None or self.confirmation:
            return
        if not math.isfinite(value):
            self._begin_anew()
            return
        self._evaluations.append(value)
        mean = math.fsum(self._evaluations) / len(self._evaluations)
        if target.accuracy is not None:
            met = mean >= target.accuracy * (1 - TOLERANCE)
        else:
            met = target.loss is not None and mean <= target.loss * (1 + TOLERANCE)
        if len(self._evaluations) < target.smooth or not met:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row == 1:
            self._first_s = at_s
        if self._in_a_row == target.confirm:
            self.confirmation = Confirmation(self._first_s, at_s, mean)

    def _begin_anew(self) -> None:
        self._evaluations.clear()
        self._in_a_row = 0


def _variance(values: deque[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values)
