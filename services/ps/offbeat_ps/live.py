"""A run as the server serves it: carries out the run's decisions on the store and the disk.

Decisions are made in the event loop, in the order of arrival; the vector work that they
ask for goes through the run's lane in that same order; files are written by a thread of
their own, from snapshots. So nothing waits for a disk, and nothing in the loop for a vector.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offbeat.v1 import parameter_server_pb2 as pb
from offbeat_core.clock import Clock
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_core.pauses import Pauses
from offbeat_ps import tensorfile
from offbeat_ps.checkpoint import Captured, Folder, initial_values
from offbeat_ps.fold import Sums
from offbeat_ps.inspection import inspect
from offbeat_ps.instructions import (
    Ack,
    Add,
    Apply,
    Capture,
    DropSums,
    FoldSums,
    Instruction,
    Refusal,
    Refuse,
    Reply,
)
from offbeat_ps.lane import Lane
from offbeat_ps.run import Commit, Refused, Rules, Run
from offbeat_ps.store import Snapshot, Store, norm
from offbeat_ps.tensorfile import Tensor

log = logging.getLogger("offbeat_ps")

KEPT_SNAPSHOTS = 2
"""So many models that the evaluator pulled are kept, for it to call one of them the best."""

LONGEST_SLEEP_S = 0.5
RETRY_FILES_S = 5.0
CLOSE_S = 10.0  # a disk that hangs must not keep the server from ending


@dataclass(frozen=True)
class Answer:
    """What a commit's reply carries."""

    ack: Ack
    snapshot: Snapshot


@dataclass
class _Model:
    """What the lane works on."""

    store: Store
    sums: Sums
    lane: Lane
    folder: Folder


class LiveRun:
    """One run, from the scheduler's first word about it until the next run.

    Args:
        folder: of all runs.
        disk: the thread that writes files.
        changed: called whenever there is something to report.
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
    ) -> None:
        self.run = Run(run_id, rules, clock.now())
        self.finished = False
        self.error = ""
        self.model_path = ""
        self.best_model_path = ""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.durable_at: float | None = None
        self._folder_of_runs = folder
        self._disk = disk
        self._clock = clock
        self._changed = changed
        self._model: _Model | None = None
        self._seeding = asyncio.Lock()
        self._tokens = itertools.count(1)
        self._updates: dict[int, np.ndarray] = {}
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._evaluated: list[Snapshot] = []
        self._to_write: Captured | None = None
        self._written = asyncio.Condition()
        self._tried_epoch = 0
        self._wake = asyncio.Event()
        self._final_tried = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._initial: asyncio.Future[dict[str, Tensor]] | None = None
        self._initial_path = Path(initial_model)
        if initial_model:
            self._initial = asyncio.get_running_loop().run_in_executor(
                disk, self._read_initial, initial_model
            )
            self._background(self._watch_initial())
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
    def folder(self) -> Folder | None:
        return self._model.folder if self._model else None

    @property
    def busy_s(self) -> float:
        return self._model.lane.busy_s if self._model else 0.0

    def active_trainers(self) -> int:
        """M, now."""
        return len(self.run.membership.active(self._clock.now()))

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
            if self._model is not None:
                difference = self._model.store.manifest.difference(manifest)
                if difference:
                    raise Refused(Refusal.MANIFEST, f"manifest differs: {difference}")
                return False
            lane = Lane(manifest.total_bytes)
            try:
                if self._initial is not None:
                    tensors = await self._initial
                    values = await lane.aside(lambda: initial_values(tensors, manifest, self._initial_path))
                else:
                    finding = await lane.aside(lambda: inspect(values, manifest))
                    if finding.fault:
                        raise Refused(Refusal.UNFIT, f"initial parameters: {finding.fault}")
            except (OffbeatError, Refused) as error:
                lane.close()
                if isinstance(error, OffbeatError):
                    self._fail(str(error))
                raise
            folder = Folder(self._folder_of_runs, self.run_id, manifest)
            self._model = _Model(Store(manifest, values), Sums(), lane, folder)
            self._initial = None
            # The model can be pulled once the attempt to write version 0 was made.
            self._perform(self.run.seed(manifest, self._clock.now()))
            await self._tried(self.run.open_epoch - 1)
            self.run.open()
            self._changed()
            log.info(
                "run '%s' has its model: %d trainable numbers, %d in buffers",
                self.run_id,
                manifest.trainable_elements,
                manifest.buffer_elements,
            )
            return True

    async def pull(self, request: pb.PullRequest, trainer: bool, evaluator: bool) -> Snapshot:
        """The model as it is now. A trainer takes a lease; what an evaluator pulled is kept.

        Raises Refused.
        """
        if self._model is None or not self.run.ready:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        if request.manifest_digest:
            self.run.check_manifest(request.manifest_digest)
        if trainer:
            self._perform(self.run.pull(request.name, request.incarnation, self._clock.now()))
        snapshot = await self._model.lane.submit(self._model.store.snapshot)
        if evaluator and snapshot not in self._evaluated:
            self._evaluated = [*self._evaluated, snapshot][-KEPT_SNAPSHOTS:]
        return snapshot

    def renew(self, worker: str, incarnation: str) -> bool:
        known, instructions = self.run.renew(worker, incarnation, self._clock.now())
        self._perform(instructions)
        return known

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
        model = self._model
        if model is None:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        finding = await model.lane.aside(functools.partial(inspect, update, model.store.manifest))
        model_norm = 0.0
        if finding.norm > self.run.norm_limit(header.steps):
            model_norm = await self._model_norm(model)
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
            if self.run.rules.deadline_s is not None:
                self._wake.set()
            held = self.run.held.get(header.worker)
            if held is not None and held.token == token:
                on_hold()
            return await call
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

    async def _model_norm(self, model: _Model) -> float:
        snapshot = await model.lane.submit(model.store.snapshot)
        split = model.store.manifest.trainable_elements
        return await model.lane.aside(lambda: norm(snapshot.values[:split]))

    async def checkpoint(self) -> tuple[int, int]:
        """Write a checkpoint of all that was applied so far; (epoch, version) once it is on disk.

        Raises:
            Refused: there is no model.
            OffbeatError: it cannot be written.
        """
        if self._model is None:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        if not self.run.captured:
            self._perform(self.run.capture(self._clock.now()))
        epoch, version = self.run.open_epoch - 1, self.run.version
        await self._tried(epoch)
        if self.run.durable_epoch < epoch:
            raise OffbeatError(
                f"the checkpoint of run '{self.run_id}' could not be written to {self._model.folder.folder}",
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

    def finish(self) -> None:
        """The run is over: fold what waits, answer everybody, write the final model."""
        if self.run.over:
            return
        self._perform(self.run.finish(self._clock.now()))
        log.info("run '%s' is over at version %d", self.run_id, self.run.version)
        self._background(self._write_final())

    def keep_best(self, version: int, loss: float, metric: float) -> None:
        """Write the model of `version`, one of the last that the evaluator pulled, as the best."""
        snapshot = next((s for s in self._evaluated if s.version == version), None)
        if snapshot is None or self._model is None:
            log.warning("run '%s': version %d is no longer here to be kept as the best", self.run_id, version)
            return
        self._background(self._write_best(self._model.folder, snapshot, loss, metric))

    async def close(self) -> None:
        """End: write what is not on disk yet, leave no task behind."""
        model = self._model
        if model is not None:
            if not self.run.captured:
                self._perform(self.run.capture(self._clock.now()))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._tried(self.run.open_epoch - 1), CLOSE_S)
            if self.run.over:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._final_tried.wait(), CLOSE_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if model is not None:
            model.lane.close()

    # ---- carrying out ------------------------------------------------------------------

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        """Queue the work of `instructions`, in order. Does not wait."""
        work: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Refuse):
                self._end_call(instruction.token, error=Refused(instruction.refusal, instruction.details))
            else:
                work.append(instruction)
        model = self._model
        if not work or model is None:
            return
        updates = {i.token: self._updates.pop(i.token) for i in work if isinstance(i, (Apply, Add))}
        replies = [i for i in work if isinstance(i, Reply)]
        done = model.lane.submit(lambda: _carry_out(model, work, updates))
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
        for captured in captures:
            if self._to_write is None:
                self._background(self._write_checkpoints())
            self._to_write = captured  # a newer one contains an older one
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
            if lost_s:
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

    async def _write_checkpoints(self) -> None:
        """Write the newest capture, until there is none."""
        model = self._model
        assert model is not None
        loop = asyncio.get_running_loop()
        while (captured := self._to_write) is not None:
            try:
                written = await loop.run_in_executor(self._disk, model.folder.write_checkpoint, captured)
            except Exception:
                log.exception("run '%s': a checkpoint could not be made", self.run_id)
                written = False
            if written:
                self.run.durable(captured.epoch)
                self.durable_at = self._clock.now()
            else:
                self.run.failed_capture()
            async with self._written:
                self._tried_epoch = captured.epoch
                self._written.notify_all()
            if self._to_write is captured:
                self._to_write = None
            self._changed()

    async def _tried(self, epoch: int) -> None:
        """Wait until a checkpoint of this epoch or a later one was written, or could not be."""
        async with self._written:
            await self._written.wait_for(lambda: self._tried_epoch >= epoch)

    async def _write_final(self) -> None:
        """The final model and the last checkpoint: tried until both are on disk, but reported at once."""
        model = self._model
        if model is None:
            self.finished = True
            self._changed()
            return
        loop = asyncio.get_running_loop()
        snapshot = await model.lane.submit(model.store.snapshot)
        while True:
            captured = Captured(self.run.open_epoch - 1, snapshot, self.run.accounts())
            written = await loop.run_in_executor(self._disk, model.folder.write_model, captured)
            if not self.run.captured:
                self._perform(self.run.capture(self._clock.now()))
            await self._tried(self.run.open_epoch - 1)
            self.finished = True
            self._final_tried.set()
            if written and self.run.captured:
                self.model_path, self.error = str(model.folder.model.resolve()), ""
                log.info("the model is at %s", self.model_path)
                self._changed()
                return
            self._fail(f"the final model could not be written to {model.folder.folder}")
            await asyncio.sleep(RETRY_FILES_S)

    async def _write_best(self, folder: Folder, snapshot: Snapshot, loss: float, metric: float) -> None:
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._disk, folder.write_best, snapshot, loss, metric):
            self.best_model_path = str(folder.best.resolve())
            self._changed()

    def _read_initial(self, name: str) -> dict[str, Tensor]:
        path = Path(name)
        if not path.is_absolute() and not path.exists():
            path = self._folder_of_runs / path
        return tensorfile.read(path, "initial_model")[0]

    async def _watch_initial(self) -> None:
        """Say at once that the file cannot be used, not only when a worker seeds."""
        assert self._initial is not None
        try:
            await asyncio.shield(self._initial)
        except OffbeatError as error:
            self._fail(str(error))

    def _fail(self, error: str) -> None:
        if self.error != error:
            log.error("run '%s': %s", self.run_id, error.replace("\n", "; "))
        self.error = error
        self._changed()

    def _background(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("run '%s': unexpected: %r", self.run_id, task.exception())


def _carry_out(
    model: _Model, work: Sequence[Instruction], updates: dict[int, np.ndarray]
) -> tuple[Snapshot | None, list[Captured]]:
    """In the lane: change the model; the snapshot that replies carry is taken after all of it."""
    captures = []
    for instruction in work:
        if isinstance(instruction, Apply):
            model.store.apply(updates[instruction.token], instruction.weight)
        elif isinstance(instruction, Add):
            model.sums.add(updates[instruction.token], instruction.weight)
        elif isinstance(instruction, FoldSums):
            model.store.fold(model.sums, instruction.scale, instruction.share)
        elif isinstance(instruction, DropSums):
            model.sums.clear()
        elif isinstance(instruction, Capture):
            waiting = None if model.sums.values is None else model.sums.values.copy()
            captures.append(
                Captured(
                    instruction.epoch,
                    model.store.snapshot(),
                    instruction.accounts,
                    waiting,
                    model.sums.weight,
                )
            )
    replies = any(isinstance(instruction, Reply) for instruction in work)
    return (model.store.snapshot() if replies else None), captures
