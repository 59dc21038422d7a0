"""A parameter server on loopback, and a worker's side of its calls."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat.v1 import parameter_server_pb2_grpc as rpc
from offbeat_core import channels, parts
from offbeat_core.clock import RealClock
from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.host import Host
from offbeat_ps.samples import SampleFile
from offbeat_ps.servicer import Servicer
from offbeat_ps.stalls import Stalls

RUN = "run-1"
PATIENCE_S = 30.0  # for liveness only


@dataclasses.dataclass
class Reply:
    """What a Pull or Commit brought."""

    header: pb.ModelHeader
    values: np.ndarray | None

    @property
    def ack(self) -> pb.CommitAck:
        return self.header.ack


class Caller:
    """A worker's calls. `sequence` counts by itself unless given."""

    def __init__(self, served: Client, name: str, incarnation: str = "first") -> None:
        self.served = served
        self.name = name
        self.incarnation = incarnation
        self.sequence = 0

    async def pull(self, role: int = common.ROLE_WORKER, **fields: Any) -> Reply:
        request = {"run_id": RUN, "name": self.name, "role": role, "incarnation": self.incarnation, **fields}
        return await received(self.served.stub.Pull(pb.PullRequest(**request)))

    def header(self, update: np.ndarray, **fields: Any) -> pb.CommitHeader:
        if "sequence" not in fields:
            self.sequence += 1
        values = {
            "run_id": RUN,
            "worker": self.name,
            "incarnation": self.incarnation,
            "sequence": self.sequence,
            "manifest_digest": self.served.manifest.digest,
            "codec": common.CODEC_FLOAT32,
            "total_bytes": update.nbytes,
            "steps": 1,
            "samples": 1,
            **fields,
        }
        return pb.CommitHeader(**values)

    async def commit(self, update: np.ndarray, part_bytes: int = parts.PART_BYTES, **fields: Any) -> Reply:
        header = self.header(update, **fields)

        async def stream() -> AsyncIterator[pb.CommitPart]:
            yield pb.CommitPart(header=header)
            for part in parts.cut(update, part_bytes):
                yield pb.CommitPart(part=part)

        return await received(self.served.stub.Commit(stream()))

    async def renew(self, **fields: Any) -> pb.RenewReply:
        request = {"run_id": RUN, "worker": self.name, "incarnation": self.incarnation, **fields}
        return await self.served.stub.Renew(pb.RenewRequest(**request))


async def received(call: Any) -> Reply:
    """Read a stream of ModelParts to its end."""
    header, assembler = None, None
    async for message in call:
        if message.HasField("header"):
            header = message.header
            assembler = parts.Assembler(header.total_bytes)
        else:
            assembler.add(message.part)
    assert header is not None
    return Reply(header, assembler.finish() if header.total_bytes else None)


@dataclasses.dataclass
class Client:
    """A stub, and the model that its calls are about."""

    stub: Any
    manifest: Manifest = dataclasses.field(
        default_factory=lambda: Manifest((TensorSpec("weight", (2, 2)), TensorSpec("bias", (2,))))
    )

    def caller(self, name: str, incarnation: str = "first") -> Caller:
        return Caller(self, name, incarnation)

    async def joined(self, *names: str) -> list[Caller]:
        """Workers that have pulled."""
        callers = [self.caller(name) for name in names]
        for caller in callers:
            await caller.pull()
        return callers

    async def seed(self, values: np.ndarray | None = None, **fields: Any) -> pb.SeedReply:
        if values is None:
            values = np.zeros(self.manifest.elements, "<f4")
        header = {
            "run_id": RUN,
            "worker": "seeder",
            "manifest": self.manifest.to_proto(),
            "codec": common.CODEC_FLOAT32,
            "total_bytes": values.nbytes,
            **fields,
        }

        async def stream() -> AsyncIterator[pb.SeedPart]:
            yield pb.SeedPart(header=pb.SeedHeader(**header))
            for part in parts.cut(values):
                yield pb.SeedPart(part=part)

        return await self.stub.Seed(stream())


@dataclasses.dataclass
class Served(Client):
    """A server that listens in this process, its host, and a stub."""

    host: Host = dataclasses.field(kw_only=True)
    stalls: Stalls = dataclasses.field(kw_only=True)
    folder: Path = dataclasses.field(kw_only=True)

    def direct(self, **fields: Any) -> None:
        """Send a ServerDirective, as the scheduler would."""
        directive = {
            "run_id": RUN,
            "lease_s": 10,
            "membership_window_s": 60,
            "checkpoint_every_s": 60,
            **fields,
        }
        self.host.direct(common.ServerDirective(**directive))


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    memory_bytes: int = 2**30,
    stall_s: float = 60.0,
    samples: SampleFile | None = None,
) -> AsyncIterator[Served]:
    clock = RealClock()
    host = Host(folder, memory_bytes, clock, samples)
    stalls = Stalls(clock, stall_s)
    server = channels.make_server()
    rpc.add_ParameterServerServicer_to_server(Servicer(host, stalls), server)
    port = channels.listen(server, "127.0.0.1:0")
    await server.start()
    watch = asyncio.create_task(stalls.keep_watch())
    try:
        async with channels.connect(f"127.0.0.1:{port}") as channel:
            yield Served(rpc.ParameterServerStub(channel), host=host, stalls=stalls, folder=folder)
    finally:
        host.stop_calls()
        await server.stop(0)
        await host.close()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


@asynccontextmanager
async def refused(code: grpc.StatusCode | str, details: str) -> AsyncIterator[None]:
    """The block's call ends with this status, and its details contain `details`."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    expected = grpc.StatusCode[code] if isinstance(code, str) else code
    assert caught.value.code() is expected, caught.value.details()
    assert details in caught.value.details()


async def eventually(holds: Callable[[], Any]) -> None:
    """Wait until `holds()`; fails after a generous time."""

    async def poll() -> None:
        while not holds():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), PATIENCE_S)


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call until it works: the server is still on its way there."""
    for _ in range(int(PATIENCE_S / 0.1)):
        try:
            return await call()
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.1)
    return await call()


class Harness:
    """What the contract tests of the parameter server use."""

    run = RUN
    refused = staticmethod(refused)
    eventually = staticmethod(eventually)
    received = staticmethod(received)
    patiently = staticmethod(patiently)
    client = Client

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, body: Callable[[Served], Awaitable[None]], folder: Path | None = None, **options: Any
    ) -> None:
        """Run `body` against a fresh server."""

        async def inner() -> None:
            async with serving(folder or self.folder, **options) as served:
                await asyncio.wait_for(body(served), PATIENCE_S * 2)

        asyncio.run(inner())


@pytest.fixture
def ps(tmp_path: Path) -> Harness:
    return Harness(tmp_path / "ps")
