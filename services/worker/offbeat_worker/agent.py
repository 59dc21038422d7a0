"""The worker's side of the network: follows directives, carries commits, keeps the lease.

Runs on the event loop of the I/O thread. It moves the training thread by messages and
hears from it by events; neither waits for the other.

If the parameter server or the scheduler can't be reached, training goes on under
the last directive: the commit in flight is tried again under its number until it is
answered, and everything done meanwhile is one accumulated update.

A worker rests when it is told so, or after its one commit of a generation (`once`). It
keeps model, data, lease and what it has not committed; a directive to train that ends
the rest, whenever it gets here, is followed from a model as fresh as the server's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.averages import RunningMedian
from offbeat_core.manifest import Manifest
from offbeat_worker import training
from offbeat_worker.attend import Attendance, Superseded
from offbeat_worker.bulk import RETRIED, Bulk, ManifestMismatch, Model, describe
from offbeat_worker.directives import DirectiveBook
from offbeat_worker.localrun import Cut, Fresh
from offbeat_worker.persistence import CALLS, LEASE, Hopeless, Persistence
from offbeat_worker.supply import Given, Wanted

log = logging.getLogger(__name__)

NOT_YET_S = 0.2
"""Between two looks for a model that is not there yet."""

HUNG_S = 300.0
HUNG_TIMES = 20
"""A local update that takes longer than this, and than so many usual ones, hangs. The lease is then
not kept: a device whose network is alive must not hold a barrier with a training thread that is not."""

_WANTED = (pb.WorkerDirective.PREPARE, pb.WorkerDirective.TRAIN, pb.WorkerDirective.REST)
"""Each says: be in this run."""

Phase = sc.WorkerReport.Phase


class WorkerAgent:
    """Drives one `Trainer` through runs.

    Args:
        hello: who this worker is.
        bulk: connection to the parameter server.
        server: its address, for the log.

    `trainer` and `attendance` are set before `start`.
    """

    trainer: training.Trainer
    attendance: Attendance

    def __init__(self, hello: sc.Hello, bulk: Bulk, server: str) -> None:
        self._hello = hello
        self._bulk = bulk
        self._loop = asyncio.get_running_loop()
        self._directives: DirectiveBook[pb.WorkerDirective] = DirectiveBook(pb.WorkerDirective())
        self._received_s = time.monotonic()
        self._calls = Persistence(hello.name, server, self._introduce)
        self._phase: int = Phase.IDLE
        self._error = ""
        self._run_id = ""  # of the run that is prepared or trained here
        self._leaving = False
        self._departing = False  # the process ends
        self._rested = False  # trains nothing for a while: its model may be old
        self._trained = False  # in this run
        self._resuming = False  # fetches a fresh one, to train again
        self._committed_in: int | None = None  # the generation in which it made its one commit
        self._built: asyncio.Future[training.Built] | None = None
        self._pulled_under = 0  # the revision in force when the model that is loaded was pulled
        self._manifest: Manifest | None = None
        self._version = 0  # of the model that the training thread was given last
        self._tasks: set[asyncio.Task[None]] = set()
        self._flying = False
        self._landed = asyncio.Event()  # no commit is in flight
        self._landed.set()
        self._lease_s = 10.0
        self._commit_s = RunningMedian()
        self._bytes_before = (0, 0)
        self._fetched_before = (0.0, 0.0)  # samples, seconds
        self._fetching: asyncio.Task[None] | None = None  # samples that are dealt to it
        self._data_set = ""  # the digest of what they are of
        self._settled: asyncio.Future[None] = self._loop.create_future()
        # Done when the process should end; carries the error.
        self.ended: asyncio.Future[None] = self._loop.create_future()

    # ---- as Attendance wants it -----------------------------------------------------

    def hello(self) -> sc.Hello:
        return self._hello

    def welcome(self, welcome: sc.Welcome) -> None:
        self._directives.welcome(welcome.scheduler_incarnation)
        self._lease_s = welcome.lease_s or self._lease_s

    def direct(self, directive: sc.Directive) -> None:
        if directive.WhichOneof("kind") == "worker":
            self._offer(directive.worker)

    def report(self) -> sc.Report:
        return sc.Report(worker=self._figures())

    async def leave(self, within_s: float) -> None:
        """The process ends: commit what is left and have it written, if both take at most `within_s`."""
        if self._phase in (Phase.TRAINING, Phase.RESTING) and not self._departing and not self.ended.done():
            self._departing = True
            try:
                await asyncio.wait_for(self._hand_over(self._run_id), within_s)
            except RETRIED as error:
                log.warning("not confirmed that the last update is in a checkpoint: %s", describe(error))

    async def _hand_over(self, run_id: str) -> None:
        if self._directives.current.overlap:  # else a gate might hold the reply
            self.trainer.post(training.Settle())
            await self._settled
        reply = await self._bulk.checkpoint(run_id)
        log.info("run %s: what was committed is in checkpoint %d", run_id, reply.epoch)

    def _figures(self) -> sc.WorkerReport:
        """The report of this moment."""
        report = self.trainer.report() if self._run_id else sc.WorkerReport()
        if report.run_id != self._run_id:  # still loading its data
            report = sc.WorkerReport(run_id=self._run_id)
        return self._complete(report)

    def _complete(self, report: sc.WorkerReport) -> sc.WorkerReport:
        """What the training thread does not know."""
        report.phase = self._phase  # type: ignore[assignment]
        report.error = self._error
        report.revision = self._directives.current.revision
        if report.run_id:
            report.commit_s = self._commit_s.value
            report.pull_s = self._bulk.pull_s
            report.sent_bytes = self._bulk.sent_bytes - self._bytes_before[0]
            report.received_bytes = self._bulk.received_bytes - self._bytes_before[1]
            # A sum of parts of samples: whole ones, but for rounding.
            report.fetched_samples = int(self._bulk.fetched.samples - self._fetched_before[0] + 1e-6)
            report.fetch_s = self._bulk.fetched.seconds - self._fetched_before[1]
            report.retries = self._calls.retries
        return report

    # ---- directives -------------------------------------------------------------------

    def _offer(self, directive: pb.WorkerDirective) -> None:
        if self._directives.offer(directive):
            self._obey()

    def _obey(self) -> None:
        """A directive came that holds from now on."""
        self._received_s = time.monotonic()
        self._reconcile()

    def _reconcile(self) -> None:
        """Do what the directive in force says, from wherever this worker is."""
        directive = self._directives.current
        if self._leaving:
            return  # once the training thread has let go
        wanted = directive.action in _WANTED
        if self._run_id and (not wanted or directive.run_id != self._run_id):
            self._leave()
        elif not wanted:
            self._refuse(directive)
        elif not self._run_id:
            self._begin(directive)
        elif self._phase in (Phase.PREPARING, Phase.FAILED):
            pass  # it looks again once it is ready
        elif directive.action == pb.WorkerDirective.TRAIN:
            self._go_on(directive)
        elif directive.action == pb.WorkerDirective.REST:
            self._stop_fetching()
            self.trainer.post(training.Rest())
            self._rest()
        elif self._phase != Phase.READY:
            self.trainer.post(training.Pause())
            self._rested = True
            self._enter(Phase.READY)
        elif not self._rested and directive.revision > self._pulled_under:
            # Told to prepare once more: the server that held the model was replaced by an empty one.
            assert self._built is not None
            self._enter(Phase.PREPARING)
            self._spawn(self._take_model(self._built.result()))

    def _go_on(self, directive: pb.WorkerDirective) -> None:
        """Train, from the model at hand or from a fresh one."""
        done = directive.once and directive.generation == self._committed_in
        if not self._rested or done:
            self._train()
        elif self._resuming:
            pass  # it looks at the directive once it has the model
        elif 0 < directive.model_version <= self._version and not self._flying:
            self._rise()  # it rested on the very model with which the round begins
        else:
            self._resuming = True
            self._spawn(self._resume())

    def _rest(self) -> None:
        """It rests from now on. The next report says so: a round may take less than the time between two."""
        self._rested = True
        self._phase = Phase.RESTING

    def _train(self) -> None:
        if not self._trained:
            self._trained = True
            log.info("run %s: training", self._run_id)
        self.trainer.post(training.Train(self._directives.current, self._received_s))

    def _refuse(self, directive: pb.WorkerDirective) -> None:
        if directive.action == pb.WorkerDirective.REFUSED:
            log.error("the scheduler refused this worker: %s", directive.reason)
            self._enter(Phase.FAILED, directive.reason or "refused by the scheduler")
        elif self._phase != Phase.IDLE:
            self._enter(Phase.IDLE)

    def _begin(self, directive: pb.WorkerDirective) -> None:
        self._run_id = directive.run_id
        self._commit_s = RunningMedian()
        self._bytes_before = (self._bulk.sent_bytes, self._bulk.received_bytes)
        self._fetched_before = (self._bulk.fetched.samples, self._bulk.fetched.seconds)
        self._data_set = ""
        self._calls.retries = 0
        self._trained = False
        self._enter(Phase.PREPARING)
        log.info("run %s: preparing task %s", directive.run_id, directive.task.name)
        self._spawn(self._prepare(directive))

    def _leave(self) -> None:
        self._give_up()
        self._rested = False
        self._committed_in = None
        self._leaving = True
        self.trainer.post(training.Leave())

    def _left(self, report: sc.WorkerReport) -> None:
        """The training thread let go of the run: say the last figures."""
        if report.run_id != self._run_id:
            report = sc.WorkerReport(run_id=self._run_id)
        if self._phase != Phase.FAILED:
            self._phase = Phase.IDLE
        report.final = True
        log.info("run %s is over here: %d steps, %d commits", self._run_id, report.steps, report.commits)
        self.attendance.report_now(sc.Report(worker=self._complete(report)))
        self._run_id = ""
        self._leaving = False
        self._enter(Phase.IDLE)
        self._reconcile()

    def _enter(self, phase: int, error: str = "") -> None:
        self._phase, self._error = phase, error
        self.attendance.report_now()

    def _fail(self, error: str) -> None:
        log.error("run %s fails here: %s", self._run_id, error)
        self._give_up()
        self._enter(Phase.FAILED, error)

    def _give_up(self) -> None:
        """Whatever is under way for this run."""
        for task in self._tasks:
            task.cancel()
        self._flying = self._resuming = False
        self._landed.set()

    # ---- events of the training thread ---------------------------------------------------

    def emit(self, event: training.Event) -> None:
        """Called from the training thread."""

        def deliver() -> None:
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001 - a mistake of ours must end the process, not be lost
                self._end(error)

        try:
            self._loop.call_soon_threadsafe(deliver)
        except RuntimeError:  # the loop has ended, and the process with it
            log.debug("%s came after the end", type(event).__name__)

    def _on_event(self, event: training.Event) -> None:
        match event:
            case training.Broken(error):
                self._end(RuntimeError(f"the training thread ended: {error}"))
            case training.Left(report):
                self._left(report)
            case _ if self._leaving or event.run_id != self._run_id or self._phase == Phase.FAILED:
                pass  # of a run that is over here
            case training.Built():
                if self._built is not None and not self._built.done():
                    self._built.set_result(event)
            case training.Loaded():
                if self._phase == Phase.PREPARING:
                    log.info("run %s: ready", self._run_id)
                    self._enter(Phase.READY)
                self._reconcile()
            case training.Settled():
                if not self._settled.done():
                    self._settled.set_result(None)
            case training.Started() if not self._rested and self._phase != Phase.TRAINING:
                self._enter(Phase.TRAINING)
            case Wanted():
                self._stop_fetching()
                self._fetching = self._spawn(self._fetch(event))
            case training.Failed():
                self._fail(event.error)
            case Cut():
                self._flying = True
                self._landed.clear()
                self._spawn(self._fly(event))

    # ---- work of its own -------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until the run is left."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Superseded):
            self._end(error)
        elif isinstance(error, (Hopeless, ManifestMismatch)):
            self.trainer.post(training.Pause())
            self._fail(str(error))
        else:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    async def _prepare(self, directive: pb.WorkerDirective) -> None:
        """Build, seed if allowed, pull, load."""
        run_id = directive.run_id
        self._built = self._loop.create_future()
        self.trainer.post(
            training.Prepare(run_id, directive.task, directive.seed, directive.batch, directive.parallelized)
        )
        built = await self._built
        self._manifest = built.manifest
        await self._take_model(built)
        self._spawn(self._keep_lease(run_id, built))

    async def _take_model(self, built: training.Built) -> None:
        """Seed if allowed, pull, load."""
        run_id = built.run_id
        while True:
            # Looked at each time: another may have been chosen to seed, or this one; and a server that
            # was seeded and has no model is not the one that was seeded.
            if self._directives.current.may_seed:
                reply = await self._calls.persist(
                    lambda: self._bulk.seed(run_id, built.manifest, built.vector)
                )
                if reply is not None and reply.accepted:
                    log.info("run %s: gave the parameter server its first model", run_id)
            self._pulled_under = self._directives.current.revision
            model = await self._calls.persist(
                lambda: self._bulk.pull(run_id, pb.ROLE_WORKER, manifest=built.manifest), until_not_yet=True
            )
            if model is not None and model.vector is not None:
                break
            await asyncio.sleep(NOT_YET_S)
        self._load(model.header.version, model.vector)

    def _load(self, version: int, vector: np.ndarray) -> None:
        self._version = version
        self.trainer.post(training.Load(self._run_id, version, vector))

    def _hand(
        self, version: int, vector: np.ndarray, sequence: int = 0, ack: ps.CommitAck | None = None
    ) -> None:
        """Give the training thread a fresh model: of a commit's reply, or (sequence 0) pulled."""
        self._version = version
        ack = ack or ps.CommitAck()
        self.trainer.post(Fresh(self._run_id, sequence, ack.outcome, ack.reason, version, vector))

    async def _fly(self, cut: Cut) -> None:
        """Carry one commit to the server and the fresh model back, however long it takes."""
        header = ps.CommitHeader(
            run_id=cut.run_id,
            worker=self._hello.name,
            incarnation=self._hello.incarnation,
            sequence=cut.sequence,
            base_version=cut.base_version,
            codec=pb.CODEC_FLOAT32,
            total_bytes=cut.vector.nbytes,
            generation=cut.generation,
            steps=cut.steps,
            samples=cut.samples,
            train_loss=cut.train_loss,
            manifest_digest=cut.manifest_digest,
            shard_samples=cut.shard_samples,
        )
        began = cut.started_s

        async def attempt() -> Model:
            nonlocal began
            model = await self._bulk.commit(header, cut.vector, gated=not cut.overlap)
            if model.vector is None:
                raise EOFError("the reply holds no model")
            # O is what the commit took when it worked; an outage or a gate is no property of the link.
            self._commit_s.add(max(0.0, time.monotonic() - began - model.header.held_s))
            return model

        def again() -> None:
            nonlocal began
            began = time.monotonic()

        model = await self._calls.persist(attempt, again=again)
        assert model is not None
        assert model.vector is not None
        self._flying = False
        # First the directive, so that the next interval begins under it.
        if model.header.HasField("next") and self._directives.offer_in_reply(model.header.next):
            self._obey()
        ack = model.header.ack
        self._hand(model.header.version, model.vector, cut.sequence, ack)
        self._landed.set()
        if cut.once:
            self._committed_in = cut.generation
            now = self._directives.current
            if now.action == pb.WorkerDirective.TRAIN and now.once and now.generation == cut.generation:
                self._rest()

    async def _fetch(self, wanted: Wanted) -> None:
        """Bring the samples of a generation, however long it takes; another generation's takes its place."""
        dealt = await self._calls.persist(
            lambda: self._bulk.samples(wanted.run_id, wanted.generation, wanted.count)
        )
        assert dealt is not None
        if self._data_set not in ("", dealt.digest):
            raise Hopeless("samples: the parameter server's data set is another one than before")
        self._data_set = dealt.digest
        self.trainer.post(Given(wanted.run_id, wanted.generation, dealt.layout, dealt.data))

    def _stop_fetching(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    async def _keep_lease(self, run_id: str, built: training.Built) -> None:
        lease_s = self._lease_s
        known = True
        hung = False
        while True:
            await asyncio.sleep(lease_s / 3)
            was_hung, hung = hung, self._hangs()
            if hung:
                if not was_hung:
                    log.error(
                        "a local update has been under way for %.0f s: until it ends this worker keeps no "
                        "lease, and nobody waits for it",
                        self.trainer.computing_s(),
                    )
                continue
            try:
                reply = await self._bulk.renew(run_id)
            except RETRIED as error:
                self._calls.weigh(error, LEASE)
                continue
            self._calls.outage.over(LEASE)
            lease_s = reply.lease_s or lease_s
            if known and not reply.known:
                log.warning("the lease at the parameter server had ended; pulling again")
            known = reply.known
            # A commit in flight makes it known again; while it prepares, the model is pulled anyway.
            if not known and not self._flying and self._phase != Phase.PREPARING:
                await self._pull_again(run_id, built)

    def _hangs(self) -> bool:
        return self.trainer.computing_s() > max(HUNG_S, HUNG_TIMES * self.trainer.report().step_s)

    async def _resume(self) -> None:
        """Train again after a rest, from the model of today."""
        assert self._manifest is not None
        manifest = self._manifest
        await self._landed.wait()  # its answer is a fresh model, too
        model = await self._calls.persist(
            lambda: self._bulk.pull(self._run_id, pb.ROLE_WORKER, manifest=manifest, newer_than=self._version)
        )
        assert model is not None
        self._resuming = False
        if model.vector is not None:
            self._hand(model.header.version, model.vector)
        directive = self._directives.current
        if directive.action == pb.WorkerDirective.TRAIN and directive.run_id == self._run_id:
            self._rise()

    def _rise(self) -> None:
        """The rest is over, and the model is as fresh as it gets."""
        self._rested = False
        self._phase = Phase.TRAINING
        self._train()

    async def _pull_again(self, run_id: str, built: training.Built) -> None:
        """The server forgot this worker: pulling takes a new lease, and a fresh base."""
        try:
            model = await self._bulk.pull(run_id, pb.ROLE_WORKER, manifest=built.manifest)
        except RETRIED as error:
            self._calls.weigh(error, LEASE)
            return
        if model.vector is None:
            return
        if self._phase == Phase.READY and not self._rested:
            self._load(model.header.version, model.vector)
        elif model.header.version > self._version:  # else a fresher one has come meanwhile
            self._hand(model.header.version, model.vector)

    async def _introduce(self) -> None:
        """A server that was restarted does not know this process: only a pull makes it known.

        What it pulls is not used: the commit that is tried again brings a model of its own.
        """
        assert self._manifest is not None
        try:
            await self._bulk.pull(self._run_id, pb.ROLE_WORKER, manifest=self._manifest)
        except RETRIED as error:
            self._calls.weigh(error, CALLS)
