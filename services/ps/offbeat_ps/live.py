"""A run as the server serves it: carries out the run's decisions on the store and the disk.

Decisions are made in the event loop, in the order of arrival; the vector work that they
ask for goes through the run's lane in that same order; files are written by a thread of
their own, from snapshots. So nothing waits for a disk, and nothing in the loop for a vector.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat_core.clock import Clock
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_core.pauses import Pauses
from offbeat_ps.archive import Archive
from offbeat_ps.best import Best, BestKeeper
from offbeat_ps.checkpoint import Captured, Folder
from offbeat_ps.entrance import Refused
from offbeat_ps.initial import InitialModel
from offbeat_ps.inspection import inspect
from offbeat_ps.instructions import (
    Ack,
    Add,
    Apply,
    Instruction,
    Refusal,
    Refuse,
    Reply,
)
from offbeat_ps.lane import Lane
from offbeat_ps.model import Model
from offbeat_ps.restored import read as read_restored
from offbeat_ps.restored import take_up
from offbeat_ps.rules import Commit, Rules
from offbeat_ps.run import Run
from offbeat_ps.store import Snapshot, norm

log = logging.getLogger("offbeat_ps")

KEPT_SNAPSHOTS = 2
"""So many models that the evaluator pulled are kept, for it to call one of them the best."""

LONGEST_SLEEP_S = 0.5
RETRY_FILES_S = 5.0
AHEAD_S = 10.0
"""A worker may hear of a generation before this server does: so long its call waits for the word."""
CLOSE_S = 10.0  # a disk that hangs must not keep the server from ending


@dataclass(frozen=True)
class Answer:
    """What a commit's reply carries."""

    ack: Ack
    snapshot: Snapshot
    held_s: float = 0.0  # by a gate


@dataclass(frozen=True)
class _Seeded:
    """What a run has once it has a model."""

    model: Model
    lane: Lane
    archive: Archive

    @property
    def manifest(self) -> Manifest:
        return self.model.store.manifest

    def snapshot(self) -> asyncio.Future[Snapshot]:
        """The model as it is after all work that was queued."""
        return self.lane.submit(self.model.store.snapshot)


class LiveRun:
    """One run, from the scheduler's first word about it until the next run.

    Args:
        folder: of all runs.
        disk: the thread that writes files.
        changed: called whenever there is something to report.
        round_over: called, once in each round, when it is over.
        broken: called with an unexpected error in the background: the run can't go on here.
        resume: the run has begun on a server before this one: it goes on from its last checkpoint.
    """

    def __init__(
        self,
        run_id: str,
        rules: Rules,
        *,
        initial_model: str,
        folder: Path,
        disk: ThreadPoolExecutor,
        clock: Clock,
        changed: Callable[[], None],
        round_over: Callable[[], None],
        broken: Callable[[BaseException], None],
        resume: common.Resume | None = None,
    ) -> None:
        self.run = Run(run_id, rules, clock.now())
        self.finished = False
        self.error = ""
        self.model_path = ""
        self.best = BestKeeper()
        self.received_bytes = 0
        self.sent_bytes = 0
        self._folder_of_runs = folder
        self._disk = disk
        self._clock = clock
        self._changed = changed
        self._round_over = round_over
        self._round_said = -1  # the generation of the last round that was over
        self._broken = broken
        self._seeded: _Seeded | None = None
        self._seeding = asyncio.Lock()
        self._tokens = itertools.count(1)
        self._updates: dict[int, np.ndarray] = {}
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._evaluated: list[Snapshot] = []
        self._wake = asyncio.Event()
        self._configured = asyncio.Event()  # set by the next rules, and then another one
        self._final_tried = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None  # writes the best until it is on disk
        self._tasks: set[asyncio.Task[None]] = set()
        self._resume = resume
        fresh = initial_model if resume is None else ""
        self._initial = InitialModel(fresh, folder, disk) if fresh else None
        if resume is not None:
            self._background(self._go_on(resume))
        if self._initial is not None:
            self._background(self._watch_initial(self._initial))
        self._background(self._keep_time())

    # ---- what others see ---------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def seeded(self) -> bool:
        return self.run.ready

    @property
    def manifest(self) -> Manifest | None:
        return self.run.manifest

    @property
    def archive(self) -> Archive | None:
        return self._seeded.archive if self._seeded else None

    @property
    def busy_s(self) -> float:
        return self._seeded.lane.busy_s if self._seeded else 0.0

    def active_trainers(self) -> int:
        """M, now. May be asked from another thread."""
        return len(self.run.membership.counted(self._clock.now()))

    # ---- calls ---------------------------------------------------------------------

    async def seed(self, manifest: Manifest, values: np.ndarray) -> bool:
        """Give the run its model; False if it has one. Version 0 is on disk before this returns.

        Raises:
            Refused: the manifest is not that of the model which is there; `values` are not finite.
            OffbeatError: the initial model cannot be read or does not fit.
        """
        async with self._seeding:
            if self.run.over:
                raise Refused(Refusal.OVER, f"run '{self.run_id}' is over")
            if self._seeded is not None:
                difference = self._seeded.manifest.difference(manifest)
                if difference:
                    raise Refused(Refusal.MANIFEST, f"manifest differs: {difference}")
                return False
            if self._resume is not None:
                raise Refused(Refusal.NO_MODEL, "no model yet")  # it is the checkpoint's
            lane = Lane(manifest.total_bytes)
            try:
                if self._initial is not None:
                    values = await self._initial.values(manifest)
                else:
                    finding = await lane.aside(lambda: inspect(values, manifest))
                    if finding.fault:
                        raise Refused(Refusal.UNFIT, f"initial parameters: {finding.fault}")
            except (OffbeatError, Refused) as error:
                lane.close()
                if isinstance(error, OffbeatError):
                    self.fail(str(error))
                raise
            self._initial = None
            await self._begin(Model(manifest, values), lane)
            return True

    async def _begin(self, model: Model, lane: Lane) -> None:
        """From now on the run has this model, and whoever asks gets it."""
        manifest = model.store.manifest
        archive = Archive(
            Folder(self._folder_of_runs, self.run_id, manifest), self.run, self._disk, self._clock
        )
        self._seeded = _Seeded(model, lane, archive)
        # The model can be pulled once the attempt to write its first version was made.
        self._perform(self.run.seed(manifest, self._clock.now()))
        await archive.tried(self.run.open_epoch - 1)
        self.run.open()
        self._changed()
        log.info(
            "run '%s' has its model: %d trainable numbers, %d in buffers",
            self.run_id,
            manifest.trainable_elements,
            manifest.buffer_elements,
        )

    async def pull(self, request: pb.PullRequest, trainer: bool, evaluator: bool) -> Snapshot:
        """The model as it is now. A trainer takes a lease; what an evaluator pulled is kept.

        Raises Refused.
        """
        if self._seeded is None or not self.run.ready:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        if request.manifest_digest:
            self.run.check_manifest(request.manifest_digest)
        if trainer:
            self._perform(self.run.pull(request.name, request.incarnation, self._clock.now()))
        snapshot = await self._seeded.snapshot()
        if evaluator and snapshot not in self._evaluated:
            self._evaluated = [*self._evaluated, snapshot][-KEPT_SNAPSHOTS:]
        return snapshot

    def renew(self, worker: str, incarnation: str) -> bool:
        known, instructions = self.run.renew(worker, incarnation, self._clock.now())
        self._perform(instructions)
        return known

    async def rules_of(self, generation: int) -> tuple[Rules, float]:
        """The rules in force, once they are that generation's, and the seconds until then.

        Raises Refused where they are not.
        """
        began = self._clock.now()
        until = began + AHEAD_S
        while self.run.rules.generation < generation and self._clock.now() < until:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._configured.wait(), until - self._clock.now())
        rules = self.run.rules
        if rules.generation != generation:
            raise Refused(
                Refusal.NOT_DEALT, f"generation {generation} is not in force; that is {rules.generation}"
            )
        return rules, self._clock.now() - began

    def admit(self, header: pb.CommitHeader) -> None:
        """Refuse early, before the update is received. Raises Refused."""
        self.run.check_manifest(header.manifest_digest, header.total_bytes)
        self.run.admit(header.worker, header.incarnation)

    async def commit(
        self, header: pb.CommitHeader, update: np.ndarray, on_hold: Callable[[], None]
    ) -> Answer:
        """Decide on an update that arrived whole, and wait for its answer.

        Args:
            update: the run takes it over.
            on_hold: called if the answer is held at the gate.

        Raises:
            Refused: the call gets no model.
        """
        seeded = self._seeded
        if seeded is None:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        finding = await seeded.lane.aside(functools.partial(inspect, update, seeded.manifest))
        model_norm = 0.0
        if finding.norm > self.run.norm_limit(header.steps):
            model_norm = await self._model_norm(seeded)
        token = next(self._tokens)
        self._updates[token] = update
        del update  # a held call must not hold the memory of what was added to the sums
        call = self._calls[token] = asyncio.get_running_loop().create_future()
        refused = self.run.counters.refused
        try:
            self._perform(
                self.run.commit(
                    Commit(
                        token=token,
                        worker=header.worker,
                        incarnation=header.incarnation,
                        sequence=header.sequence,
                        base_version=header.base_version,
                        generation=header.generation,
                        steps=header.steps,
                        samples=header.samples,
                        shard_samples=header.shard_samples,
                        train_loss=header.train_loss,
                        finding=finding,
                        model_norm=model_norm,
                    ),
                    self._clock.now(),
                )
            )
            self._changed()
            if self.run.counters.refused != refused:
                self._say_refused(header.worker)
            if self.run.rules.timed:
                self._wake.set()
            held = self.run.held.get(header.worker)
            if held is None or held.token != token:
                return await call
            since = self._clock.now()
            on_hold()
            answer = await call
            return dataclasses.replace(answer, held_s=self._clock.now() - since)
        finally:
            self._calls.pop(token, None)
            self._updates.pop(token, None)
            self.run.abandon(token)

    def _say_refused(self, worker: str) -> None:
        entry = self.run.ledger.entries[worker]
        log.warning(
            "run '%s': the update of %s was refused: %s%s",
            self.run_id,
            worker,
            entry.refusal,
            "; it is quarantined" if entry.quarantined else "",
        )

    async def _model_norm(self, seeded: _Seeded) -> float:
        snapshot = await seeded.snapshot()
        split = seeded.manifest.trainable_elements
        return await seeded.lane.aside(lambda: norm(snapshot.values[:split]))

    async def checkpoint(self) -> tuple[int, int]:
        """Write a checkpoint of all that was applied so far; (epoch, version) once it is on disk.

        Raises:
            Refused: there is no model.
            OffbeatError: it cannot be written.
        """
        if self._seeded is None:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        if not self.run.captured:
            self._perform(self.run.capture(self._clock.now()))
        epoch, version = self.run.open_epoch - 1, self.run.version
        archive = self._seeded.archive
        if not await archive.tried(epoch):
            raise OffbeatError(
                f"the checkpoint of run '{self.run_id}' could not be written to {archive.folder.folder}",
                "the server's log says why; free or mount the disk",
            )
        return epoch, version

    # ---- the run's course ------------------------------------------------------------

    def release_calls(self) -> None:
        """The server ends: whoever waits for an answer is to try again."""
        for token in list(self._calls):
            self._end_call(token, error=Refused(Refusal.STOPPING, "the parameter server is stopping"))

    def configure(self, rules: Rules) -> None:
        self._perform(self.run.configure(rules, self._clock.now()))
        self._wake.set()
        self._configured.set()
        self._configured = asyncio.Event()

    def finish(self) -> None:
        """The run is over: fold what waits, answer everybody, write the final model."""
        if self.run.over:
            return
        self._perform(self.run.finish(self._clock.now()))
        log.info("run '%s' is over at version %d", self.run_id, self.run.version)
        self._background(self._write_final())

    def keep_best(self, version: int, loss: float, metric: float) -> None:
        """Write the model of `version`, one of the last that the evaluator pulled, as the best."""
        if self.best.knows(version):
            return
        snapshot = next((s for s in self._evaluated if s.version == version), None)
        if snapshot is None or self._seeded is None:
            log.warning("run '%s': version %d is no longer here to be kept as the best", self.run_id, version)
            self.best.missed = version
            self._changed()
            return
        self.best.want(Best(version, loss, metric), snapshot)
        if self._keeping is None or self._keeping.done():
            self._keeping = self._background(self._keep_writing_best(self._seeded.archive))

    async def close(self) -> None:
        """End: write what is not on disk yet, leave no task behind."""
        seeded = self._seeded
        if seeded is not None:
            if not self.run.captured:
                self._perform(self.run.capture(self._clock.now()))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(seeded.archive.tried(self.run.open_epoch - 1), CLOSE_S)
            if self.run.over:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._final_tried.wait(), CLOSE_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._write_best(seeded.archive), CLOSE_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if seeded is not None:
            seeded.lane.close()

    # ---- carrying out ------------------------------------------------------------------

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        """Queue the work of `instructions`, in order. Does not wait."""
        rules = self.run.rules
        if rules.once and self._round_said != rules.generation and self.run.closed:
            self._round_said = rules.generation
            self._round_over()
        work: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Refuse):
                self._end_call(instruction.token, error=Refused(instruction.refusal, instruction.details))
            else:
                work.append(instruction)
        seeded = self._seeded
        if not work or seeded is None:
            return
        updates = {i.token: self._updates.pop(i.token) for i in work if isinstance(i, (Apply, Add))}
        replies = [i for i in work if isinstance(i, Reply)]
        done = seeded.lane.submit(lambda: seeded.model.carry_out(work, updates))
        done.add_done_callback(lambda future: self._carried_out(future, replies))

    def _carried_out(
        self, future: asyncio.Future[tuple[Snapshot | None, list[Captured]]], replies: list[Reply]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            log.error("run '%s': the model could not be changed: %r", self.run_id, error)
            for reply in replies:
                self._end_call(reply.token, error=error)
            return
        snapshot, captures = future.result()
        for reply in replies:
            if snapshot is not None:
                self._end_call(reply.token, answer=Answer(reply.ack, snapshot))
        self._archive_all(captures)
        self._changed()

    def _end_call(self, token: int, answer: Answer | None = None, error: BaseException | None = None) -> None:
        call = self._calls.pop(token, None)
        if call is None or call.done():
            return
        if answer is not None:
            call.set_result(answer)
        elif error is not None:
            call.set_exception(error)

    async def _keep_time(self) -> None:
        """Let leases end, gates close and checkpoints begin when they are due."""
        pauses = Pauses(LONGEST_SLEEP_S)
        while not self.finished:
            now = self._clock.now()
            lost_s = pauses.beat(now)
            if lost_s > self.run.rules.lease_s / 2:
                log.warning("this server did not run for %.1f s; leases are longer by that", lost_s)
            before = set(self.run.membership.live)
            self._perform(self.run.tick(now, lost_s))
            if ended := before - self.run.membership.live:
                names = ", ".join(sorted(ended))
                log.info("run '%s': no word from %s: the lease ended, nobody waits", self.run_id, names)
                self._changed()
            due = self.run.wake_at()
            pause = LONGEST_SLEEP_S if due is None else min(max(due - now, 0.005), LONGEST_SLEEP_S)
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    # ---- files ---------------------------------------------------------------------------

    def _archive_all(self, captures: Sequence[Captured]) -> None:
        seeded = self._seeded
        assert seeded is not None, "what is captured is a model"
        for captured in captures:
            if seeded.archive.offer(captured):
                self._background(self._write(seeded.archive))

    async def _write(self, archive: Archive) -> None:
        await archive.write()
        self._changed()

    async def _write_final(self) -> None:
        """The final model and the last checkpoint: tried until both are on disk, but reported at once."""
        seeded = self._seeded
        if seeded is None:
            self.finished = True
            self._changed()
            return
        snapshot = await seeded.snapshot()
        while True:
            captured = Captured(self.run.open_epoch - 1, snapshot, self.run.accounts())
            path = await seeded.archive.write_model(captured)
            if not self.run.captured:
                self._perform(self.run.capture(self._clock.now()))
            durable = await seeded.archive.tried(self.run.open_epoch - 1)
            best = await self._write_best(seeded.archive)
            self.finished = True
            self._final_tried.set()
            if path and durable:
                if path != self.model_path:
                    log.info("the model is at %s", path)
                self.model_path = path
                if best:
                    self.error = ""
                    self._changed()
                    return
            which = "best" if path and durable else "final"
            self.fail(f"the {which} model could not be written to {seeded.archive.folder.folder}")
            await asyncio.sleep(RETRY_FILES_S)

    async def _write_best(self, archive: Archive) -> bool:
        """Try to write the best model, if it is not on disk yet; True if it is now."""
        written = await self.best.write(archive.write_best)
        self._changed()
        return written

    async def _keep_writing_best(self, archive: Archive) -> None:
        while not await self._write_best(archive):
            await asyncio.sleep(RETRY_FILES_S)

    async def _go_on(self, resume: common.Resume) -> None:
        """Take the run up where its last checkpoint left it."""
        folder = self._folder_of_runs / self.run_id
        async with self._seeding:
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._disk, read_restored, folder, self.run_id)
            except OffbeatError as error:
                self.fail(str(error))
                return
            if found.best is not None:
                self.best.kept, self.best.path = found.best
            model = take_up(found, self.run, resume.version, resume.trainers, self._clock.now())
            await self._begin(model, Lane(found.manifest.total_bytes))
            log.warning(
                "run '%s' goes on from its checkpoint %d; commits made after it are lost",
                self.run_id,
                found.epoch,
            )

    async def _watch_initial(self, initial: InitialModel) -> None:
        """Say at once that the file cannot be used, not only when a worker seeds."""
        if problem := await initial.problem():
            self.fail(problem)

    def fail(self, error: str) -> None:
        """Say, here and to the scheduler, why the run can't have its model, or can't leave one."""
        if self.error != error:
            log.error("run '%s': %s", self.run_id, error.replace("\n", "; "))
        self.error = error
        self._changed()

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("run '%s': unexpected: %r; this server ends", self.run_id, error, exc_info=error)
            self._broken(error)
