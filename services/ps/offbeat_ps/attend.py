"""Attending the scheduler: directives come down, reports go up.

The server dials and redials for ever; without a scheduler it goes on under the last
directive. A report leaves soon after each change, batched to at most about ten a second,
and at least every `report_every_s`; the end of a round, for which the whole fleet waits, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
from typing import Any

import grpc
import grpc.aio

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as control
from offbeat.v1 import scheduler_pb2_grpc as rpc
from offbeat_core import __version__, channels, retry
from offbeat_core.errors import OffbeatError
from offbeat_ps.host import Host

log = logging.getLogger("offbeat_ps")

BATCH_S = 0.1
"""Changes within so long leave in one report."""

GOODBYE_S = 1.0

FINAL = (grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT)
"""Another process has the name: dialling again would not help."""

FIRST_WORD_S = 10.0

WRITE_S = 30.0
"""A report that cannot leave for so long: the stream is given up, and dialled anew."""


class Attendant:
    """Keeps a server at its scheduler.

    Attributes:
        attached: the scheduler has welcomed this server and the stream stands.
        stalled: streams given up, for a report could not leave.
    """

    def __init__(self, host: Host, address: str, name: str, *, proxy: bool = False) -> None:
        self.attached = False
        self.stalled = 0
        self._host = host
        self._address = address
        self._name = name
        self._proxy = proxy
        self._changed = asyncio.Event()
        self._pressing = asyncio.Event()
        host.changed = self._changed.set
        host.round_over = self._press

    async def run(self) -> None:
        """Attend until cancelled, then say goodbye."""
        said = False
        async with channels.connect(self._address, proxy=self._proxy) as channel:
            stub = rpc.SchedulerStub(channel)
            delays = retry.delays()
            while True:
                try:
                    await self._session(stub)
                    problem = "it ended the stream"
                except grpc.aio.AioRpcError as error:
                    problem = f"{error.code().name}: {error.details()}"
                    if error.code() in FINAL:
                        raise OffbeatError(
                            f"the scheduler at {self._address} refuses this server: {error.details()}",
                            "end the other process, or give this one another `name`",
                        ) from error
                except (asyncio.TimeoutError, asyncio.InvalidStateError):
                    problem = "it does not answer"
                if self.attached:
                    delays = retry.delays()
                    said = False
                self.attached = False
                if not said and not self._host.stopping:
                    log.warning("the scheduler at %s: %s; dialling on", self._address, problem)
                    said = True
                await asyncio.sleep(next(delays))

    async def _session(self, stub: Any) -> None:
        call = stub.Attend()
        reports: asyncio.Task[None] | None = None
        directives: asyncio.Task[None] | None = None
        try:
            await self._write(call, control.Report(hello=self._hello()))
            first = await asyncio.wait_for(call.read(), FIRST_WORD_S)
            if first is grpc.aio.EOF:
                await _raise_status(call)
                return
            if first.WhichOneof("kind") != "welcome":
                raise asyncio.InvalidStateError
            self._host.welcome(first.welcome.scheduler_incarnation)
            self.attached = True
            log.info(
                "attends the scheduler at %s (offbeat %s, incarnation %s)",
                self._address,
                first.welcome.offbeat_version or "unknown",
                first.welcome.scheduler_incarnation[:8],
            )
            reports = asyncio.create_task(self._report(call, first.welcome.report_every_s or 1.0))
            directives = asyncio.create_task(self._listen(call))
            # Not awaited: gRPC ends the whole call when a read is cancelled, and no goodbye could be said.
            await asyncio.wait({reports, directives}, return_when=asyncio.FIRST_COMPLETED)
            if reports.done():
                reports.result()  # raises where a report could not leave, or could not be made
            await asyncio.shield(directives)
        except asyncio.CancelledError:
            if self.attached:
                await self._leave(call, reports)
            raise
        finally:
            for task in (reports, directives):
                if task:
                    task.cancel()
            call.cancel()

    async def _listen(self, call: Any) -> None:
        """Take directives until the stream ends; raises its status if it did not end well."""
        while (directive := await call.read()) is not grpc.aio.EOF:
            self._take(directive)
        await _raise_status(call)

    def _take(self, directive: control.Directive) -> None:
        kind = directive.WhichOneof("kind")
        if kind == "server":
            self._host.direct(directive.server)
        elif kind == "next":
            self._host.direct_next(directive.next)
        elif kind == "keep_best":
            self._host.keep_best(directive.keep_best)
        elif kind == "welcome":
            self._host.welcome(directive.welcome.scheduler_incarnation)
        else:
            log.warning("the scheduler sent a directive that is not for a parameter server: %s", kind)

    async def _report(self, call: Any, every_s: float) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                self._changed.clear()
                self._pressing.clear()
                await self._write(call, control.Report(server=self._host.report()))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._pressing.wait(), min(BATCH_S, every_s))
                    continue
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(every_s - BATCH_S, 0.001))

    def _press(self) -> None:
        self._changed.set()
        self._pressing.set()

    async def _write(self, call: Any, report: control.Report) -> None:
        """Raises TimeoutError where it cannot leave: the scheduler, or the way there, stands still."""
        try:
            await asyncio.wait_for(call.write(report), WRITE_S)
        except asyncio.TimeoutError:
            self.stalled += 1
            log.warning(
                "a report could not leave for %g s; the scheduler at %s is dialled anew",
                WRITE_S,
                self._address,
            )
            raise

    async def _leave(self, call: Any, reports: asyncio.Task[None] | None) -> None:
        if reports:
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)

        async def say() -> None:
            await call.write(control.Report(server=self._host.report()))
            await call.write(control.Report(goodbye=control.Goodbye(reason="the parameter server ends")))
            await call.done_writing()
            await call.code()  # the scheduler has read it and ended the stream

        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.TimeoutError, asyncio.CancelledError
        ):
            await asyncio.wait_for(say(), GOODBYE_S)

    def _hello(self) -> control.Hello:
        return control.Hello(
            role=common.ROLE_PARAMETER_SERVER,
            name=self._name,
            incarnation=self._host.incarnation,
            offbeat_version=__version__,
            device=control.DeviceInfo(machine=platform.machine(), compute="cpu"),
            samples=self._host.samples,
        )


async def _raise_status(call: Any) -> None:
    """A stream that ended: raise why, if it did not end well."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
