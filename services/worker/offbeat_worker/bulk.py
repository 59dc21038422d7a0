"""The bulk plane as a worker sees it: one attempt each of Seed, Pull, Commit, Samples, Renew, Checkpoint.

Every wait has a deadline: for a part to leave or come (`PART_S`), and for the first word
of a reply (`REPLY_S`, or `GATE_S` where a gate may hold it). Retrying is the caller's:
`judge` says what an error means for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat.v1 import parameter_server_pb2_grpc as ps_grpc
from offbeat_core import parts
from offbeat_core.manifest import ANOTHER_MODEL, Manifest
from offbeat_core.samples import Layout, from_proto

PART_S = 120.0
"""Half a mebibyte at 35 kbit/s; a slower link is a broken one."""
REPLY_S = 120.0
GATE_S = 600.0
"""After that the commit is asked for again, under its number: it counts once. (A peer that
vanished is noticed by keepalive within a minute.)"""

HESITATE_S = 1.0
"""gRPC's asyncio client may report INTERNAL instead of the status with which the server
ended the call, if it was writing then (grpc/grpc#36066). After an INTERNAL the next
attempt lets its header arrive alone, so that a refusal is heard as what it is."""

T = TypeVar("T")


class Verdict(Enum):
    """What an error means."""

    AGAIN = "again"  # not reached, or broken off: try again
    UNCLEAR = "unclear"  # gRPC may have lost the server's own words (see HESITATE_S): try again
    NOT_YET = "not yet"  # the server is not that far: no model yet, or another run
    NOT_PULLED = "not pulled"  # the server does not know this process: pull, then try again
    SUPERSEDED = "superseded"  # a newer process of this name took over
    WRONG = "wrong"  # will never work: another manifest, a malformed request


def judge(error: BaseException) -> Verdict:
    if isinstance(error, grpc.aio.AioRpcError):
        match error.code():
            case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.NOT_FOUND:
                return _judge_precondition(error.details() or "")
            case grpc.StatusCode.INTERNAL:
                return Verdict.UNCLEAR
            case grpc.StatusCode.ABORTED:
                return Verdict.SUPERSEDED
            case (
                grpc.StatusCode.INVALID_ARGUMENT
                | grpc.StatusCode.UNIMPLEMENTED
                | grpc.StatusCode.PERMISSION_DENIED
                | grpc.StatusCode.UNAUTHENTICATED
            ):
                return Verdict.WRONG
    return Verdict.AGAIN


def _judge_precondition(details: str) -> Verdict:
    """One status code, four meanings: only the words tell them apart (offbeat_ps/servicer.py lists them)."""
    if details.startswith(("manifest differs", "initial_model", "samples: ")):
        return Verdict.WRONG
    return Verdict.NOT_PULLED if "has not pulled" in details else Verdict.NOT_YET


def describe(error: BaseException) -> str:
    """An error in a few words, for the log."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"


RETRIED = (grpc.aio.AioRpcError, parts.StreamError, asyncio.TimeoutError, TimeoutError, EOFError)
"""What an attempt raises; give it to `judge`."""


@dataclass(frozen=True)
class Model:
    """A reply: header and, unless unchanged, the model."""

    header: ps.ModelHeader
    vector: np.ndarray | None = field(repr=False)  # float32, (elements,)


@dataclass(frozen=True)
class Dealt:
    """Samples that the server dealt, as they travelled."""

    layout: Layout
    data: np.ndarray = field(repr=False)  # uint8, (layout.total_bytes,)
    digest: str = ""  # of the data set


class Bulk:
    """A connection to the parameter server.

    Args:
        channel: made by `channels.connect`.
        name, incarnation: of this process.
    """

    def __init__(self, channel: grpc.aio.Channel, name: str, incarnation: str) -> None:
        self._stub: Any = ps_grpc.ParameterServerStub(channel)
        self._name = name
        self._incarnation = incarnation
        self._hesitate = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self.pull_s = 0.0  # that the last model which was pulled took
        self.fetched = Fetched()

    async def seed(self, run_id: str, manifest: Manifest, vector: np.ndarray) -> ps.SeedReply:
        """Offer the initial model, float32 of shape (elements,)."""

        async def messages() -> AsyncIterator[ps.SeedPart]:
            yield ps.SeedPart(
                header=ps.SeedHeader(
                    run_id=run_id,
                    worker=self._name,
                    manifest=manifest.to_proto(),
                    codec=pb.CODEC_FLOAT32,
                    total_bytes=vector.nbytes,
                )
            )
            for part in parts.cut(vector):
                self.sent_bytes += len(part.data)
                yield ps.SeedPart(part=part)

        call = self._stub.Seed(messages(), timeout=_transfer_s(vector.nbytes))
        reply: ps.SeedReply = await call
        return reply

    async def pull(
        self,
        run_id: str,
        role: pb.Role,
        *,
        manifest: Manifest,
        newer_than: int | None = None,
    ) -> Model:
        """A consistent snapshot; with `newer_than` only if there is a newer version."""
        request = ps.PullRequest(
            run_id=run_id,
            name=self._name,
            role=role,
            incarnation=self._incarnation,
            newer_than_version=newer_than or 0,
            only_if_newer=newer_than is not None,
        )
        began = time.monotonic()
        call = self._stub.Pull(request)
        try:
            model = await self._receive(call, REPLY_S, manifest)
        finally:
            call.cancel()
        if model.vector is not None:
            self.pull_s = time.monotonic() - began
        return model

    async def commit(self, header: ps.CommitHeader, vector: np.ndarray, *, gated: bool) -> Model:
        """Send an update, float32 of shape (elements,), and receive the fresh model.

        Call again with the same arguments for a retry: the iterator is made anew.
        """
        call = self._stub.Commit()
        reply_s = (GATE_S if gated else REPLY_S) + _transfer_s(vector.nbytes)
        sending = asyncio.ensure_future(self._send(call, header, vector))
        # Reading begins at once: a refusal need not wait for the last part.
        receiving = asyncio.ensure_future(self._receive(call, reply_s, None, vector.nbytes))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                sending.result()  # raises TimeoutError if a part could not leave
            model = await receiving
            self._hesitate = False
            return model
        except grpc.aio.AioRpcError as error:
            self._hesitate = error.code() == grpc.StatusCode.INTERNAL
            raise
        finally:
            # The tasks first: cancelling the call under them would look like their own cancellation.
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            call.cancel()

    async def samples(self, run_id: str, generation: int, count: int) -> Dealt:
        """The samples that are dealt to this worker in a generation; `count`: so many were announced."""
        request = ps.SamplesRequest(
            run_id=run_id, worker=self._name, incarnation=self._incarnation, generation=generation
        )
        call = self._stub.Samples(request)
        fetched = self.fetched
        fetched.begin()
        try:
            first = await within(REPLY_S, call.read())
            if first is grpc.aio.EOF:
                await _raise_status(call)
            if first.WhichOneof("kind") != "header":
                raise parts.StreamError("the reply does not begin with a header")
            layout = _layout(first.header, count)
            fetched.answered(first.header.held_s)
            assembler = parts.Assembler(layout.total_bytes, dtype="|u1")
            while not assembler.complete:
                message = await within(PART_S, call.read())
                if message is grpc.aio.EOF:
                    await _raise_status(call)
                size = assembler.received
                assembler.add(message.part)
                size = assembler.received - size
                self.received_bytes += size
                fetched.add(count * size / layout.total_bytes)
            return Dealt(layout, assembler.finish(), first.header.digest)
        finally:
            fetched.end()
            call.cancel()

    async def renew(self, run_id: str) -> ps.RenewReply:
        """Keep the lease."""
        reply: ps.RenewReply = await self._stub.Renew(
            ps.RenewRequest(run_id=run_id, worker=self._name, incarnation=self._incarnation), timeout=REPLY_S
        )
        return reply

    async def checkpoint(self, run_id: str) -> ps.CheckpointReply:
        """Have all that was committed so far written; the reply comes once it is on disk."""
        request = ps.CheckpointRequest(run_id=run_id, worker=self._name)
        reply: ps.CheckpointReply = await self._stub.Checkpoint(request, timeout=REPLY_S)
        return reply

    async def _send(self, call: Any, header: ps.CommitHeader, vector: np.ndarray) -> None:
        try:
            await within(PART_S, call.write(ps.CommitPart(header=header)))
            if self._hesitate:
                await _done_within(call, HESITATE_S)
            for part in parts.cut(vector):
                await within(PART_S, call.write(ps.CommitPart(part=part)))
                self.sent_bytes += len(part.data)
            await within(PART_S, call.done_writing())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call ended; its reader says how

    async def _receive(
        self, call: Any, reply_s: float, manifest: Manifest | None, expected_bytes: int | None = None
    ) -> Model:
        first = await within(reply_s, call.read())
        if first is grpc.aio.EOF:
            await _raise_status(call)
        if first.WhichOneof("kind") != "header":
            raise parts.StreamError("the reply does not begin with a header")
        header = first.header
        if header.total_bytes == 0:
            return Model(header, None)
        if manifest is not None:
            if header.HasField("manifest") and (
                difference := manifest.difference(Manifest.from_proto(header.manifest))
            ):
                raise ManifestMismatch(f"{ANOTHER_MODEL}: {difference}")
            expected_bytes = manifest.total_bytes
        if header.total_bytes != expected_bytes:
            raise parts.StreamError(f"a model of {header.total_bytes} bytes instead of {expected_bytes}")
        assembler = parts.Assembler(header.total_bytes)
        while not assembler.complete:
            message = await within(PART_S, call.read())
            if message is grpc.aio.EOF:
                await _raise_status(call)
            assembler.add(message.part)
            self.received_bytes += len(message.part.data)
        return Model(header, assembler.finish())


class Fetched:
    """What was fetched of dealt samples, and what it took: whatever came of a transfer that broke off, too.

    An answer that never came is no property of the link, and takes no time here.
    """

    def __init__(self) -> None:
        self.samples = 0.0
        self._seconds = 0.0
        self._begun = 0.0
        self._since: float | None = None  # since then the transfer that is under way has taken no part

    @property
    def seconds(self) -> float:
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def begin(self) -> None:
        self._begun = time.monotonic()

    def answered(self, held_s: float) -> None:
        """The header has come, for which the server itself needed `held_s`."""
        self._since = time.monotonic()
        self._seconds += max(0.0, self._since - self._begun - held_s)

    def add(self, samples: float) -> None:
        """A part has come, with so many samples' worth of bytes."""
        now = time.monotonic()
        if self._since is not None:
            self._seconds += now - self._since
        self._since = now
        self.samples += samples

    def end(self) -> None:
        self._since = None


def _layout(header: ps.SamplesHeader, count: int) -> Layout:
    """What the header announces, if it is what was to come. Raises StreamError."""
    if header.count != count:
        raise parts.StreamError(f"{header.count} samples instead of {count}")
    try:
        layout = Layout(from_proto(header.fields), count)
    except ValueError as error:
        raise parts.StreamError(str(error)) from error
    if header.total_bytes != layout.total_bytes:
        raise parts.StreamError(f"samples of {header.total_bytes} bytes instead of {layout.total_bytes}")
    return layout


class ManifestMismatch(Exception):
    """The run's model is another one; says what differs."""


async def _raise_status(call: Any) -> None:
    """The stream ended: raise its status, or EOFError where it ended too early but well."""
    code = await call.code()
    if code != grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code, await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
    raise EOFError("the stream ended early")


async def _done_within(call: Any, seconds: float) -> None:
    """Wait for the call's end, for at most so long."""
    end = asyncio.get_running_loop().time() + seconds
    while not call.done() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0.02)


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Await, for at most so long. Raises TimeoutError."""
    return await asyncio.wait_for(awaitable, seconds)


def _transfer_s(size: int) -> float:
    """The longest that so many bytes may take."""
    return PART_S * (1 + size / parts.PART_BYTES)
