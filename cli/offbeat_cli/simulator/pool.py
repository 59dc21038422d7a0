"""Simulations side by side, one process per core; each of them computes on one thread.

Processes end with the one that started them, whatever ended that: they hold one end of a pipe
and leave when the other is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from offbeat_cli.simulator.job import run_job
from offbeat_cli.simulator.result import Evaluation
from offbeat_cli.simulator.scenario import Entry, Scenario
from offbeat_core.errors import OffbeatError

SAID_EVERY_S = 0.3
"""Wall seconds between two notes of one run."""

LOOK_EVERY_S = 0.2

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BYTES = 2**25


@dataclass(frozen=True)
class Note:
    """How far a run is, in virtual seconds; with its figures once it has ended."""

    at_s: float = 0.0
    loss: float = 0.0
    value: float = 0.0
    figures: dict[str, Any] | None = None
    peak_bytes: int = 0


Job = tuple[Entry, int]


def run_all(scenario: Scenario, jobs: Sequence[Job], workers: int, take: Callable[[int, Note], None]) -> None:
    """Run the jobs; `take` hears (index of the job, note) as they go on and end, in any order.

    Raises OffbeatError for the first job that fails; the others are given up.
    """
    workers = min(workers, len(jobs))
    if workers <= 1:
        for number, (entry, seed) in enumerate(jobs):
            figures = run_job(scenario, entry, seed, _sayer(number, take))
            take(number, Note(figures=figures, peak_bytes=_peak_bytes()))
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    notes: Any = context.Queue()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, context, _begin, (theirs, notes))
    running: dict[Future[Any], int] = {}
    try:
        with _uninterrupted():
            for number, (entry, seed) in enumerate(jobs):
                running[pool.submit(_work, scenario, entry, seed, number)] = number
        while running:
            ended, _ = wait(running, LOOK_EVERY_S, FIRST_COMPLETED)
            _drain(notes, take)
            for future in ended:
                figures, peak_bytes = future.result()
                take(running.pop(future), Note(figures=figures, peak_bytes=peak_bytes))
    except BrokenProcessPool as error:
        raise OffbeatError(
            "a simulating process ended unexpectedly; the machine may have run out of memory",
            "run fewer at a time (--workers 1), or fewer devices",
        ) from error
    finally:
        if running:  # interrupted, or failed: nobody waits for the others
            ours.close()
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # one that is still starting would complain of what is gone
        # They are gone at once. The executor's own thread, left alone, would meet closed pipes at our end.
        pool.shutdown(wait=True, cancel_futures=True)
        ours.close()
        theirs.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started meanwhile hear no Ctrl-C from the first moment on; we hear it at the end.

    They inherit the mask. For us it is not enough: another thread may take the signal, and Python's
    handler then interrupts this one, in the middle of a start.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield  # Windows; or a program that calls us from a thread, which hears no Ctrl-C
        return
    heard = False

    def hear(*_: object) -> None:
        nonlocal heard
        heard = True

    handler = signal.signal(signal.SIGINT, hear)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if heard:
        raise KeyboardInterrupt


def _drain(notes: Any, take: Callable[[int, Note], None]) -> None:
    while True:
        try:
            number, note = notes.get_nowait()
        except queue.Empty:
            return
        take(number, note)


def _sayer(number: int, say: Callable[[int, Note], None]) -> Callable[[Evaluation], None]:
    """Says how far a run is, now and then."""
    last_s = -SAID_EVERY_S

    def progress(evaluation: Evaluation) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= SAID_EVERY_S:
            last_s = now_s
            say(number, Note(evaluation.at_s, evaluation.loss, evaluation.metric))

    return progress


# ---- in a process of the pool --------------------------------------------------------------

_notes: Any = None


def _begin(lifeline: Connection, notes: Any) -> None:
    global _notes
    _notes = notes
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that started us says when to end
    os.dup2(2, 1)  # what a user's own task or model prints is no result
    _keep_freed_memory()
    threading.Thread(target=_leave_with, args=(lifeline,), name="lifeline", daemon=True).start()


def _keep_freed_memory() -> None:
    """Vectors come and go at each commit: taken from the system anew each time, their pages cost as much
    as the arithmetic on them (a third of a commit). glibc only; elsewhere nothing changes."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _leave_with(lifeline: Connection) -> None:
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _work(scenario: Scenario, entry: Entry, seed: int, number: int) -> tuple[dict[str, Any], int]:
    def say(number: int, note: Note) -> None:
        _notes.put((number, note))

    return run_job(scenario, entry, seed, _sayer(number, say)), _peak_bytes()


def _peak_bytes() -> int:
    """The most memory that this process has taken; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
