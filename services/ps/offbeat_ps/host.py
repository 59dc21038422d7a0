"""What the process holds: the current run, what workers are to do next, and what the scheduler is told."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as control
from offbeat_core.clock import Clock
from offbeat_core.fault import Fault
from offbeat_ps.admission import Budget
from offbeat_ps.dealer import Dealer
from offbeat_ps.directive import rules_of
from offbeat_ps.entrance import Refused
from offbeat_ps.instructions import Refusal
from offbeat_ps.live import LiveRun
from offbeat_ps.samples import SampleFile

log = logging.getLogger("offbeat_ps")


class Host:
    """One parameter server.

    Args:
        folder: of all runs.
        memory_bytes: for commits being received.
        samples: the data set that this server holds, if any.
    """

    def __init__(
        self, folder: Path, memory_bytes: int, clock: Clock, samples: SampleFile | None = None
    ) -> None:
        self.incarnation = uuid.uuid4().hex
        self.budget = Budget(memory_bytes)
        self.fault = Fault()
        self.dealer = Dealer(samples) if samples is not None else None
        self.live: LiveRun | None = None
        self.stopping = False
        self.changed: Callable[[], None] = lambda: None  # these two are set by whoever reports
        self.round_over: Callable[[], None] = lambda: None
        self._folder = folder
        self._clock = clock
        self._disk = ThreadPoolExecutor(1, "disk")
        self._next: dict[str, tuple[common.WorkerDirective, float]] = {}  # with the time of receipt
        self._scheduler = ""
        self._revision = 0
        self._error = ""
        self._reported: dict[str, tuple[int, ...]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    # ---- what the scheduler says -------------------------------------------------

    def welcome(self, scheduler_incarnation: str) -> None:
        """Another scheduler process counts its revisions anew, and its predecessor's directives are void."""
        self._reported.clear()
        if scheduler_incarnation != self._scheduler:
            self._scheduler = scheduler_incarnation
            self._revision = 0
            self._next.clear()

    def direct(self, directive: common.ServerDirective) -> None:
        """Take on a directive, unless a newer one holds."""
        if directive.revision < self._revision:
            return
        self._revision = directive.revision
        live = self.live
        if not directive.run_id:
            if live is not None:
                live.finish()
            return
        try:
            rules = rules_of(directive)
        except ValueError as error:
            self._error = f"run '{directive.run_id}': {error}"
            log.error("%s; the directive is not followed", self._error)
            self.changed()
            return
        self._error = ""
        if live is None or live.run_id != directive.run_id:
            if live is not None:
                self._retire(live)
            self._next = {w: d for w, d in self._next.items() if d[0].run_id == directive.run_id}
            self._reported.clear()
            self.live = live = LiveRun(
                directive.run_id,
                rules,
                initial_model=directive.initial_model,
                folder=self._folder,
                disk=self._disk,
                clock=self._clock,
                changed=lambda: self.changed(),
                round_over=lambda: self.round_over(),
                broken=self.fault.found,
                resume=directive.resume if directive.HasField("resume") else None,
            )
            log.info("run '%s' %s", directive.run_id, "goes on" if directive.HasField("resume") else "begins")
        elif not directive.finished:
            live.configure(rules)
        if directive.finished:
            live.finish()
        self.changed()

    def direct_next(self, directives: common.NextDirectives) -> None:
        """What goes into the next replies to these workers."""
        now = self._clock.now()
        for worker, directive in directives.workers.items():
            known = self._next.get(worker)
            if known is None or directive.revision >= known[0].revision:
                self._next[worker] = (directive, now)

    def keep_best(self, message: control.KeepBest) -> None:
        if self.live is not None and self.live.run_id == message.run_id:
            self.live.keep_best(message.version, message.loss, message.metric)

    # ---- what calls need -----------------------------------------------------------

    def run_of(self, run_id: str) -> LiveRun:
        """The run that a call names (or the only one, where it names none). Raises Refused."""
        if self.live is None or run_id not in ("", self.live.run_id):
            raise Refused(Refusal.NOT_KNOWN, f"run '{run_id}' is not known here")
        return self.live

    def next_for(self, worker: str) -> common.WorkerDirective | None:
        """The directive for a reply that leaves now: its grid has aged while it lay here."""
        if worker not in self._next:
            return None
        kept, received = self._next[worker]
        directive = common.WorkerDirective()
        directive.CopyFrom(kept)
        if directive.trigger.HasField("grid"):
            directive.trigger.grid.elapsed_s += self._clock.now() - received
        return directive

    @property
    def samples(self) -> int:
        """In the data set that this server holds; 0: it holds none."""
        return self.dealer.samples.count if self.dealer else 0

    # ---- what the scheduler is told --------------------------------------------------

    def report(self) -> control.ServerReport:
        """The state now, with the counts that changed since the last report (after a welcome: all)."""
        live = self.live
        if live is None:
            return control.ServerReport(server_incarnation=self.incarnation, error=self._error)
        run = live.run
        counts = []
        for name, e in run.ledger.entries.items():
            facts = (e.commits, e.generation, e.steps, e.samples, e.staleness, e.refused)
            if self._reported.get(name) != facts:
                self._reported[name] = facts
                counts.append(
                    control.CommitCount(
                        worker=name,
                        commits=e.commits,
                        generation=e.generation,
                        train_loss=e.train_loss,
                        steps=e.steps,
                        samples=e.samples,
                        staleness=e.staleness,
                        refused=e.refused,
                    )
                )
        checkpoint = (
            str(live.archive.folder.checkpoint.resolve()) if live.archive and run.durable_epoch else ""
        )
        best = live.best.kept
        return control.ServerReport(
            server_incarnation=self.incarnation,
            run_id=run.run_id,
            seeded=live.seeded,
            version=run.version,
            active_trainers=live.active_trainers(),
            counts=counts,
            checkpoint_epoch=run.open_epoch,
            durable_epoch=run.durable_epoch,
            checkpoint_path=checkpoint,
            busy_s=live.busy_s,
            commits=run.counters.commits,
            finished=live.finished,
            model_path=live.model_path,
            best_model_path=live.best.path,
            best_version=best.version if best else 0,
            best_loss=best.loss if best else 0.0,
            best_metric=best.metric if best else 0.0,
            best_missed=live.best.missed,
            error=self._error or live.error,
            generation=run.rules.generation,
            closed=run.closed,
        )

    # ---- end -----------------------------------------------------------------------------

    def _retire(self, live: LiveRun) -> None:
        live.finish()
        task = asyncio.get_running_loop().create_task(live.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def stop_calls(self) -> None:
        """Take no more calls, and end those that wait."""
        self.stopping = True
        if self.live is not None:
            self.live.release_calls()

    async def close(self) -> None:
        """Write what is not on disk yet."""
        if self.live is not None:
            await self.live.close()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
        self._disk.shutdown(wait=False)
        if self.dealer is not None:
            self.dealer.close()
