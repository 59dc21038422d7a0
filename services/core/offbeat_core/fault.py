"""A mistake of ours in the background ends the process, so that whoever supervises it starts it anew.

A loop that died quietly would be worse than its process: leases that never end, gates
that never release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Fault:
    """The first unexpected error of what runs in the background."""

    def __init__(self) -> None:
        self._found = asyncio.Event()
        self._error: BaseException | None = None

    def found(self, error: BaseException) -> None:
        """Call it in the event loop's thread."""
        if self._error is None:
            self._error = error
            self._found.set()

    async def watch(self) -> None:
        """Wait for an error, for ever if there is none; raises it."""
        await self._found.wait()
        assert self._error is not None
        raise self._error


async def until_stop(stop: asyncio.Event, tasks: Iterable[asyncio.Task[None]]) -> BaseException | None:
    """Wait until `stop` is set, or one of `tasks`, none of which should end, does; returns its error."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    for task in done - {stopped}:
        return task.exception() or RuntimeError(f"{task.get_coro()} ended")
    return None
