"""How much may be received at the same time: commits wait their turn for memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Grant:
    """Memory that a call was given; given back once, however often `release` is called."""

    def __init__(self, budget: Budget, size: int) -> None:
        self._budget, self._size = budget, size

    def release(self) -> None:
        self._budget.give_back(self._size)
        self._size = 0


class Budget:
    """Bytes, granted in the order in which they were asked for. What is larger than all of it comes alone."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def grant(self, size: int) -> AsyncIterator[Grant]:
        """Wait for `size` bytes; they are given back at the end of the block, or before by `release`."""
        if self._queue or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.give_back(size)  # granted and cancelled at the same moment
                else:
                    self._queue.remove((size, turn))
                    self._admit()
                raise
        else:
            self.used += size
        grant = Grant(self, size)
        try:
            yield grant
        finally:
            grant.release()

    def give_back(self, size: int) -> None:
        self.used -= size
        self._admit()

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.total

    def _admit(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            size, turn = self._queue.popleft()
            if not turn.cancelled():
                self.used += size
                turn.set_result(None)
