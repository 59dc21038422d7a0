"""A run's files, written in the background by the one thread that writes: nobody waits for the disk.

Checkpoints are whole states: of those that wait to be written only the newest is. What
cannot be written is tried again, by the next checkpoint or, at a run's end, every few
seconds.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from offbeat_core.clock import Clock
from offbeat_ps.checkpoint import Captured, Folder
from offbeat_ps.run import Run
from offbeat_ps.store import Snapshot

log = logging.getLogger("offbeat_ps")


class Archive:
    """Writes what a run leaves, and tells the run what is durable.

    Attributes:
        durable_at: when the newest checkpoint was on disk (the clock's seconds); None before.
    """

    def __init__(self, folder: Folder, run: Run, disk: ThreadPoolExecutor, clock: Clock) -> None:
        self.folder = folder
        self.durable_at: float | None = None
        self._run = run
        self._disk = disk
        self._clock = clock
        self._next: Captured | None = None
        self._tried_epoch = 0
        self._tried = asyncio.Condition()

    def offer(self, captured: Captured) -> bool:
        """Have a checkpoint written, in place of one that waits. True if `write` must be started."""
        idle = self._next is None
        self._next = captured
        return idle

    async def write(self) -> None:
        """Write the newest capture, until there is none."""
        while (captured := self._next) is not None:
            written = await self._on_disk(self.folder.write_checkpoint, captured)
            if written:
                self._run.durable(captured.epoch)
                self.durable_at = self._clock.now()
            else:
                self._run.failed_capture()
            async with self._tried:
                self._tried_epoch = captured.epoch
                self._tried.notify_all()
            if self._next is captured:
                self._next = None

    async def tried(self, epoch: int) -> bool:
        """Wait until a checkpoint of this epoch or a later one was written, or could not be: which?"""
        async with self._tried:
            await self._tried.wait_for(lambda: self._tried_epoch >= epoch)
        return self._run.durable_epoch >= epoch

    async def write_model(self, captured: Captured) -> str:
        """Write the final model; its path, or empty where it could not be written."""
        written = await self._on_disk(self.folder.write_model, captured)
        return str(self.folder.model.resolve()) if written else ""

    async def write_best(self, snapshot: Snapshot, loss: float, metric: float) -> str:
        """Write the best model; its path, or empty where it could not be written."""
        written = await self._on_disk(self.folder.write_best, snapshot, loss, metric)
        return str(self.folder.best.resolve()) if written else ""

    async def _on_disk(self, work: object, *arguments: object) -> bool:
        try:
            loop = asyncio.get_running_loop()
            return bool(await loop.run_in_executor(self._disk, work, *arguments))  # type: ignore[arg-type]
        except Exception:
            log.exception("run '%s': a file could not be made", self._run.run_id)
            return False
