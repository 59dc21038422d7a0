"""Prometheus: the run, the search and each worker's reported figures, computed when they are scraped.

Workers stand behind NAT and can't be scraped: the scheduler shows what they report. A
worker that has left has no series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings, parse_yaml, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.service import SchedulerService

SCRAPE_S = 5.0

PHASES = {
    pb.Status.IDLE: "idle",
    pb.Status.WAITING: "waiting",
    pb.Status.SEARCHING: "searching",
    pb.Status.TRAINING: "training",
    pb.Status.FINISHING: "finishing",
}
SHARES = ("compute", "paced", "commit", "wait")


class SchedulerCollector(Collector):
    """Asks the service, in its own thread, for a status at each scrape."""

    def __init__(self, service: SchedulerService, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._loop = loop

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: registering must not scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        async def ask() -> pb.Status:
            return self._service.status()

        status = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(SCRAPE_S)
        return list(families(status))


def families(status: pb.Status) -> Iterator[Metric]:
    """All metrics of a status."""
    yield from _run(status)
    yield from _search(status)
    yield from _workers(status)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"offbeat_{name}", text, value=value)


def _run(status: pb.Status) -> Iterator[Metric]:
    phase = GaugeMetricFamily("offbeat_phase", "1 for the phase that the scheduler is in.", labels=["phase"])
    for number, name in PHASES.items():
        phase.add_metric([name], float(status.phase == number))
    yield phase
    info = {"run_id": status.run_id, "name": status.run_name, "sync": status.sync, "target": status.target}
    yield InfoMetricFamily("offbeat_run", "The current or last run.", value=info)
    yield _gauge("run_elapsed_seconds", "Since training began.", status.elapsed_s)
    yield _gauge("run_reached", "1 once the target is confirmed.", float(status.reached))
    yield _gauge("run_time_to_target_seconds", "0: not reached.", status.time_to_target_s)
    yield CounterMetricFamily("offbeat_run_commits", "Commits of the whole fleet.", value=status.commits)
    yield _gauge("model_version", "Of the parameter server's model.", status.version)
    yield _gauge("active_trainers", "M: trainers that the parameter server counts.", status.active_trainers)
    yield _gauge("parameter_server_attached", "1 while it attends.", float(status.parameter_server_attached))
    yield _gauge("evaluator_attached", "1 while one attends.", float(status.evaluator_attached))
    yield _gauge("warnings", "Warnings that stand.", len(status.warnings))
    if status.evaluated or status.loss:
        yield _gauge("loss", "The evaluator's, or the workers' own where none attends.", status.loss)
    if status.evaluated:
        yield _gauge("metric", "Of the last evaluation, such as accuracy.", status.metric)
        yield _gauge("best_metric", "Of the best model on disk.", status.best_metric)
        yield _gauge("best_loss", "Of the best model on disk.", status.best_loss)
    yield from _target(status)


def _target(status: pb.Status) -> Iterator[Metric]:
    try:
        target = validate(RunSettings, parse_yaml(status.effective_yaml, "status"), "status").target
    except OffbeatError:  # no run yet
        return
    if target is not None and target.accuracy is not None:
        yield _gauge("target_metric", "That the run is to reach.", target.accuracy)
    elif target is not None and target.loss is not None:
        yield _gauge("target_loss", "That the run is to reach.", target.loss)


def _search(status: pb.Status) -> Iterator[Metric]:
    yield _gauge("commit_rate", "Commits per check period; 0 where the model has none.", status.commit_rate)
    yield _gauge("commit_interval_seconds", "Between two commits of a worker.", status.interval_s)
    yield _gauge("check_period_seconds", "Between two adjustments of commit counts.", status.check_period_s)
    # No counter: a search keeps its last ones only, so this may fall.
    yield _gauge("probes", "Rates tried by the search, of late.", len(status.probes))
    if status.HasField("allotment"):
        found = status.allotment
        yield _gauge(
            "allotment_cycle_seconds", "T, or the commit interval: local updates fill it.", found.cycle_s
        )
        yield _gauge(
            "allotment_max_staleness",
            "Largest difference of two workers' local updates (passes where samples are allotted), planned.",
            found.max_staleness,
        )
        yield _gauge("allotment_average_staleness", "Mean over pairs of workers.", found.average_staleness)
        yield _gauge(
            "allotment_observed_max_staleness",
            "The same of the local updates in each worker's last commits.",
            found.observed_max_staleness,
        )
        yield _gauge(
            "allotment_observed_average_staleness",
            "Mean over pairs of workers.",
            found.observed_average_staleness,
        )
        yield _gauge("allotment_idle_share", "Of the cycle, planned, the mean worker's.", found.idle_share)
        yield _gauge("allotment_solve_seconds", "That the last allocation took.", found.solve_s)
        yield _gauge("allotment_solve_max_seconds", "That the run's slowest one took.", found.max_solve_s)
    if status.probes:
        yield _gauge("probe_reward", "Of the last probe.", status.probes[-1].reward)
        yield _gauge("probe_rate", "Commits per check period in the last probe.", status.probes[-1].rate)


def _workers(status: pb.Status) -> Iterator[Metric]:
    """One series per worker that attends."""
    workers = [worker for worker in status.workers if worker.attached]

    def gauges(name: str, text: str, values: list[float]) -> Metric:
        family = GaugeMetricFamily(f"offbeat_worker_{name}", text, labels=["worker"])
        for worker, value in zip(workers, values, strict=True):
            family.add_metric([worker.name], value)
        return family

    def counters(name: str, text: str, values: list[float]) -> Metric:
        family = CounterMetricFamily(f"offbeat_worker_{name}", text, labels=["worker"])
        for worker, value in zip(workers, values, strict=True):
            family.add_metric([worker.name], value)
        return family

    reports = [worker.report for worker in workers]
    yield counters("steps", "Local updates in this run.", [r.steps for r in reports])
    yield counters("samples", "Samples trained on in this run.", [r.samples for r in reports])
    yield counters("commits", "As the parameter server counts them.", [w.commits for w in workers])
    yield counters("sent_bytes", "Sent to the parameter server.", [r.sent_bytes for r in reports])
    yield counters("received_bytes", "Received from it.", [r.received_bytes for r in reports])
    yield counters("retries", "Calls that had to be made again.", [r.retries for r in reports])
    yield gauges("steps_per_second", "As the scheduler sees it.", [w.steps_per_s for w in workers])
    yield gauges("step_seconds", "One local update, pacing included.", [r.step_s for r in reports])
    yield gauges("commit_seconds", "From cut to fresh model.", [r.commit_s for r in reports])
    yield gauges("hold_seconds", "That a commit holds the training thread.", [r.hold_s for r in reports])
    yield gauges("train_loss", "Smoothed; its data stays on the device.", [r.train_loss for r in reports])
    yield gauges("staleness", "Versions that its last commit was behind.", [w.staleness for w in workers])
    yield gauges(
        "local_updates",
        "In its last commits, the mean: passes where samples are allotted, else steps.",
        [w.local_updates for w in workers],
    )
    yield gauges("interval_seconds", "Commit interval in force for it.", [w.interval_s for w in workers])
    yield gauges(
        "batch", "Samples of its local updates, as planned and as fits it.", [w.batch for w in workers]
    )
    yield gauges("max_batch", "Samples that fit it; 0: no bound is known.", [r.max_batch for r in reports])
    if status.HasField("allotment"):
        yield gauges("allotted_samples", "In each pass of this cycle.", [w.allotted_samples for w in workers])
        yield gauges("allotted_passes", "In this cycle.", [w.allotted_passes for w in workers])
        yield gauges(
            "allotted_updates",
            "Local updates in a commit interval, on average; 0: passes are allotted.",
            [w.allotted_updates for w in workers],
        )
        yield gauges("allotted_seconds", "That they are to take.", [w.allotted_s for w in workers])
    yield gauges(
        "resting",
        "1 while the plan lets it rest.",
        [float(r.phase == pb.WorkerReport.RESTING) for r in reports],
    )
    yield gauges("error", "1 while it can't take part.", [float(bool(w.error)) for w in workers])
    time = CounterMetricFamily(
        "offbeat_worker_time_seconds", "Where its training thread's time went.", labels=["worker", "share"]
    )
    for worker in workers:
        for share in SHARES:
            time.add_metric([worker.name, share], getattr(worker.report.time, f"{share}_s"))
    yield time
