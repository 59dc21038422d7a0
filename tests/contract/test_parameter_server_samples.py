"""ParameterServer.Samples over real gRPC on loopback: who is dealt what, and who is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import save_file

from offbeat.v1 import parameter_server_pb2 as pb
from offbeat_core import parts
from offbeat_core.dealing import deal
from offbeat_core.samples import Layout, from_proto
from offbeat_ps import live
from offbeat_ps.samples import SampleFile

Code = grpc.StatusCode
COUNT = 500
SEED = 11
X = np.random.default_rng(1).standard_normal((COUNT, 3001)).astype("<f4")  # a share takes several parts
Y = np.arange(COUNT)


@pytest.fixture
def file(tmp_path: Path) -> SampleFile:
    save_file({"x": X, "y": Y.astype("<i8")}, tmp_path / "samples")
    return SampleFile(tmp_path / "samples")


def request(ps: Any, worker: str, generation: int, incarnation: str = "first") -> pb.SamplesRequest:
    return pb.SamplesRequest(run_id=ps.run, worker=worker, incarnation=incarnation, generation=generation)


async def received(call: Any) -> tuple[pb.SamplesHeader, list[np.ndarray]]:
    header, assembler = None, None
    async for message in call:
        if message.HasField("header"):
            header = message.header
            assembler = parts.Assembler(header.total_bytes, dtype="|u1")
        else:
            assembler.add(message.part)
    assert header is not None
    return header, Layout(from_proto(header.fields), header.count).arrays(assembler.finish())


async def begun(served: Any, generation: int = 1, **shares: int) -> None:
    served.direct(generation=generation, shares=shares, seed=SEED)
    if not served.host.live.seeded:
        await served.seed()
        await served.joined("a", "b")


def test_each_learner_gets_the_very_samples_that_are_dealt_to_it_and_again_when_it_asks_again(
    ps: Any, file: SampleFile
) -> None:
    async def body(served: Any) -> None:
        for generation in (1, 2):
            await begun(served, generation, a=300, b=200)
            dealt = deal(COUNT, {"a": 300, "b": 200}, SEED, generation)
            calls = [served.stub.Samples(request(ps, worker, generation)) for worker in "aba"]
            for worker, call in zip("aba", calls, strict=True):
                header, (x, y) = await received(call)
                assert (header.generation, header.count) == (generation, len(dealt[worker]))
                assert header.digest == file.digest
                np.testing.assert_array_equal(y, dealt[worker])
                np.testing.assert_array_equal(x, X[y])

    ps(body, samples=file)


def test_a_call_for_a_generation_that_the_server_has_not_heard_of_waits_for_it(
    ps: Any, file: SampleFile
) -> None:
    async def body(served: Any) -> None:
        await begun(served, 1, a=5)
        call = asyncio.ensure_future(received(served.stub.Samples(request(ps, "a", 2))))
        await asyncio.sleep(0.1)
        assert not call.done()
        served.direct(generation=2, shares={"a": 7}, seed=SEED)
        header, _ = await call
        assert header.count == 7
        assert header.held_s > 0.05

    ps(body, samples=file)


def test_a_generation_that_is_over_or_never_comes_is_refused(
    ps: Any, file: SampleFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "AHEAD_S", 0.2)

    async def body(served: Any) -> None:
        await begun(served, 3, a=5)
        for generation in (2, 4):
            async with ps.refused(
                Code.FAILED_PRECONDITION, f"generation {generation} is not in force; that is 3"
            ):
                await received(served.stub.Samples(request(ps, "a", generation)))

    ps(body, samples=file)


def test_who_has_no_share_or_no_business_here_gets_nothing(ps: Any, file: SampleFile) -> None:
    async def body(served: Any) -> None:
        async with ps.refused(Code.FAILED_PRECONDITION, "not known here"):
            await received(served.stub.Samples(request(ps, "a", 1)))
        await begun(served, 1, a=5, c=5)
        async with ps.refused(Code.FAILED_PRECONDITION, "deals no samples to worker 'b'"):
            await received(served.stub.Samples(request(ps, "b", 1)))
        async with ps.refused(Code.FAILED_PRECONDITION, "worker 'c' has not pulled"):
            await received(served.stub.Samples(request(ps, "c", 1)))
        await served.caller("a", "second").pull()
        async with ps.refused(Code.ABORTED, "a newer process"):
            await received(served.stub.Samples(request(ps, "a", 1)))
        assert (await received(served.stub.Samples(request(ps, "a", 1, "second"))))[0].count == 5
        async with ps.refused(Code.INVALID_ARGUMENT, "not a device's name"):
            await received(served.stub.Samples(request(ps, "../a", 1)))

    ps(body, samples=file)


def test_a_server_without_a_data_set_says_how_to_give_it_one(ps: Any) -> None:
    async def body(served: Any) -> None:
        await begun(served, 1, a=5)
        async with ps.refused(Code.FAILED_PRECONDITION, "samples: this server holds none; start it with"):
            await received(served.stub.Samples(request(ps, "a", 1)))

    ps(body)


def test_more_than_there_is_is_not_dealt(ps: Any, file: SampleFile) -> None:
    async def body(served: Any) -> None:
        await begun(served, 1, a=COUNT, b=1)
        async with ps.refused(Code.FAILED_PRECONDITION, "501 samples are to be dealt"):
            await received(served.stub.Samples(request(ps, "a", 1)))

    ps(body, samples=file)


def test_a_learner_that_stops_reading_holds_no_call_and_nobody_else(ps: Any, file: SampleFile) -> None:
    async def body(served: Any) -> None:
        await begun(served, 1, a=450, b=50)
        deaf = served.stub.Samples(request(ps, "a", 1))
        assert (await deaf.read()).header.count == 450
        header, _ = await received(served.stub.Samples(request(ps, "b", 1)))
        assert header.count == 50
        await ps.eventually(lambda: served.stalls.ended == 1)
        deaf.cancel()
        assert (await received(served.stub.Samples(request(ps, "a", 1))))[0].count == 450

    ps(body, samples=file, stall_s=0.5)


def test_who_takes_its_samples_slowly_keeps_its_lease_meanwhile(ps: Any, tmp_path: Path) -> None:
    """Its renewals wait in line behind the samples, on a link that these fill."""
    save_file({"x": np.zeros((4000, 4000), "<f4")}, tmp_path / "large")  # more than gRPC takes ahead

    async def body(served: Any) -> None:
        served.direct(generation=1, shares={"a": 4000}, seed=SEED, lease_s=0.4)
        await served.seed()
        await served.joined("a", "b")
        run = served.host.live.run
        call = served.stub.Samples(request(ps, "a", 1))
        header = (await call.read()).header
        looks = 0
        while served.host.live.sent_bytes < header.total_bytes:
            for _ in range(4):
                await call.read()
            await asyncio.sleep(0.2)
            await served.caller("b").pull()  # others go on
            if served.host.live.sent_bytes < header.total_bytes:
                assert "a" in run.membership.live
                looks += 1
        assert looks > 5
        call.cancel()
        await ps.eventually(lambda: "a" not in run.membership.live)

    ps(body, samples=SampleFile(tmp_path / "large"))
