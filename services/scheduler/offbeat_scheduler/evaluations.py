"""The evaluator's part in a run: is it ready, what did it find, which model was the best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings
from offbeat_scheduler.history import Thinned

POINTS = 1000


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one version of the model."""

    at_s: float
    version: int
    loss: float
    metric: float


@dataclass(frozen=True)
class Best:
    """A version that is better than all before it."""

    version: int
    loss: float
    metric: float


@dataclass(frozen=True)
class Taken:
    evaluation: Evaluation
    is_best: bool


class Evaluations:
    """Keeps who evaluates, a bounded history, and the best so far.

    Best is by what the target speaks of; without a target by the metric, which is better
    the higher it is, or, for a task without one, by the loss. Only a model that the parameter
    server can be told to keep may be the best: figures without the file help nobody.

    Attributes:
        best: what the server was told to keep; the next best must be better than this.
        kept: what it has on disk, by its own word. It may be older while the disk refuses.
    """

    def __init__(self, run: RunSettings) -> None:
        self._by_loss = run.target is not None and run.target.loss is not None
        self.evaluator = ""
        self.ready = False
        self.error = ""
        self.metric_name = ""
        self.early: pb.EvaluatorReport | None = None
        self.points: Thinned[Evaluation] = Thinned(POINTS)
        self.last: Evaluation | None = None
        self.best: Best | None = None
        self.kept: Best | None = None

    @property
    def attends(self) -> bool:
        """Can losses be expected of it?"""
        return bool(self.evaluator) and not self.error

    def appoint(self, name: str) -> None:
        self.evaluator, self.ready, self.error = name, False, ""

    def lose(self, name: str) -> None:
        if name == self.evaluator:
            self.evaluator, self.ready, self.error = "", False, ""

    def standing_changes(self, report: pb.EvaluatorReport) -> bool:
        """Take over whether it is ready, and its error; returns whether that changed."""
        ready = not report.error and (report.ready or report.samples > 0)
        changed = (ready, report.error) != (self.ready, self.error)
        self.ready, self.error = ready, report.error
        return changed

    def waits_for(self) -> str:
        """What a run that needs an evaluator waits for; empty if it is ready."""
        if not self.evaluator:
            return "waiting for the evaluator: none with the task attends"
        if self.error:
            return f"waiting for the evaluator: '{self.evaluator}' failed: {self.error}"
        return "" if self.ready else f"waiting for the evaluator: '{self.evaluator}' gets ready"

    def before_training(self, report: pb.EvaluatorReport) -> None:
        """An evaluation of the initial model: it counts as made when training begins."""
        if report.samples:
            self.early = report

    def take(self, report: pb.EvaluatorReport, at_s: float, *, kept: bool = True) -> Taken | None:
        """None if the report holds no evaluation, or one of the version that was evaluated last.

        `kept`: can the parameter server be told to keep this model?
        """
        if not report.samples or report.error or (self.last and self.last.version == report.version):
            return None
        self.metric_name = report.metric_name or self.metric_name
        self.last = Evaluation(at_s, report.version, report.loss, report.metric)
        self.points.add(self.last)
        is_best = kept and self._is_best(self.last)
        if is_best:
            self.best = Best(report.version, report.loss, report.metric)
        return Taken(self.last, is_best)

    def server_keeps(self, report: pb.ServerReport) -> None:
        """Take over what is on disk. A best that could not be kept is none: the next may be worse than it."""
        if report.best_model_path:
            self.kept = Best(report.best_version, report.best_loss, report.best_metric)
        if (
            self.best is not None
            and report.HasField("best_missed")
            and report.best_missed == self.best.version
        ):
            self.best = self.kept

    @property
    def unkept(self) -> Best | None:
        """The best, where the server has not said yet that it is on disk."""
        on_disk = self.best is None or (self.kept is not None and self.kept.version == self.best.version)
        return None if on_disk else self.best

    def _is_best(self, new: Evaluation) -> bool:
        by_loss = self._by_loss or not self.metric_name
        value = new.loss if by_loss else new.metric
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        return value < self.best.loss if by_loss else value > self.best.metric
