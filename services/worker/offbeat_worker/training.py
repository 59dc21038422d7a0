"""The training thread: it computes, and nothing else may keep it from that.

It takes messages between two batches and never waits for the network where a commit
may travel while training goes on. What it has to say goes out through `emit`, which
must not block. It is idle only where it has nothing to train: without a run, paused,
resting, while samples are dealt to it, or in a commit that must not overlap (the last
three are the share of waiting).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_worker.device import Device, prepare_thread
from offbeat_worker.localrun import Cut, Fresh, LocalRun, Site
from offbeat_worker.pacing import Pace
from offbeat_worker.stopwatch import Share
from offbeat_worker.supply import Given, Wanted

log = logging.getLogger(__name__)

# ---- what it is told --------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Load task and data, build the model. Answered by Built or Failed."""

    run_id: str
    task: pb.RunTask
    seed: int
    batch: int
    parallelized: bool = False


@dataclass(frozen=True)
class Load:
    """Start from this model. Answered by Loaded."""

    run_id: str
    version: int
    vector: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Train:
    """Train under this directive from the next batch on; it came at `received_s` (monotonic)."""

    directive: pb.WorkerDirective
    received_s: float


@dataclass(frozen=True)
class Pause:
    """Stop training, keep everything."""


@dataclass(frozen=True)
class Rest:
    """Train nothing until the next Train; from now on the time counts, as waiting."""


@dataclass(frozen=True)
class Leave:
    """The run is over. Answered by Left."""


@dataclass(frozen=True)
class Settle:
    """This worker leaves: stop training and commit what is left. Answered by Settled once all was sent."""


@dataclass(frozen=True)
class Quit:
    """End the thread."""


Message = Prepare | Load | Train | Given | Pause | Rest | Leave | Settle | Quit | Fresh
_URGENT = (Pause, Leave, Settle, Quit)
"""Rest is none of them: a slow device would end its local update first."""

# ---- what it says -----------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    run_id: str
    manifest: Manifest
    vector: np.ndarray = field(repr=False)  # as built, for seeding


@dataclass(frozen=True)
class Loaded:
    run_id: str


@dataclass(frozen=True)
class Started:
    run_id: str


@dataclass(frozen=True)
class Failed:
    run_id: str
    error: str


@dataclass(frozen=True)
class Left:
    """With the last figures of the run."""

    report: sc.WorkerReport


@dataclass(frozen=True)
class Settled:
    run_id: str


@dataclass(frozen=True)
class Broken:
    """The thread has ended, by a mistake of ours: nothing will be trained here any more."""

    error: str


Event = Built | Loaded | Started | Wanted | Failed | Left | Settled | Broken | Cut


class Trainer:
    """Runs `LocalRun`s on a thread of its own.

    Args:
        site: what the device's configuration gives every run.
        device: what computes.
        pace: emulated slowness.
        emit: takes events; called from the training thread.
    """

    def __init__(self, site: Site, device: Device, pace: Pace, emit: Callable[[Event], None]) -> None:
        self._site = site
        self._device = device
        self._pace = pace
        self._emit = emit
        # No SimpleQueue: CPython's (seen in 3.11) waits for ever where a short timeout ends while it begins.
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._later: deque[Message] = deque()  # came during an emulated update, in order
        self._run: LocalRun | None = None
        self._run_id = ""  # also of one that is still being built
        self._training = False
        self._settling = False
        self._computing_since: float | None = None  # monotonic, while a local update is computed
        self._last = sc.WorkerReport()
        self._quit = False
        self._thread = threading.Thread(target=self._main, name="training", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Message) -> None:
        """Any thread may call; handled at the next batch boundary."""
        self._inbox.put(message)

    def report(self) -> sc.WorkerReport:
        """Figures of the run so far, or of the last one. Any thread may ask."""
        run = self._run
        if run is not None:
            return run.report()
        report = sc.WorkerReport()
        report.CopyFrom(self._last)
        return report

    def computing_s(self) -> float:
        """For how long a local update has been under way; 0: none is. Any thread may ask."""
        since = self._computing_since
        return 0.0 if since is None else time.monotonic() - since

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end after Quit; False if it is still there."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the thread -------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._work()
        except BaseException as error:  # a thread that dies quietly holds its lease for ever
            log.debug("the training thread ended", exc_info=True)
            self._emit(Broken(f"{type(error).__name__}: {error}"))

    @property
    def _goes_on(self) -> bool:
        """Is there something to train, or to commit? Not once a generation's one commit is made, nor
        while its samples are on their way."""
        run = self._run
        if run is None or not self._training or run.rests:
            return False
        return run.supplied or run.due(time.monotonic())

    def _work(self) -> None:
        prepare_thread(self._device)
        while not self._quit:
            if not self._goes_on:
                self._handle(self._later.popleft() if self._later else self._inbox.get())
                continue
            while self._later or not self._inbox.empty():
                self._handle(self._later.popleft() if self._later else self._inbox.get())
            if self._goes_on:
                self._guarded(self._go_on)

    def _go_on(self) -> None:
        """At a batch boundary: commit if one is due, then the next local update."""
        run = self._run
        assert run is not None
        if run.due(time.monotonic()):
            self._commit(run)
        if self._goes_on:
            self._update(run)

    def _update(self, run: LocalRun) -> None:
        begun = run.watch.switch(Share.COMPUTE)
        self._computing_since = time.monotonic()
        try:
            run.step()
        finally:
            self._computing_since = None
        rest = self._pace.rest((time.monotonic_ns() - begun) * 1e-9, run.scale, halved=run.halved)
        if rest > 0:
            run.watch.switch(Share.PACED)
            if not self._sleep(rest):
                return
        run.timed((time.monotonic_ns() - begun) * 1e-9)

    def _commit(self, run: LocalRun) -> None:
        begun = run.watch.switch(Share.COMMIT)
        cut = run.cut(begun * 1e-9)
        ended = run.watch.switch(Share.COMPUTE if cut.overlap else Share.WAIT)
        run.held((ended - begun) * 1e-9, cutting=True)
        self._emit(cut)
        # Without overlap this is where the thread waits, for network and gate.
        while not cut.overlap and self._training and run.in_flight:
            self._handle(self._inbox.get())

    def _sleep(self, seconds: float) -> bool:
        """Emulate computing. Messages are for the batch boundary; one that ends training cuts this short.

        Returns whether it was slept to its end.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._inbox.get(timeout=left)
            except queue.Empty:
                break
            self._later.append(message)
            if isinstance(message, _URGENT):
                return False
        return True

    def _handle(self, message: Message) -> None:
        self._guarded(lambda: self._dispatch(message))

    def _dispatch(self, message: Message) -> None:
        run = self._run
        match message:
            case Prepare():
                self._drop()
                self._run_id = message.run_id
                self._last = sc.WorkerReport(run_id=message.run_id)
                built = LocalRun(
                    self._site,
                    message.run_id,
                    message.task,
                    message.seed,
                    message.batch,
                    parallelized=message.parallelized,
                )
                self._run = built
                self._emit(Built(built.run_id, built.manifest, built.initial()))
            case Load(run_id, version, vector):
                if run is not None and run.run_id == run_id:
                    run.load(vector, version)
                    self._emit(Loaded(run_id))
            case Train(directive, received_s):
                if run is not None and run.run_id == directive.run_id and run.loaded:
                    run.follow(directive, received_s, time.monotonic())
                    if not self._training and not self._settling:
                        self._training = True
                        run.watch.switch(Share.COMPUTE)
                        self._emit(Started(run.run_id))
                    if (wanted := run.wish()) is not None:
                        self._emit(wanted)
                    if self._training and not run.supplied:
                        run.watch.switch(Share.WAIT)
            case Given():
                if run is not None and run.run_id == message.run_id:
                    run.give(message)
                    if self._goes_on and not run.in_flight:
                        run.watch.switch(Share.COMPUTE)
            case Fresh():
                # A late answer of a run that is over, or that was failed, concerns nobody.
                if run is not None and run.run_id == message.run_id and run.loaded:
                    self._take(run, message)
                    if self._settling:
                        self._settle(run)
            case Pause():
                self._pause()
            case Rest():
                if run is not None and run.loaded:
                    self._training = False
                    run.watch.switch(Share.WAIT)
                    run.release()
            case Settle():
                self._pause()
                self._settling = True
                self._settle(run)
            case Leave():
                self._drop()
                self._emit(Left(self._last))
            case Quit():
                self._drop()
                self._quit = True

    def _pause(self) -> None:
        if self._run is not None and self._training:
            self._training = False
            self._run.watch.switch(Share.WAIT)

    def _settle(self, run: LocalRun | None) -> None:
        """Cut what is left once nothing is in flight."""
        if run is None or not run.loaded or not (run.in_flight or run.pending_steps):
            self._emit(Settled(self._run_id))
        elif not run.in_flight:
            self._emit(run.cut(time.monotonic()))

    def _take(self, run: LocalRun, fresh: Fresh) -> None:
        if not run.watch.running:
            run.take(fresh)
            return
        begun = run.watch.switch(Share.COMMIT)
        run.take(fresh)
        ended = run.watch.switch(Share.COMPUTE if self._goes_on else Share.WAIT)
        run.held((ended - begun) * 1e-9, cutting=False)

    def _drop(self) -> None:
        """Let go of the run and its memory; its last figures stay."""
        self._training = False
        if self._run is not None:
            self._run.watch.stop()
            self._last = self._run.report()
            self._run = None

    def _guarded(self, action: Callable[[], None]) -> None:
        """What goes wrong ends the run on this device, not the thread."""
        try:
            action()
        except OffbeatError as error:
            self._fail(str(error))
        except (Exception, SystemExit) as error:  # a user's model may raise anything; the status shows it
            log.debug("training failed", exc_info=True)
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, text: str) -> None:
        self._drop()
        self._emit(Failed(self._run_id, text))
