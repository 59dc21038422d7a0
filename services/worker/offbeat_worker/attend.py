"""The control plane as an agent sees it: one `Attend` stream, dialled for ever.

Reports go up every `report_every_s`, from the thread of this module's event loop,
and at once when asked; so they leave on time however busy the training thread is.
Directives come down when they change. A peer that vanished is noticed by keepalive
(channels.py), so reading needs no deadline of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any, Protocol

import grpc
import grpc.aio

from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc as pb_grpc
from offbeat_core.errors import OffbeatError
from offbeat_core.retry import delays
from offbeat_worker.outage import Outage

log = logging.getLogger(__name__)

WRITE_S = 30.0
"""A report that can't leave for so long: dial again."""
GOODBYE_S = 1.0

_FATAL = {
    grpc.StatusCode.INVALID_ARGUMENT: "correct this device's configuration",
    grpc.StatusCode.PERMISSION_DENIED: "correct this device's configuration",
    grpc.StatusCode.UNAUTHENTICATED: "correct this device's configuration",
    grpc.StatusCode.UNIMPLEMENTED: "is this the address of the scheduler, not of the parameter server?",
}


class Agent(Protocol):
    """Who attends: a worker or an evaluator."""

    def hello(self) -> pb.Hello: ...

    def welcome(self, welcome: pb.Welcome) -> None: ...

    def direct(self, directive: pb.Directive) -> None: ...

    def report(self) -> pb.Report: ...


class Superseded(OffbeatError):
    """A newer process with this name took over."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"name: a newer process called '{name}' is known to the {where}, so this one ends",
            "end one of the two, or give each device a name of its own",
        )


class Attendance:
    """Keeps `agent` attached to the scheduler.

    Args:
        channel, address: of the scheduler.
        agent: says what goes up, takes what comes down.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, agent: Agent) -> None:
        self._stub: Any = pb_grpc.SchedulerStub(channel)
        self._address = address
        self._agent = agent
        self._outage = Outage(f"scheduler {address}")
        self._every_s = 1.0
        self._wake = asyncio.Event()
        self._welcomed = asyncio.Event()
        # Reports that must arrive, oldest first; a run's last one.
        self._must: deque[pb.Report] = deque(maxlen=8)
        self._call: Any = None
        self.attached = False
        self._leaving = False

    @property
    def failures(self) -> int:
        return self._outage.failures

    def report_now(self, report: pb.Report | None = None) -> None:
        """Report at once; a `report` given is kept until it was sent."""
        if report is not None:
            self._must.append(report)
        self._wake.set()

    async def run(self) -> None:
        """Attend until cancelled or after a goodbye. Raises OffbeatError where dialling again won't help."""
        waits = delays()
        while True:
            try:
                await self._session()
                reason = "it closed the stream"
            except grpc.aio.AioRpcError as error:
                self._refused(error)
                reason = f"{error.code().name}: {error.details()}"
            except (asyncio.TimeoutError, TimeoutError):
                reason = "no word in time"
            if self._leaving:
                return
            if self.attached:
                self.attached = False
                waits = delays()
            self._outage.failed(reason)
            await asyncio.sleep(next(waits))

    async def goodbye(self, reason: str) -> None:
        """Say that this agent leaves; takes at most about a second."""
        self._leaving = True
        call = self._call
        if call is None or not self.attached:
            return
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.TimeoutError, TimeoutError
        ):
            await asyncio.wait_for(self._farewell(call, reason), GOODBYE_S)

    async def _farewell(self, call: Any, reason: str) -> None:
        await call.write(pb.Report(goodbye=pb.Goodbye(reason=reason)))
        await call.done_writing()
        await call.code()

    async def _session(self) -> None:
        call = self._stub.Attend()
        self._welcomed.clear()
        try:
            await asyncio.wait_for(_write(call, pb.Report(hello=self._agent.hello())), WRITE_S)
            self._call = call
            reading = asyncio.ensure_future(self._read(call))
            writing = asyncio.ensure_future(self._write_reports(call))
            try:
                await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
                # The reader knows how the stream ended.
                if writing.done() and not reading.done():
                    await asyncio.wait({reading}, timeout=1.0)
                for task in (reading, writing):
                    if task.done():
                        await task
            finally:
                reading.cancel()
                writing.cancel()
                await asyncio.gather(reading, writing, return_exceptions=True)
        finally:
            self._call = None
            call.cancel()

    async def _read(self, call: Any) -> None:
        while (directive := await call.read()) is not grpc.aio.EOF:
            if directive.WhichOneof("kind") == "welcome":
                welcome = directive.welcome
                self._every_s = welcome.report_every_s or self._every_s
                self._outage.over()
                if not self.attached:
                    log.info("attending scheduler %s", self._address)
                self.attached = True
                self._agent.welcome(welcome)
                self._welcomed.set()
            else:
                self._agent.direct(directive)
        code = await call.code()
        if code != grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )

    async def _write_reports(self, call: Any) -> None:
        # Not before the welcome: a write that meets a refusal may hide its status (grpc/grpc#36066).
        await asyncio.wait_for(self._welcomed.wait(), WRITE_S)
        while True:
            self._wake.clear()
            while self._must:
                await asyncio.wait_for(_write(call, self._must[0]), WRITE_S)
                self._must.popleft()
            await asyncio.wait_for(_write(call, self._agent.report()), WRITE_S)
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._every_s)

    def _refused(self, error: grpc.aio.AioRpcError) -> None:
        if error.code() == grpc.StatusCode.ABORTED:
            raise Superseded(self._agent.hello().name, "scheduler") from error
        if error.code() in _FATAL:
            raise OffbeatError(
                f"scheduler: {self._address}: {error.details() or error.code().name}", _FATAL[error.code()]
            ) from error


async def _write(call: Any, report: pb.Report) -> None:
    """Write; raise the call's status where it has ended."""
    try:
        await call.write(report)
    except asyncio.InvalidStateError:
        raise grpc.aio.AioRpcError(
            await call.code(),
            await call.initial_metadata(),
            await call.trailing_metadata(),
            await call.details(),
        ) from None
