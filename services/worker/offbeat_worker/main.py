"""`offbeat-worker`: trains on this device, or with `role: evaluator` evaluates held-out data.

torch is imported only once the options are known to be good, in a thread, so that
--help is quick and a signal is heard meanwhile. The main thread's event loop is the
I/O thread; training has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from offbeat_core.config import WorkerSettings
from offbeat_core.errors import OffbeatError
from offbeat_worker import health

if TYPE_CHECKING:
    from offbeat_worker.station import Station

log = logging.getLogger("offbeat-worker")

COMMAND = "offbeat-worker"
DESCRIPTION = (
    "Train on this device's own data, or on what the hub deals to it. The worker stays attached to the "
    "scheduler, which says when to train, and exchanges updates for the fresh model with the parameter "
    "server. Its own data stays here."
)
QUIT_S = 1.5
"""For the last commit, and then for the training thread to finish its batch; what takes longer is cut off."""
END_S = 8.0
"""From SIGTERM to the end at the latest, whatever a task's code holds up (Docker kills after 10 s)."""

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--health" in arguments:
        return health.main(arguments, COMMAND, DESCRIPTION)
    from offbeat_core.service import run_service

    code = run_service(COMMAND, DESCRIPTION, WorkerSettings, serve, arguments, health=lambda _: 0)
    # Tearing the interpreter down may crash under a thread that still computes, in torch; and with torch
    # loaded it takes a second of the processor, of which a slow device has too little to end in time.
    computing = any(thread.name in _BUSY for thread in threading.enumerate())
    if computing or (argv is None and "torch" in sys.modules):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


_BUSY = ("training", "starting", "evaluating_0")


async def serve(settings: WorkerSettings, stop: asyncio.Event) -> int:
    """Run until `stop` is set. Raises OffbeatError where this worker can't go on."""
    beating = asyncio.create_task(health.keep(settings.health_file)) if settings.health_file else None
    stopping = asyncio.create_task(stop.wait())
    try:
        station = await _unless(stopping, _in_thread(lambda: _prepare(settings)))
        if station is None:
            return 0
        running = asyncio.create_task(station.run())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        _end_within(END_S)
        await station.leave("told to end", QUIT_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return 0
    finally:
        stopping.cancel()
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


def _end_within(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _prepare(settings: WorkerSettings) -> Callable[[], Station]:
    """Task files, checks, and then torch, which is slow. Returns what makes the station on the event loop."""
    from offbeat_worker import startcheck, tasks

    known = tasks.available(settings.tasks)
    startcheck.check()
    from offbeat_worker.station import Station

    return Station.prepare(settings, known)


async def _unless(stopping: asyncio.Task[bool], starting: asyncio.Future[Callable[[], T]]) -> T | None:
    """The result of `starting`, made here; None if `stopping` comes first."""
    both: set[asyncio.Future[Any]] = {stopping, starting}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return None
    return starting.result()()


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a daemon thread: unlike an executor's, the process can end without it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except OffbeatError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - handed over to the event loop
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=body, name="starting", daemon=True).start()
    return future


if __name__ == "__main__":
    sys.exit(main())
