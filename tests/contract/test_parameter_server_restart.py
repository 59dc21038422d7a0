"""A parameter server that was killed in the middle of a run goes on from its last checkpoint."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb

Code = grpc.StatusCode
GATE = {"gate": common.Gate(slack=0), "fold": common.Fold(when=common.Fold.AT_GATE)}
ONES = np.ones(6, "<f4")


def resumed(served: Any, trainers: tuple[str, ...] = ("a", "b"), version: int = 5, **fields: Any) -> None:
    served.direct(generation=2, resume=common.Resume(version=version, trainers=trainers), **fields)


def killed(ps: Any, body: Any) -> Path:
    """A server's folder as it was when `body`, which asks for the last checkpoint, had ended."""
    left = ps.folder.with_name("left")

    async def until_killed(served: Any) -> None:
        await body(served)
        shutil.copytree(served.folder, left)

    ps(until_killed)
    return left


def test_model_accounts_and_leases_are_there_again_and_a_commit_is_not_counted_twice(ps: Any) -> None:
    async def before(served: Any) -> None:
        served.direct(generation=1)
        await served.seed(10 * ONES)
        a, b = await served.joined("a", "b")
        await a.commit(ONES.copy())
        await b.commit(ONES.copy())
        await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run, worker="a"))

    async def after(served: Any) -> None:
        a, b = served.caller("a"), served.caller("b")
        resumed(served)
        again = await ps.patiently(lambda: a.commit(ONES.copy(), sequence=1))
        assert again.ack.outcome == pb.CommitAck.DUPLICATE
        np.testing.assert_allclose(again.values, 9)
        assert again.header.version > 5, "versions never fall"
        assert again.header.commits == 1
        reply = await b.commit(2 * ONES, sequence=2)
        assert (reply.ack.outcome, reply.ack.weight) == (pb.CommitAck.APPLIED, 0.5), "a counts in M"
        np.testing.assert_allclose(reply.values, 8)
        report = served.host.report()
        assert (report.seeded, report.generation, report.commits) == (True, 2, 3)
        saved = load_file(served.folder / ps.run / "checkpoint.safetensors")
        np.testing.assert_allclose(saved["weight"], 9)

    ps(after, folder=killed(ps, before))


def test_what_waited_at_the_gate_enters_and_the_gate_waits_for_nobody_who_has_committed(ps: Any) -> None:
    async def before(served: Any) -> None:
        served.direct(generation=1, **GATE)
        await served.seed()
        a, _ = await served.joined("a", "b")
        held = asyncio.ensure_future(a.commit(ONES.copy()))
        await ps.eventually(lambda: served.host.live.run.held)
        await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run, worker="a"))
        held.cancel()

    async def after(served: Any) -> None:
        a, b = served.caller("a"), served.caller("b")
        resumed(served, **GATE)
        again = await ps.patiently(lambda: a.commit(ONES.copy(), sequence=1))
        np.testing.assert_allclose(again.values, -1)
        both = await asyncio.gather(
            a.commit(ONES.copy(), sequence=2, generation=2), _introduced(b, generation=2)
        )
        for reply in both:
            np.testing.assert_allclose(reply.values, -2)

    ps(after, folder=killed(ps, before))


async def _introduced(caller: Any, **fields: Any) -> Any:
    await caller.pull()
    return await caller.commit(ONES.copy(), **fields)


def test_the_best_model_is_still_known(ps: Any) -> None:
    async def before(served: Any) -> None:
        served.direct(generation=1)
        await served.seed()
        await served.caller("eval").pull(role=common.ROLE_EVALUATOR)
        served.host.live.keep_best(0, 0.25, 0.75)
        await ps.eventually(lambda: served.host.report().best_model_path)

    async def after(served: Any) -> None:
        resumed(served)
        await ps.eventually(lambda: served.host.report().seeded)
        report = served.host.report()
        assert (report.best_version, report.best_loss, report.best_metric) == (0, 0.25, 0.75)
        assert Path(report.best_model_path) == (served.folder / ps.run / "best.safetensors").resolve()

    ps(after, folder=killed(ps, before))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda file: file.unlink(), "there is none of run"),
        (lambda file: file.write_bytes(file.read_bytes()[:-3]), "damaged"),
        (lambda file: file.write_bytes(b""), "not a safetensors file"),
    ],
    ids=["gone", "torn", "empty"],
)
def test_a_checkpoint_that_cannot_be_used_is_said_and_no_worker_seeds_in_its_place(
    ps: Any, spoil: Any, problem: str
) -> None:
    async def before(served: Any) -> None:
        served.direct(generation=1)
        await served.seed()

    async def after(served: Any) -> None:
        resumed(served)
        await ps.eventually(lambda: served.host.report().error)
        assert problem in served.host.report().error
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await served.seed()
        assert not served.host.report().seeded

    left = killed(ps, before)
    spoil(left / ps.run / "checkpoint.safetensors")
    ps(after, folder=left)
