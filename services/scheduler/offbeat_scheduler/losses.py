"""Which loss decisions read: the evaluator's where one attends, else the workers' own.

Data never leaves the devices, so without held-out data on an evaluator all that is known
is the smoothed training loss that each worker reports. The two are not comparable: within
one search only one of them is read. A run that began with the workers' losses goes over
to an evaluator's once no search is under way; one that has read an evaluator's waits for
its return and never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from offbeat_scheduler.sync import Loss
from offbeat_scheduler.timing import since

Source = Literal["evaluator", "workers"]


@dataclass(frozen=True)
class TrainingLoss:
    """A worker's own: smoothed, over `trained` samples in this run, of `shard` that it holds (0: unknown)."""

    value: float
    trained: int
    shard: int = 0


class LossSource:
    """Turns evaluations and training losses into the one series that decisions read.

    Args:
        every_s: at least so long between two losses of the workers.
        evaluator_attends: when training begins.
    """

    def __init__(self, every_s: float, *, evaluator_attends: bool) -> None:
        self._every_s = every_s
        self.source: Source = "evaluator" if evaluator_attends else "workers"
        self._last: Loss | None = None
        self._taken_s: float | None = None  # when one was taken, also one that is no number

    @property
    def last(self) -> Loss | None:
        return self._last

    def reconsider(self, *, evaluator_attends: bool, searching: bool) -> bool:
        """The evaluator came or went, or a search ended. Returns whether the source changed."""
        wanted: Source = "evaluator" if evaluator_attends else "workers"
        evaluator_was_read = self._last is not None and self._last.source == "evaluator"
        if wanted == self.source or evaluator_was_read or (self._last is not None and searching):
            return False
        self.source = wanted
        return True

    def evaluated(self, at_s: float, value: float, steps: int) -> Loss | None:
        """An evaluator's loss; None where decisions don't read it."""
        return self._take(at_s, value, steps, "evaluator")

    def due(self, at_s: float) -> bool:
        """Is it time for a loss of the workers?"""
        return self.source == "workers" and (
            self._taken_s is None or since(self._taken_s, at_s) >= self._every_s
        )

    def trained(self, at_s: float, losses: Iterable[TrainingLoss], steps: int) -> Loss | None:
        """The fleet's training loss, weighted by samples; None until every active trainer has one.

        The weights are the samples that each device holds, as in the objective that the
        fleet minimises; where one doesn't say, the samples that each has trained on.
        """
        known = list(losses)
        if not self.due(at_s) or not known or any(loss.trained == 0 for loss in known):
            return None
        by_shard = all(loss.shard for loss in known)
        weights = [loss.shard if by_shard else loss.trained for loss in known]
        total = math.fsum(w * loss.value for w, loss in zip(weights, known, strict=True))
        return self._take(at_s, total / sum(weights), steps, "workers")

    def _take(self, at_s: float, value: float, steps: int, source: Source) -> Loss | None:
        if source != self.source:
            return None
        loss = Loss(at_s, value, steps, source)
        self._taken_s = at_s
        if math.isfinite(value):
            self._last = loss
        return loss
