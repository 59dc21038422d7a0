"""ParameterServer over gRPC: translates calls to the run that is live, and its refusals to statuses.

| status | details | what the caller does |
|---|---|---|
| FAILED_PRECONDITION | no model yet | tries again in a moment |
| FAILED_PRECONDITION | run '…' is not known here / is over | waits for its directive |
| FAILED_PRECONDITION | manifest differs: … | reports it: it cannot take part |
| FAILED_PRECONDITION | worker '…' has not pulled … | pulls |
| FAILED_PRECONDITION | initial_model: … | reports it |
| FAILED_PRECONDITION | samples: this server holds none … | reports it |
| FAILED_PRECONDITION | generation … | waits for its directive |
| ABORTED | worker '…': a newer process … | ends |
| CANCELLED | a newer attempt took this call's place | nothing: that attempt goes on |
| PERMISSION_DENIED | worker '…' is quarantined: … | reports it, ends |
| INVALID_ARGUMENT | what is malformed | is mended |
| RESOURCE_EXHAUSTED | what is too large | is made smaller, or the server's memory larger |
| DEADLINE_EXCEEDED | nothing moved for … s | tries again |
| UNAVAILABLE | the parameter server is stopping | tries again |
| UNIMPLEMENTED | replay | - |

An update that is not fit is no error: its reply is the fresh model with an
acknowledgement REFUSED.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat.v1 import parameter_server_pb2_grpc as rpc
from offbeat_core import parts, samples
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_ps.checkpoint import check_dtypes
from offbeat_ps.dealer import part_bytes
from offbeat_ps.entrance import Refused
from offbeat_ps.host import Host
from offbeat_ps.instructions import Outcome, Refusal
from offbeat_ps.live import LiveRun
from offbeat_ps.stalls import Progress, Stalled, Stalls
from offbeat_ps.store import Snapshot

log = logging.getLogger("offbeat_ps")

Code = grpc.StatusCode

_CODES = {
    Refusal.NO_MODEL: Code.FAILED_PRECONDITION,
    Refusal.NOT_KNOWN: Code.FAILED_PRECONDITION,
    Refusal.OVER: Code.FAILED_PRECONDITION,
    Refusal.MANIFEST: Code.FAILED_PRECONDITION,
    Refusal.NOT_PULLED: Code.FAILED_PRECONDITION,
    Refusal.OLDER_INCARNATION: Code.ABORTED,
    Refusal.SUPERSEDED: Code.CANCELLED,
    Refusal.QUARANTINED: Code.PERMISSION_DENIED,
    Refusal.TOO_MANY: Code.RESOURCE_EXHAUSTED,
    Refusal.TOO_LARGE: Code.RESOURCE_EXHAUSTED,
    Refusal.REPLAY: Code.UNIMPLEMENTED,
    Refusal.UNFIT: Code.INVALID_ARGUMENT,
    Refusal.NO_SAMPLES: Code.FAILED_PRECONDITION,
    Refusal.NOT_DEALT: Code.FAILED_PRECONDITION,
    Refusal.STOPPING: Code.UNAVAILABLE,
}
_OUTCOMES = {
    Outcome.APPLIED: pb.CommitAck.APPLIED,
    Outcome.DUPLICATE: pb.CommitAck.DUPLICATE,
    Outcome.REFUSED: pb.CommitAck.REFUSED,
    Outcome.LATE: pb.CommitAck.LATE,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_INCARNATION = 128
DRAINED_BYTES = 64 * 2**20
DRAINED_S = 60.0


class Malformed(Exception):
    """The caller's message cannot be what was meant."""


F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


def _translated(method: F) -> F:
    """Turn what a call raises into its status."""

    @functools.wraps(method)
    async def call(self: Servicer, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except Refused as refused:
            code, details = _CODES[refused.refusal], refused.details
        except (Malformed, parts.StreamError) as error:
            code, details = Code.INVALID_ARGUMENT, str(error)
        except Stalled as stalled:
            code, details = Code.DEADLINE_EXCEEDED, str(stalled)
        except OffbeatError as error:
            code, details = Code.FAILED_PRECONDITION, str(error)
        except MemoryError as error:
            log.error("out of memory: %s", error)
            code, details = Code.RESOURCE_EXHAUSTED, "the parameter server is out of memory"
        if code not in (Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE) and isinstance(request, AsyncIterator):
            await self._drain(request)
        return await context.abort(code, details)

    return call  # type: ignore[return-value]


class Servicer(rpc.ParameterServerServicer):
    def __init__(self, host: Host, stalls: Stalls) -> None:
        self._host = host
        self._stalls = stalls

    @_translated
    async def Seed(self, requests: AsyncIterator[pb.SeedPart], context: Any) -> pb.SeedReply:
        with self._stalls.watch() as progress:
            header = await _header(requests, "SeedPart")
            self._check_open()
            live = self._host.run_of(header.run_id)
            _check_name(header.worker, "worker")
            _check_codec(header.codec)
            try:
                manifest = Manifest.from_proto(header.manifest)
            except ValueError as error:
                raise Malformed(str(error)) from error
            if problem := check_dtypes(manifest):
                raise Malformed(problem)
            if header.total_bytes != manifest.total_bytes:
                raise Malformed(
                    f"total_bytes: {header.total_bytes} for a manifest of {manifest.total_bytes} bytes"
                )
            if manifest.total_bytes > self._host.budget.total:
                problem = (
                    f"the model takes {manifest.total_bytes / 2**20:.0f} MiB; "
                    f"commit_memory_mb is {self._host.budget.total / 2**20:.0f}: "
                    "raise it on the parameter server"
                )
                if not live.seeded:
                    live.fail(problem)  # nobody can seed this run: the operator must see why
                raise Refused(Refusal.TOO_LARGE, problem)
            accepted = False
            if not live.seeded or live.manifest != manifest:
                progress.pause()
                async with self._host.budget.grant(header.total_bytes):
                    progress.moved()
                    values = await _receive(requests, header.total_bytes, progress, live)
                    progress.pause()
                    accepted = await live.seed(manifest, values)
            else:
                await self._drain(requests)
        return pb.SeedReply(accepted=accepted, version=live.run.version, manifest_digest=manifest.digest)

    @_translated
    async def Pull(self, request: pb.PullRequest, context: Any) -> None:
        self._check_open()
        live = self._run_with_model(request.run_id)
        trainer = request.role == common.ROLE_WORKER
        if trainer:
            _check_name(request.name, "name")
            _check_incarnation(request.incarnation)
        snapshot = await live.pull(request, trainer, request.role == common.ROLE_EVALUATOR)
        unchanged = request.only_if_newer and snapshot.version <= request.newer_than_version
        manifest = live.manifest
        header = self._model_header(live, snapshot, 0 if unchanged else snapshot.values.nbytes)
        header.manifest.CopyFrom(manifest.to_proto() if manifest else common.Manifest())
        entry = live.run.ledger.get(request.name) if trainer else None
        header.commits = entry.commits if entry else 0
        await self._send(context, header, None if unchanged else snapshot, live)

    @_translated
    async def Commit(self, requests: AsyncIterator[pb.CommitPart], context: Any) -> None:
        with self._stalls.watch() as progress:
            header = await _header(requests, "CommitPart")
            self._check_open()
            if header.HasField("replay"):
                raise Refused(Refusal.REPLAY, "replay: this server cannot take one yet")
            live = self._host.run_of(header.run_id)
            _check_name(header.worker, "worker")
            _check_incarnation(header.incarnation)
            _check_codec(header.codec)
            if header.sequence < 1:
                raise Malformed("sequence: counts from 1")
            live.admit(header)
            progress.pause()
            async with self._host.budget.grant(header.total_bytes) as grant:
                progress.moved()
                answer = await live.commit(
                    header, await _receive(requests, header.total_bytes, progress, live), grant.release
                )
                reply = self._model_header(live, answer.snapshot, answer.snapshot.values.nbytes)
                ack = answer.ack
                reply.ack.CopyFrom(
                    pb.CommitAck(
                        sequence=ack.sequence,
                        outcome=_OUTCOMES[ack.outcome],
                        reason=ack.reason,
                        weight=ack.weight,
                        checkpoint_epoch=ack.checkpoint_epoch,
                        durable_epoch=live.run.durable_epoch,
                        staleness=ack.staleness,
                    )
                )
                reply.commits = ack.commits
                reply.held_s = answer.held_s
                directive = self._host.next_for(header.worker)
                if directive is not None:
                    reply.next.CopyFrom(directive)
                await self._send(context, reply, answer.snapshot, live)

    @_translated
    async def Samples(self, request: pb.SamplesRequest, context: Any) -> None:
        with self._stalls.watch() as progress:
            self._check_open()
            live = self._host.run_of(request.run_id)
            _check_name(request.worker, "worker")
            _check_incarnation(request.incarnation)
            live.run.admit(request.worker, request.incarnation)
            dealer = self._host.dealer
            if dealer is None:
                raise Refused(
                    Refusal.NO_SAMPLES, "samples: this server holds none; start it with samples: FILE"
                )
            progress.pause()
            rules, held_s = await live.rules_of(request.generation)
            indices = await dealer.dealt(rules, request.worker)
            progress.moved()
            header = pb.SamplesHeader(
                run_id=live.run_id,
                generation=rules.generation,
                count=len(indices),
                fields=samples.to_proto(dealer.samples.fields),
                digest=dealer.samples.digest,
                total_bytes=dealer.samples.layout(len(indices)).total_bytes,
                held_s=held_s,
            )
            await context.write(pb.SamplesPart(header=header))
            size = part_bytes(header.total_bytes)
            sent = 0
            async for piece in dealer.pieces(indices):
                for message in parts.messages(piece, pb.SamplesPart, size, first=sent):
                    await context.write(message)
                    progress.moved()
                    # It takes what it is sent, so it is alive; its own word waits in line behind the samples.
                    live.renew(request.worker, request.incarnation)
                sent += piece.nbytes
                live.sent_bytes += piece.nbytes

    @_translated
    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:
        live = self._host.live
        known = (
            live is not None
            and live.run_id == request.run_id
            and live.renew(request.worker, request.incarnation)
        )
        return pb.RenewReply(
            known=known,
            lease_s=live.run.rules.lease_s if live else 0.0,
            server_incarnation=self._host.incarnation,
            durable_epoch=live.run.durable_epoch if live else 0,
        )

    @_translated
    async def Checkpoint(self, request: pb.CheckpointRequest, context: Any) -> pb.CheckpointReply:
        epoch, version = await self._host.run_of(request.run_id).checkpoint()
        return pb.CheckpointReply(epoch=epoch, version=version)

    # ---- parts of calls ------------------------------------------------------------

    def _check_open(self) -> None:
        if self._host.stopping:
            raise Refused(Refusal.STOPPING, "the parameter server is stopping")

    async def _drain(self, requests: AsyncIterator[Any]) -> None:
        """Let a caller that is answered early send on, to nobody.

        A grpc.aio client whose write fails reports "Internal error from Core" instead of
        the status that the server sent.
        """
        live = self._host.live
        manifest = live.manifest if live else None
        left = max(DRAINED_BYTES, manifest.total_bytes if manifest else 0)

        async def drain() -> None:
            nonlocal left
            async for message in requests:
                left -= message.ByteSize()
                if left < 0:
                    return

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(drain(), DRAINED_S)

    def _run_with_model(self, run_id: str) -> LiveRun:
        """A puller may be told of a run before the server is: to it, the model is not there yet."""
        try:
            return self._host.run_of(run_id)
        except Refused:
            raise Refused(Refusal.NO_MODEL, "no model yet") from None

    def _model_header(self, live: LiveRun, snapshot: Snapshot, total_bytes: int) -> pb.ModelHeader:
        return pb.ModelHeader(
            run_id=live.run_id,
            version=snapshot.version,
            manifest_digest=live.manifest.digest if live.manifest else "",
            codec=common.CODEC_FLOAT32,
            total_bytes=total_bytes,
            server_incarnation=self._host.incarnation,
        )

    async def _send(
        self, context: Any, header: pb.ModelHeader, snapshot: Snapshot | None, live: LiveRun
    ) -> None:
        with self._stalls.watch() as progress:
            await context.write(pb.ModelPart(header=header))
            if snapshot is None:
                return
            for message in parts.messages(snapshot.values, pb.ModelPart):
                await context.write(message)
                progress.moved()
            live.sent_bytes += snapshot.values.nbytes


async def _header(requests: AsyncIterator[Any], kind: str) -> Any:
    async for message in requests:
        if message.HasField("header"):
            return message.header
        break
    raise Malformed(f"the first {kind} must be the header")


async def _receive(
    requests: AsyncIterator[Any], total_bytes: int, progress: Progress, live: LiveRun
) -> np.ndarray:
    assembler = parts.Assembler(total_bytes)
    async for message in requests:
        if not message.HasField("part"):
            raise parts.StreamError("a second header")
        assembler.add(message.part)
        progress.moved()
    progress.pause()
    vector = assembler.finish()
    live.received_bytes += total_bytes
    return vector


def _check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise Malformed(f"{field}: '{name[:80]}' is not a device's name")


def _check_incarnation(incarnation: str) -> None:
    if not 0 < len(incarnation) <= MAX_INCARNATION:
        raise Malformed(f"incarnation: 1 to {MAX_INCARNATION} characters are expected")


def _check_codec(codec: int) -> None:
    if codec != common.CODEC_FLOAT32:
        raise Malformed(f"codec: {codec} is not known here; this server takes CODEC_FLOAT32")
