"""What Prometheus sees of a parameter server; every value is computed when it is scraped.

Labels are the names of active trainers alone: a worker that left the membership window
takes its series along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offbeat_core.clock import Clock
from offbeat_core.metrics import gauge
from offbeat_ps.attend import Attendant
from offbeat_ps.host import Host
from offbeat_ps.ledger import Entry
from offbeat_ps.live import LiveRun
from offbeat_ps.stalls import Stalls


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """One sample of a counter; the sample's name ends in _total."""
    return CounterMetricFamily(name, text, value=value)


class ServerCollector(Collector):
    """Reads the host's state. Scrapes come from another thread, so containers are copied first."""

    def __init__(self, host: Host, stalls: Stalls, attendant: Attendant, clock: Clock) -> None:
        self._host = host
        self._stalls = stalls
        self._attendant = attendant
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        budget = self._host.budget
        yield gauge("offbeat_ps_scheduler_attached", "1 while attended.", self._attendant.attached)
        stalled = self._attendant.stalled
        yield counter("offbeat_ps_reports_stalled", "Streams given up: no report could leave.", stalled)
        yield gauge("offbeat_ps_receiving_bytes", "Memory granted to commits on the wire.", budget.used)
        yield gauge("offbeat_ps_receiving_limit_bytes", "The most of it.", budget.total)
        yield gauge("offbeat_ps_commits_queued", "Commits that wait for memory.", budget.waiting)
        yield counter("offbeat_ps_transfers_stalled", "Given up: nothing moved.", self._stalls.ended)
        if self._host.live is not None:
            yield from self._of_run(self._host.live)

    def _of_run(self, live: LiveRun) -> Iterable[Metric]:
        run, count = live.run, live.run.counters
        yield gauge("offbeat_ps_model_seeded", "1 once the run has its model.", live.seeded)
        yield gauge("offbeat_ps_run_over", "1 once the run is over.", run.over)
        yield gauge("offbeat_ps_model_version", "Folds that made the present model.", run.version)
        yield gauge("offbeat_ps_active_trainers", "M: those that weights count.", live.active_trainers())
        yield gauge("offbeat_ps_leases", "Trainers that hold a lease.", len(run.membership.live))
        yield gauge("offbeat_ps_gates", "Groups of workers that wait for one another.", len(run.groups))
        yield gauge("offbeat_ps_commits_held", "Commits whose reply waits at a gate.", len(run.held))
        yield gauge("offbeat_ps_updates_waiting", "Updates that wait for their fold.", run.waiting)
        yield counter("offbeat_ps_duplicate_commits", "Applied before, so not again.", count.duplicates)
        yield counter("offbeat_ps_late_commits", "Came after their gate had closed.", count.late)
        yield counter("offbeat_ps_cycles", "Cycles that gates have closed.", count.cycles)
        yield counter("offbeat_ps_leases_ended", "Leases that ended unkept.", count.leases_ended)
        yield counter("offbeat_ps_busy_seconds", "Seconds of work on commits.", live.busy_s)
        yield counter("offbeat_ps_received_bytes", "Bytes of updates received.", live.received_bytes)
        yield counter("offbeat_ps_sent_bytes", "Bytes of models sent.", live.sent_bytes)
        yield from self._of_files(live)
        yield from self._of_workers(live)

    def _of_files(self, live: LiveRun) -> Iterable[Metric]:
        yield gauge("offbeat_ps_checkpoint_epoch", "The newest checkpoint on disk.", live.run.durable_epoch)
        if live.archive is None:
            return
        if live.archive.durable_at is not None:
            age = self._clock.now() - live.archive.durable_at
            yield gauge("offbeat_ps_checkpoint_age_seconds", "Since the newest checkpoint.", age)
        failing, failures = live.archive.folder.failing, live.archive.folder.failures
        yield gauge("offbeat_ps_checkpoint_failing", "1: files cannot be written. Alert.", failing)
        yield counter("offbeat_ps_checkpoint_failures", "Files that could not be written.", failures)

    def _of_workers(self, live: LiveRun) -> Iterable[Metric]:
        active = live.run.membership.counted(self._clock.now())
        entries = [(n, e) for n, e in list(live.run.ledger.entries.items()) if n in active or e.quarantined]
        for kind, name, text, read in _BY_WORKER:
            family = kind(name, text, labels=["worker"])
            for worker, entry in entries:
                family.add_metric([worker], read(entry))
            yield family


_BY_WORKER: tuple[tuple[Any, str, str, Callable[[Entry], float]], ...] = (
    (CounterMetricFamily, "offbeat_ps_commits", "Updates that count, c_i.", lambda e: e.commits),
    (CounterMetricFamily, "offbeat_ps_refused_commits", "Updates refused.", lambda e: e.refused),
    (
        GaugeMetricFamily,
        "offbeat_ps_staleness_versions",
        "Versions between the last commit's base and the model that it met.",
        lambda e: e.staleness,
    ),
    (GaugeMetricFamily, "offbeat_ps_commit_weight", "The last update's weight.", lambda e: e.weight),
    (GaugeMetricFamily, "offbeat_ps_quarantined", "1: no more is taken.", lambda e: bool(e.quarantined)),
)
