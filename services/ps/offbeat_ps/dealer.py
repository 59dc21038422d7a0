"""Deals the data set to the learners of each generation, and reads from it what each is sent."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from offbeat_core.dealing import deal
from offbeat_core.parts import PART_BYTES
from offbeat_ps.entrance import Refused
from offbeat_ps.instructions import Refusal
from offbeat_ps.rules import Rules
from offbeat_ps.samples import SampleFile

T = TypeVar("T")

PARTS = 32
LEAST_PART_BYTES = 16 * 1024
"""Samples travel in so many parts at least, unless these would be small: what came of a transfer that a
closing cycle breaks off shows how fast the link is."""


def part_bytes(total_bytes: int) -> int:
    """Into parts of which size a transfer of so many bytes is cut."""
    return min(PART_BYTES, max(LEAST_PART_BYTES, total_bytes // PARTS))


class Dealer:
    """Reads in threads of its own, so that the event loop waits for no disk.

    Args:
        samples: the data set.
    """

    def __init__(self, samples: SampleFile) -> None:
        self.samples = samples
        self._threads = ThreadPoolExecutor(2, "samples")
        self._dealing = asyncio.Lock()
        self._dealt: tuple[Rules, dict[str, np.ndarray]] | None = None  # the last one

    async def dealt(self, rules: Rules, worker: str) -> np.ndarray:
        """The indices of this worker's samples, shape (d_k,). Raises Refused where it has none."""
        if not rules.shares.get(worker):
            raise Refused(
                Refusal.NOT_DEALT, f"generation {rules.generation} deals no samples to worker '{worker}'"
            )
        async with self._dealing:
            if self._dealt is None or not _same(self._dealt[0], rules):
                self._dealt = None  # two deals of a large set would be one too many
                make = functools.partial(deal, self.samples.count, rules.shares, rules.seed, rules.generation)
                try:
                    self._dealt = (rules, await self._run(make))
                except ValueError as error:
                    raise Refused(Refusal.NOT_DEALT, str(error)) from error
            return self._dealt[1][worker]

    async def pieces(self, indices: np.ndarray) -> AsyncIterator[np.ndarray]:
        """The samples' bytes in order: uint8 arrays of shape (n,)."""
        pieces = self.samples.pieces(indices)
        while (piece := await self._run(lambda: next(pieces, None))) is not None:
            yield piece

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _same(one: Rules, other: Rules) -> bool:
    """Do both deal the same?"""
    return (one.generation, one.seed, one.shares) == (other.generation, other.seed, other.shares)
