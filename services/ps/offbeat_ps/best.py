"""The best model of a run: the one that is to be kept, and the one that is on disk.

The two differ while the disk refuses. Only what is on disk is reported, for figures
without the file help nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from offbeat_ps.store import Snapshot


@dataclass(frozen=True)
class Best:
    """What the evaluator found of one version."""

    version: int
    loss: float
    metric: float


Write = Callable[[Snapshot, float, float], Awaitable[str]]
"""Writes a snapshot with its loss and metric; returns the path, or empty where it could not."""


class BestKeeper:
    """Has the newest best written, and knows which one was.

    Attributes:
        kept: the best that is on disk.
        path: where it is.
        missed: the last version that was to be kept and was no longer here.
    """

    def __init__(self) -> None:
        self.kept: Best | None = None
        self.path = ""
        self.missed: int | None = None
        self._wanted: tuple[Best, Snapshot] | None = None
        self._writing = asyncio.Lock()

    def knows(self, version: int) -> bool:
        """Is this version on disk, or on its way there?"""
        newest = self._wanted[0] if self._wanted else self.kept
        return newest is not None and newest.version == version

    def want(self, best: Best, snapshot: Snapshot) -> None:
        """Keep this one from now on; `write` does it."""
        self._wanted = (best, snapshot)

    async def write(self, write: Write) -> bool:
        """Try to write what is wanted; True once nothing is left to be written."""
        async with self._writing:
            while (wanted := self._wanted) is not None:
                best, snapshot = wanted
                path = await write(snapshot, best.loss, best.metric)
                if path:
                    self.kept, self.path = best, path
                if self._wanted is wanted:
                    if not path:
                        return False
                    self._wanted = None
            return True
