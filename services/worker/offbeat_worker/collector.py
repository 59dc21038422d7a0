"""The worker's optional Prometheus endpoint: its own report, read when it is scraped.

Workers behind NAT can't be scraped; the scheduler exposes the same figures for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from offbeat.v1 import scheduler_pb2 as sc

_COUNTERS = {
    "steps": "Local updates in the run.",
    "samples": "Samples trained on in the run.",
    "commits": "Commits acknowledged in the run.",
    "retries": "Attempts at the parameter server that failed, in the run.",
    "sent_bytes": "Bytes of updates sent in the run.",
    "received_bytes": "Bytes of models received in the run.",
}
_GAUGES = {
    "train_loss": ("train_loss", "Smoothed training loss."),
    "step_s": ("step_seconds", "Smoothed seconds of a local update, pacing included."),
    "commit_s": ("commit_seconds", "Smoothed seconds from cutting an update to having the fresh model."),
    "hold_s": ("commit_hold_seconds", "Smoothed seconds for which a commit holds the training thread."),
    "steps_since_pull": ("steps_since_pull", "Local updates since the last fresh model."),
    "max_batch": ("max_batch", "Samples that fit this device at a time; 0: no bound is known."),
}
_EVALUATOR = {
    "loss": "Held-out loss of the last evaluation.",
    "metric": "The task's metric on held-out data.",
    "version": "Version of the model that was evaluated last.",
    "seconds": "Seconds that the last evaluation took.",
}
_PHASES = (
    ("training", sc.WorkerReport.TRAINING, "1 while training."),
    ("resting", sc.WorkerReport.RESTING, "1 while the plan lets it rest."),
)
_SHARES = ("compute", "paced", "commit", "wait")


class WorkerCollector(Collector):
    """Args: the worker's name, and what makes its report."""

    def __init__(self, name: str, report: Callable[[], sc.Report]) -> None:
        self._name = name
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        yield from (
            self._worker(report.worker) if report.HasField("worker") else self._evaluator(report.evaluator)
        )

    def _evaluator(self, figures: sc.EvaluatorReport) -> Iterator[Metric]:
        for field, text in _EVALUATOR.items():
            gauge = GaugeMetricFamily(f"offbeat_evaluator_{field}", text, labels=["worker"])
            gauge.add_metric([self._name], getattr(figures, field))
            yield gauge

    def _worker(self, figures: sc.WorkerReport) -> Iterator[Metric]:
        for field, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"offbeat_worker_{field}", text, labels=["worker"])
            counter.add_metric([self._name], getattr(figures, field))
            yield counter
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"offbeat_worker_{name}", text, labels=["worker"])
            gauge.add_metric([self._name], getattr(figures, field))
            yield gauge
        time = CounterMetricFamily(
            "offbeat_worker_time_seconds",
            "Where the training thread's time went.",
            labels=["worker", "share"],
        )
        for share in _SHARES:
            time.add_metric([self._name, share], getattr(figures.time, f"{share}_s"))
        yield time
        for name, number, text in _PHASES:
            phase = GaugeMetricFamily(f"offbeat_worker_{name}", text, labels=["worker"])
            phase.add_metric([self._name], float(figures.phase == number))
            yield phase
