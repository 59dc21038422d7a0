"""The gRPC surface: translates calls into events and streams into directives; decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.service import SchedulerService, Stream

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ROLES = (common.ROLE_PARAMETER_SERVER, common.ROLE_WORKER, common.ROLE_EVALUATOR)
HELLO_S = 10.0
SHORTEST_WATCH_S = 0.05
DEFAULT_WATCH_S = 1.0
BYTES_AT_ONCE = 64 * 1024


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServicer):
    def __init__(self, service: SchedulerService) -> None:
        self._service = service

    # ---- agents -------------------------------------------------------------------

    async def Attend(
        self, requests: AsyncIterator[pb.Report], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Directive]:
        hello = await self._hello(requests, context)
        stream = Stream(hello)
        self._service.attach(stream)
        reader = asyncio.create_task(self._read(requests, stream))
        reader.add_done_callback(lambda _: stream.end())
        try:
            while (directive := await stream.next()) is not None:
                yield directive
            if stream.code is not grpc.StatusCode.OK:
                await context.abort(stream.code, stream.reason)
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            self._service.detach(stream, "its stream was cut")

    async def _hello(self, requests: AsyncIterator[pb.Report], context: grpc.aio.ServicerContext) -> pb.Hello:
        try:
            first = await asyncio.wait_for(_next(requests), HELLO_S)
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello within {HELLO_S:g} s")
        if first is None or first.WhichOneof("kind") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first report must be a Hello")
        assert first is not None
        hello = first.hello
        if not NAME.fullmatch(hello.name):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"name: '{hello.name[:64]}' is not 1 to 64 letters, digits, '.', '_' or '-'",
            )
        if hello.role not in ROLES or not hello.incarnation:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a Hello names its role and incarnation")
        return hello

    async def _read(self, requests: AsyncIterator[pb.Report], stream: Stream) -> None:
        """Reports until the agent's side ends."""
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):
            async for report in requests:
                self._service.report(stream, report)

    # ---- operator -------------------------------------------------------------------

    async def SubmitRun(
        self, request: pb.SubmitRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.SubmitRunReply:
        try:
            submission = self._service.read(request.run_yaml)
        except OffbeatError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            run_id = self._service.submit(submission)
        except OffbeatError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.SubmitRunReply(run_id=run_id, effective_yaml=submission.effective_yaml)

    async def StopRun(self, request: pb.StopRunRequest, context: grpc.aio.ServicerContext) -> pb.StopRunReply:
        try:
            run_id = self._service.stop_run(request.run_id)
        except OffbeatError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.StopRunReply(run_id=run_id)

    async def GetStatus(self, request: pb.StatusRequest, context: grpc.aio.ServicerContext) -> pb.Status:
        return self._service.status()

    async def WatchStatus(
        self, request: pb.StatusRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Status]:
        every_s = max(SHORTEST_WATCH_S, request.every_s or DEFAULT_WATCH_S)
        while True:
            seen = self._service.events
            yield self._service.status()
            await asyncio.sleep(every_s)
            await self._service.event_after(seen)
            if self._service.is_closed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the scheduler stops")

    async def Events(
        self, request: pb.EventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.Event]:
        run_id = request.run_id or self._service.event_log.run_id
        path = self._service.event_log.path(run_id)
        if path is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"run_id: '{run_id}': no event log is kept of it" if run_id else "there was no run yet",
            )
        assert path is not None
        async for line in self._lines(path, run_id, follow=request.follow):
            yield pb.Event(json=line)

    async def _lines(self, path: Path, run_id: str, *, follow: bool) -> AsyncIterator[str]:
        """Whole lines of a log that may still be written to."""
        with path.open(encoding="utf-8") as file:
            rest = ""
            while True:
                log, seen = self._service.event_log, self._service.events
                may_grow = follow and log.is_open and log.run_id == run_id
                while lines := file.readlines(BYTES_AT_ONCE):
                    for line in lines:
                        rest += line
                        if rest.endswith("\n"):
                            yield rest.rstrip("\n")
                            rest = ""
                if not may_grow:
                    return
                await self._service.event_after(seen)


async def _next(requests: AsyncIterator[pb.Report]) -> pb.Report | None:
    async for request in requests:
        return request
    return None
