"""Vector work, carried out in the order in which it was decided, without stopping the event loop.

A small model is worked on at once, in the loop: a hop to a thread would cost more than
the work. A large one has one thread of its own; numpy lets go of the interpreter there,
so calls are answered and leases kept meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 1_000_000
"""From this size of a model on, its vectors are worked on in a thread."""


class Lane:
    """One queue of work on one model.

    Attributes:
        busy_s: seconds worked so far.
    """

    def __init__(self, model_bytes: int) -> None:
        large = model_bytes > LARGE_BYTES
        self.busy_s = 0.0
        self._own = ThreadPoolExecutor(1, "model") if large else None
        self._aside = ThreadPoolExecutor(2, "inspect") if large else None

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `work`, behind all that was queued before. Does not wait."""
        return self._start(self._own, work)

    def aside(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Work that reads no model and needs no order."""
        return self._start(self._aside, work)

    def _start(self, executor: ThreadPoolExecutor | None, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if executor is None:
            done: asyncio.Future[T] = loop.create_future()
            start = time.perf_counter()
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the future
                done.set_exception(error)
            self.busy_s += time.perf_counter() - start
            return done

        def timed() -> T:
            start = time.perf_counter()
            try:
                return work()
            finally:
                loop.call_soon_threadsafe(self._worked, time.perf_counter() - start)

        return loop.run_in_executor(executor, timed)

    def _worked(self, seconds: float) -> None:
        self.busy_s += seconds

    def close(self) -> None:
        """Let queued work finish; take no more."""
        for executor in (self._own, self._aside):
            if executor:
                executor.shutdown(wait=False)
