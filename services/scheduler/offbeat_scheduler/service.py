"""Drives the decisions: feeds events at the clock's time, carries instructions out, keeps the log.

Everything here runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import grpc

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.clock import Clock
from offbeat_core.errors import OffbeatError
from offbeat_core.fault import Fault
from offbeat_core.pauses import Pauses
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import (
    AgentJoined,
    AgentLeft,
    Close,
    Evaluated,
    Event,
    Instruction,
    Log,
    RunSubmitted,
    SendTo,
    ServerReported,
    StopRequested,
    Tick,
    WorkerReported,
)
from offbeat_scheduler.hub import Hub, MakeModel
from offbeat_scheduler.status import build_status
from offbeat_scheduler.stop import Outcome
from offbeat_scheduler.submission import Submission, make_run_id, read_run, read_run_file
from offbeat_scheduler.timing import since

QUEUED_DIRECTIVES = 256
"""An agent that does not read so many directives is cut off; it dials again and is told what holds."""

BEATS = 0.1
"""Of a lease: so often the scheduler makes sure that it was running all the time."""

REPORT = "this is a mistake of Offbeat's or of the synchronization model; the scheduler's log says more"

CLOSED = {
    "superseded": grpc.StatusCode.ABORTED,
    "name": grpc.StatusCode.INVALID_ARGUMENT,
    "lease": grpc.StatusCode.UNAVAILABLE,
}

log = logging.getLogger(__name__)


class Stream:
    """The way down to one agent: directives in order, then the end with its reason."""

    def __init__(self, hello: pb.Hello) -> None:
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.hello = hello
        self.code = grpc.StatusCode.OK
        self.reason = ""
        self._queue: asyncio.Queue[pb.Directive | None] = asyncio.Queue()
        self._ended = False

    def push(self, directive: pb.Directive) -> None:
        if self._queue.qsize() >= QUEUED_DIRECTIVES:
            self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "directives were not read")
        if not self._ended:
            self._queue.put_nowait(directive)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, reason: str = "") -> None:
        if not self._ended:
            self._ended = True
            self.code, self.reason = code, reason
            self._queue.put_nowait(None)

    async def next(self) -> pb.Directive | None:
        """The next directive; None at the end."""
        return await self._queue.get()


class SchedulerService:
    """The live scheduler.

    Args:
        hub: its decisions.
        make_model: as the hub's, to check a run before it is submitted.
        chance: for the ids of runs.
    """

    def __init__(
        self,
        hub: Hub,
        clock: Clock,
        event_log: EventLog,
        make_model: MakeModel,
        chance: random.Random | None = None,
    ) -> None:
        self.hub = hub
        self.event_log = event_log
        self._clock = clock
        self._origin = clock.now()
        self._make_model = make_model
        self._chance = chance or random.Random()
        self._streams: dict[tuple[str, str], Stream] = {}
        self._effective_yaml = ""
        self._said_problem = ""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._pauses = Pauses(hub.lease_s * BEATS)
        self.events = 0
        self._next_event = asyncio.Event()
        self.is_closed = False
        self.fault = Fault()

    def now(self) -> float:
        """Seconds since the service began, in whole microseconds."""
        return since(self._origin, self._clock.now())

    # ---- events in, instructions out ---------------------------------------------

    def feed(self, event: Event, now: float | None = None) -> None:
        """Let the decisions take an event in, and do what they say."""
        now = self.now() if now is None else now
        instructions = self.hub.handle(event, now)
        self.event_log.add(event, instructions, now, self.hub.take_solve_s())
        for instruction in instructions:
            self._carry_out(instruction)
        if self.event_log.is_open and self.hub.active_run is None:
            self.event_log.end()
        if self.event_log.problem not in ("", self._said_problem):
            log.error("%s", self.event_log.problem)
        self._said_problem = self.event_log.problem
        self._set_timer(now)
        self._event_happened()

    def _event_happened(self) -> None:
        self.events += 1
        self._next_event.set()
        self._next_event = asyncio.Event()

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, SendTo):
            stream = self._streams.get((instruction.name, instruction.incarnation))
            if stream is not None:
                stream.push(instruction.directive)
        elif isinstance(instruction, Close):
            stream = self._streams.pop((instruction.name, instruction.incarnation), None)
            if stream is not None:
                stream.end(CLOSED[instruction.why], instruction.reason)
        elif isinstance(instruction, Log):
            log.log(logging.getLevelName(instruction.level.upper()), "%s", instruction.text)

    def _set_timer(self, now: float) -> None:
        """Leases and wishes to wake mostly move away: a timer that is early enough is left alone."""
        wake, beat = self.hub.next_wake(now), self._pauses.due(now)
        wake = beat if wake is None else min(wake, beat)
        if self.is_closed or wake >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake
        self._timer = asyncio.get_running_loop().call_later(max(0.0, since(now, wake)), self._on_timer)

    def _on_timer(self) -> None:
        """Without its next timer no lease would ever end: a mistake here ends the process."""
        self._timer, self._timer_at = None, float("inf")
        try:
            self._on_time()
        except Exception as error:
            log.critical("unexpected: %r; this scheduler ends", error, exc_info=error)
            self.fault.found(error)

    def _on_time(self) -> None:
        now = self.now()
        lost_s = since(0.0, self._pauses.beat(now))
        wake = self.hub.next_wake(now)
        if lost_s or (wake is not None and wake <= now):
            self.feed(Tick(lost_s))
        else:
            self._set_timer(now)

    # ---- agents -------------------------------------------------------------------

    def attach(self, stream: Stream) -> None:
        """An agent's stream began. An older stream of the same process ends."""
        key = (stream.name, stream.incarnation)
        older = self._streams.get(key)
        if older is not None:
            older.end(grpc.StatusCode.ABORTED, "the same process opened another stream")
        self._streams[key] = stream
        self.feed(AgentJoined(stream.hello))

    def report(self, stream: Stream, report: pb.Report) -> None:
        """A report came up an agent's stream."""
        who = (stream.name, stream.incarnation)
        kind = report.WhichOneof("kind")
        if kind == "hello":
            self._correct(stream, report.hello)
        elif kind == "worker":
            self.feed(WorkerReported(*who, report.worker))
        elif kind == "server":
            self.feed(ServerReported(*who, report.server))
        elif kind == "evaluator":
            self.feed(Evaluated(*who, report.evaluator))
        elif kind == "goodbye":
            self.detach(stream, report.goodbye.reason, goodbye=True)

    def _correct(self, stream: Stream, hello: pb.Hello) -> None:
        """An agent says anew what it has: its tasks have changed. Who it is can't."""
        first = stream.hello
        who = (first.name, first.incarnation, first.role)
        if (hello.name, hello.incarnation, hello.role) == who and self._streams.get(who[:2]) is stream:
            stream.hello = hello
            self.feed(AgentJoined(hello))

    def detach(self, stream: Stream, reason: str = "", *, goodbye: bool = False) -> None:
        """A stream ended, or its agent said goodbye. Nothing if another has taken its place."""
        key = (stream.name, stream.incarnation)
        if self._streams.get(key) is not stream:
            return
        del self._streams[key]
        stream.end()
        if not self.is_closed:
            self.feed(AgentLeft(stream.name, stream.incarnation, reason, goodbye))

    # ---- operator ------------------------------------------------------------------

    def read(self, run_yaml: str) -> Submission:
        """Check a run. Raises OffbeatError."""
        return read_run(run_yaml, self._make_model)

    def read_file(self, path: Path) -> Submission:
        """The same from a file. Raises OffbeatError."""
        return read_run_file(path, self._make_model)

    def submit(self, submission: Submission) -> str:
        """Begin a run; returns its id. Raises OffbeatError while another is active, or if it can't begin."""
        active = self.hub.active_run
        if active is not None:
            raise OffbeatError(
                f"run '{active.run_id}' is {active.phase.value}; only one can be active",
                "wait for its end, or end it with: offbeat stop",
            )
        run_id = make_run_id(submission.settings.name, self._chance)
        now = self.now()
        self.event_log.begin(run_id, self.hub.state(now), submission.effective_yaml, now)
        try:
            self.feed(RunSubmitted(run_id, submission.settings), now)
        except Exception as error:
            self.event_log.end()
            log.exception("run %s could not be made", run_id)
            raise OffbeatError(
                f"the run could not be made: {type(error).__name__}: {error}", REPORT
            ) from error
        self._effective_yaml = submission.effective_yaml
        run = self.hub.run
        if run is not None and run.run_id == run_id and run.outcome is Outcome.FAILED and not run.is_active:
            raise OffbeatError(f"the run was refused: {run.message}", REPORT)
        return run_id

    def stop_run(self, run_id: str = "") -> str:
        """End the current run; returns its id. Raises OffbeatError if none is active, or another."""
        active = self.hub.active_run
        if active is None:
            raise OffbeatError("no run is active", "`offbeat status` shows what there is")
        if run_id and run_id != active.run_id:
            raise OffbeatError(f"run_id: '{run_id}' is not active", f"the active run is '{active.run_id}'")
        self.feed(StopRequested())
        return active.run_id

    def status(self) -> pb.Status:
        status = build_status(self.hub, self.now(), self._effective_yaml)
        if self.event_log.problem:
            status.warnings.append(self.event_log.problem)
        return status

    async def event_after(self, seen: int) -> None:
        """Wait until more than `seen` events (an earlier value of `events`) were fed."""
        while self.events <= seen:
            await self._next_event.wait()

    def close(self) -> None:
        """End all streams; agents dial again and find whoever comes next."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, "the scheduler stops")
        self._streams.clear()
        if self.hub.active_run is not None:
            log.warning("run %s ends with the scheduler, unfinished", self.hub.active_run.run_id)
        self.event_log.end()
        self._event_happened()
