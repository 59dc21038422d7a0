"""What is still written of a run whose log has grown large: what a person reads, and not each report.

Reports are most of a log, so of each agent one in `EVERY_S` stays, and its last one. A
server's report names the counts that changed since the one before: those of the reports
left out are in the next one that is kept. An evaluator's says again what it said before; only
what is new of it stays. Directives are left out; the plans that they word
are kept, as are evaluations, phases, probes and messages. From here on the log no longer replays.
"""

from __future__ import annotations

from collections.abc import Iterable

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.events import (
    Evaluated,
    Event,
    Instruction,
    SendTo,
    ServerReported,
    Tick,
    WorkerReported,
)
from offbeat_scheduler.timing import since

EVERY_S = 60.0


class Abridged:
    """Chooses what to write."""

    def __init__(self) -> None:
        self._kept_at: dict[str, float] = {}  # by agent
        self._evaluated: pb.EvaluatorReport | None = None  # last
        self._counts: dict[str, pb.CommitCount] = {}  # left out since the last one kept, by worker

    def event(self, event: Event, now: float) -> Event | None:
        """As it is to be written; None: not at all."""
        if isinstance(event, Tick):
            return None
        if isinstance(event, WorkerReported):
            return event if event.report.final or self._due(event.name, now) else None
        if isinstance(event, Evaluated):
            again, self._evaluated = event.report == self._evaluated, event.report
            return None if again else event
        if isinstance(event, ServerReported):
            self._counts.update({count.worker: count for count in event.report.counts})
            if not (event.report.finished or self._due(event.name, now)):
                return None
            report = pb.ServerReport()
            report.CopyFrom(event.report)
            del report.counts[:]
            report.counts.extend(self._counts.values())
            self._counts.clear()
            return ServerReported(event.name, event.incarnation, report)
        return event

    def decisions(self, decisions: Iterable[Instruction]) -> list[Instruction]:
        return [decision for decision in decisions if not isinstance(decision, SendTo)]

    def _due(self, name: str, now: float) -> bool:
        if name in self._kept_at and since(self._kept_at[name], now) < EVERY_S:
            return False
        self._kept_at[name] = now
        return True
