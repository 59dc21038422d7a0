"""Several gates, rounds, and weights by data and by local updates, as the scheduler asks for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat_core.manifest import Manifest, TensorSpec

AT_GATE = common.Fold(when=common.Fold.AT_GATE)
BARRIER = common.Gate(slack=0)


def group(*members: str, **gate: Any) -> common.Group:
    return common.Group(members=members, gate=common.Gate(**gate or {"slack": 0}))


def full(value: float) -> np.ndarray:
    return np.full(6, value, "<f4")


def test_each_group_folds_at_its_own_gate_by_its_share_of_the_fleet(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (1,)),), (TensorSpec("mean", (1,)),))
        served.direct(groups=[group("a", "b"), group("c", "d", "e")], fold=AT_GATE)
        await served.seed(np.array([0, 10], "<f4"))
        callers = dict(zip("abcdef", await served.joined(*"abcde"), strict=False))
        c, d = (asyncio.create_task(callers[n].commit(np.array([3, 0], "<f4"))) for n in "cd")
        await ps.eventually(lambda: len(served.host.live.run.held) == 2)
        a, b = await asyncio.gather(*(callers[n].commit(np.array([5, 20], "<f4")) for n in "ab"))
        for reply in (a, b):
            assert reply.ack.weight == pytest.approx(1 / 5)
            np.testing.assert_allclose(reply.values, [-2, 0.6 * 10 + 0.4 * 20], rtol=1e-6)
        assert not c.done()
        assert not d.done()
        e = await callers["e"].commit(np.array([3, 0], "<f4"))
        np.testing.assert_allclose(e.values, [-2 - 9 / 5, 0.4 * 14], rtol=1e-6)
        assert {(await task).ack.outcome for task in (c, d)} == {pb.CommitAck.APPLIED}

    ps(body)


def test_who_is_in_no_group_waits_for_nobody_and_counts_by_its_own_share(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(groups=[group("a", "b")], fold=AT_GATE)
        await served.seed()
        _, _, stranger = await served.joined("a", "b", "stranger")
        reply = await stranger.commit(full(3))
        assert (reply.ack.outcome, reply.ack.weight) == (pb.CommitAck.APPLIED, pytest.approx(1 / 3))
        np.testing.assert_allclose(reply.values, full(-1), rtol=1e-6)

    ps(body)


def test_a_checkpoint_keeps_what_waits_at_each_gate(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(
            groups=[group("a", "b"), group("c", "d")],
            fold=common.Fold(when=common.Fold.AT_GATE, weight=common.Fold.SAMPLES),
        )
        await served.seed()
        a, _, c, _ = await served.joined(*"abcd")
        held = [asyncio.create_task(a.commit(full(1), samples=2)), asyncio.create_task(c.commit(full(5)))]
        await ps.eventually(lambda: len(served.host.live.run.held) == 2)
        await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run))
        path = served.folder / ps.run / "checkpoint.safetensors"
        saved, facts = load_file(path), metadata(path)
        waiting = {name: saved[name][0] for name in saved if name.startswith("offbeat.waiting")}
        assert waiting == {"offbeat.waiting.1": 2, "offbeat.waiting.2": 5}
        assert (facts["waiting_weight.1"], facts["waiting_weight.2"]) == ("2.0", "1.0")
        served.direct(finished=True, revision=2)
        for call in held:
            assert (await call).header.version == 2

    ps(body)


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        return file.metadata()


def test_weights_by_data_count_the_samples_that_a_device_holds(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=common.Fold(when=common.Fold.AT_GATE, weight=common.Fold.DATA))
        await served.seed()
        a, b = await served.joined("a", "b")
        first, second = await asyncio.gather(
            a.commit(full(4), shard_samples=300, samples=1), b.commit(full(8), shard_samples=100, samples=9)
        )
        assert (first.ack.weight, second.ack.weight) == (0.75, 0.25)
        np.testing.assert_allclose(second.values, full(-5), rtol=1e-6)

    ps(body)


def test_weights_per_step_let_a_fast_device_pull_no_further_than_a_slow_one(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(fold=common.Fold(weight=common.Fold.PER_STEP))
        await served.seed()
        fast, slow = await served.joined("fast", "slow")
        for _ in range(20):
            await slow.commit(full(1), steps=1)
            await fast.commit(full(9), steps=9)
        slow_ack = (await slow.commit(full(1), steps=1)).ack
        fast_ack = (await fast.commit(full(9), steps=9)).ack
        assert slow_ack.weight == pytest.approx(0.9)
        assert fast_ack.weight == pytest.approx(0.1)

    ps(body)


def test_a_stale_update_counts_for_less(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(fold=common.Fold(staleness_power=0.5))
        await served.seed()
        a, b = await served.joined("a", "b")
        for _ in range(3):
            await a.commit(full(0), base_version=9)
        ack = (await b.commit(full(1), base_version=0)).ack
        assert (ack.staleness, ack.weight) == (3, 0.25)

    ps(body)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"groups": [group("a"), group("b", "a")]}, "groups[1].members: 'a' is in another group"),
        ({"groups": [group("a", "a")]}, "groups[0].members: 'a' is named twice"),
        ({"groups": [group()]}, "groups[0].members: is empty"),
        ({"groups": [group("a")], "gate": BARRIER}, "groups: each has its own gate"),
        ({"groups": [group("a")], "cohort": ["a"]}, "groups: each has its own gate"),
        (
            {"groups": [group("a"), common.Group(members=["b"])], "fold": AT_GATE},
            "give groups[1].gate.slack or groups[1].gate.deadline_s",
        ),
        ({"groups": [group("a", deadline_s=0.0)]}, "groups[0].gate.deadline_s: 0.0 is not a positive"),
        ({"gate": common.Gate(deadline_s=float("nan"))}, "gate.deadline_s: nan is not a positive"),
        ({"fold": common.Fold(staleness_power=-1)}, "fold.staleness_power: -1.0"),
        ({"fold": common.Fold(weight=99)}, "fold.weight: 99 is not known here"),
        ({"fold": common.Fold(when=99)}, "fold.when: 99 is not known here"),
    ],
)
def test_groups_and_weights_that_make_no_sense_are_reported_by_field(
    ps: Any, fields: dict[str, Any], said: str
) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1, generation=1)
        served.direct(revision=2, generation=2, **fields)
        assert said in served.host.report().error
        assert served.host.live.run.rules.generation == 1
        served.direct(revision=3, generation=3)
        assert served.host.report().error == ""

    ps(body)
