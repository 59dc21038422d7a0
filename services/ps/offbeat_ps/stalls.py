"""Transfers that stopped moving are ended, so that a caller that fell silent holds nothing for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from offbeat_core.clock import Clock

log = logging.getLogger("offbeat_ps")

STALL_S = 60.0
"""No part moved for so long: the transfer is given up."""


class Stalled(Exception):
    """The transfer was given up."""


class Progress:
    """One call's transfer. It is not watched while paused (waiting for memory, or for a gate)."""

    def __init__(self, task: asyncio.Task[object], clock: Clock) -> None:
        self.task = task
        self.stalled = False
        self._clock = clock
        self.since: float | None = clock.now()

    def moved(self) -> None:
        self.since = self._clock.now()

    def pause(self) -> None:
        self.since = None


class Stalls:
    """Watches transfers; `check` is to be called about once a second."""

    def __init__(self, clock: Clock, stall_s: float = STALL_S) -> None:
        self.stall_s = stall_s
        self.ended = 0
        self._clock = clock
        self._watched: set[Progress] = set()

    @contextmanager
    def watch(self) -> Iterator[Progress]:
        """Watch the calling task. Raises Stalled in it where nothing moves for `stall_s`."""
        task = asyncio.current_task()
        assert task is not None
        progress = Progress(task, self._clock)
        self._watched.add(progress)
        try:
            yield progress
        except asyncio.CancelledError:
            if progress.stalled:
                raise Stalled(f"nothing moved for {self.stall_s:g} s") from None
            raise
        finally:
            self._watched.discard(progress)

    def check(self) -> None:
        now = self._clock.now()
        for progress in list(self._watched):
            if progress.since is not None and now - progress.since > self.stall_s and not progress.stalled:
                progress.stalled = True
                self.ended += 1
                log.warning("a transfer in which nothing moved for %g s is given up", self.stall_s)
                progress.task.cancel()

    async def keep_watch(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self.stall_s / 4))
            self.check()
