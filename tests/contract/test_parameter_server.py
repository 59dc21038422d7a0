"""ParameterServer over real gRPC on loopback: seeding, pulling, committing."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import Any

import grpc
import numpy as np
import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat_core import parts
from offbeat_core.manifest import Manifest, TensorSpec

Code = grpc.StatusCode
BARRIER = common.Gate(slack=0)
AT_GATE = common.Fold(when=common.Fold.AT_GATE)


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, "<f4")


def test_before_the_model_is_there_a_pull_says_so_and_may_be_tried_again(ps: Any) -> None:
    async def body(served: Any) -> None:
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await served.caller("a").pull()
        served.direct()
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await served.caller("a").pull()
        await served.seed(np.arange(6, dtype="<f4"))
        reply = await served.caller("a").pull()
        assert reply.header.version == 0
        np.testing.assert_array_equal(reply.values, np.arange(6))
        assert Manifest.from_proto(reply.header.manifest) == served.manifest

    ps(body)


def test_the_first_seed_wins_and_the_second_is_told(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        first = await served.seed(np.ones(6, "<f4"))
        second = await served.seed(np.zeros(6, "<f4"))
        assert (first.accepted, second.accepted) == (True, False)
        assert second.manifest_digest == served.manifest.digest
        np.testing.assert_array_equal((await served.caller("a").pull()).values, np.ones(6))

    ps(body)


def test_two_seeds_at_the_same_moment_leave_one_model(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        replies = await asyncio.gather(*(served.seed(np.full(6, i, "<f4")) for i in range(4)))
        assert [reply.accepted for reply in replies].count(True) == 1
        winner = [reply.accepted for reply in replies].index(True)
        np.testing.assert_array_equal((await served.caller("a").pull()).values, np.full(6, winner))

    ps(body)


def test_a_commit_moves_the_model_by_its_weight_and_returns_it_fresh(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed(np.full(6, 10, "<f4"))
        a, _ = await served.joined("a", "b")
        reply = await a.commit(np.full(6, 4, "<f4"))
        np.testing.assert_array_equal(reply.values, np.full(6, 8))  # M = 2
        assert reply.header.version == 1
        assert reply.header.commits == 1
        assert (reply.ack.outcome, reply.ack.weight, reply.ack.sequence) == (pb.CommitAck.APPLIED, 0.5, 1)
        assert reply.ack.checkpoint_epoch == 2  # epoch 1 is version 0
        assert reply.ack.durable_epoch == 1

    ps(body)


def test_staleness_is_the_number_of_versions_between(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        a, b = await served.joined("a", "b")
        for _ in range(3):
            await a.commit(np.ones(6, "<f4"))
        assert (await b.commit(np.ones(6, "<f4"), base_version=1)).ack.staleness == 2

    ps(body)


def test_the_evaluator_is_no_trainer_and_an_unchanged_model_travels_as_its_header(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        evaluator = served.caller("judge")
        first = await evaluator.pull(role=common.ROLE_EVALUATOR)
        again = await evaluator.pull(
            role=common.ROLE_EVALUATOR, only_if_newer=True, newer_than_version=first.header.version
        )
        assert again.values is None
        (a,) = await served.joined("a")
        assert (await a.commit(np.ones(6, "<f4"))).ack.weight == 1.0
        newer = await evaluator.pull(role=common.ROLE_EVALUATOR, only_if_newer=True, newer_than_version=0)
        assert newer.header.version == 1
        assert newer.values is not None

    ps(body)


def test_zero_dimensional_and_empty_tensors_travel(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest(
            (TensorSpec("scale", ()), TensorSpec("nothing", (0, 3)), TensorSpec("weight", (3,), "bfloat16")),
            (TensorSpec("mean", (), "float16"),),
        )
        served.direct()
        await served.seed(vector(1, 2, 3, 4, 8))
        (a,) = await served.joined("a")
        reply = await a.commit(vector(1, 1, 1, 1, 6))
        np.testing.assert_array_equal(reply.values, vector(0, 1, 2, 3, 6))

    ps(body)


def test_a_model_without_any_number_travels(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("nothing", (0,)),))
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        assert (await a.commit(np.zeros(0, "<f4"))).ack.outcome == pb.CommitAck.APPLIED

    ps(body)


def test_fifty_megabytes_there_and_back_in_small_parts(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (12_500_000,)),))
        served.direct()
        await served.seed(np.ones(12_500_000, "<f4"))
        (a,) = await served.joined("a")
        update = np.random.default_rng(0).normal(size=12_500_000).astype("<f4")
        reply = await a.commit(update.copy())
        np.testing.assert_array_equal(reply.values, np.float32(1) - update)

    ps(body)


def test_leases_are_answered_while_a_large_commit_is_worked_on(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (12_500_000,)),))
        served.direct()
        await served.seed(np.ones(12_500_000, "<f4"))
        a, b = await served.joined("a", "b")
        commit = asyncio.create_task(a.commit(np.ones(12_500_000, "<f4")))
        answered = 0
        while not commit.done():
            assert (await b.renew()).known
            answered += 1
        await commit
        assert answered > 1

    ps(body)


def test_no_reply_is_ever_torn_while_large_updates_stream_in_from_many(ps: Any) -> None:
    """Every update is constant over the vector, so each model must be, and name its version."""

    async def body(served: Any) -> None:
        elements, rounds = 1_000_000, 4
        served.manifest = Manifest((TensorSpec("weight", (elements,)),))
        served.direct()
        await served.seed()
        callers = await served.joined("a", "b", "c", "d")

        def check(reply: Any) -> None:
            assert reply.values.min() == reply.values.max() == -reply.header.version / 4

        async def train(caller: Any) -> None:
            for _ in range(rounds):
                check(await caller.commit(np.ones(elements, "<f4")))
                check(await served.caller("judge").pull(role=common.ROLE_EVALUATOR))

        await asyncio.gather(*(train(caller) for caller in callers))
        assert (await callers[0].pull()).header.version == 4 * rounds

    ps(body)


# ---- exactly once ----------------------------------------------------------------------


def test_a_stream_cut_in_the_middle_leaves_nothing_and_its_number_can_be_sent_again(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        update = np.ones(6, "<f4")
        call = served.stub.Commit()
        await call.write(pb.CommitPart(header=a.header(update)))
        await call.write(pb.CommitPart(part=next(parts.cut(update, 8))))
        await ps.eventually(lambda: served.host.budget.used == update.nbytes)
        call.cancel()
        await ps.eventually(lambda: served.host.budget.used == 0)
        assert (await a.pull()).header.version == 0
        again = await a.commit(update, sequence=1)
        assert again.ack.outcome == pb.CommitAck.APPLIED
        np.testing.assert_array_equal(again.values, -update)

    ps(body)


def test_a_stream_that_ends_too_early_or_out_of_order_is_malformed(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        update = np.ones(6, "<f4")
        pieces = list(parts.cut(update, 8))
        for sent, said in (
            (pieces[:2], "the stream ended at byte 16 of 24"),
            (pieces[::-1], "a part starts at byte 16; 0 was expected"),
            ([*pieces, common.Part(offset=24, data=b"1234")], "parts reach byte 28 of 24"),
        ):
            header = pb.CommitPart(header=a.header(update))
            async with ps.refused(Code.INVALID_ARGUMENT, said):
                await ps.received(
                    served.stub.Commit(iter([header, *(pb.CommitPart(part=part) for part in sent)]))
                )
        async with ps.refused(Code.INVALID_ARGUMENT, "the first CommitPart must be the header"):
            await ps.received(served.stub.Commit(iter([pb.CommitPart(part=pieces[0])])))
        assert (await a.pull()).header.version == 0

    ps(body)


def test_a_lost_reply_is_asked_for_again_and_the_update_counts_once(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        update = np.ones(6, "<f4")
        first = await a.commit(update)
        again = await a.commit(update, sequence=1)
        assert again.ack.outcome == pb.CommitAck.DUPLICATE
        assert again.header.commits == 1
        assert (again.ack.weight, again.ack.checkpoint_epoch) == (1.0, first.ack.checkpoint_epoch)
        np.testing.assert_array_equal(again.values, -update)

    ps(body)


def test_the_newer_process_of_a_name_wins_and_its_ghost_is_told(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        ghost = served.caller("a", "older")
        await ghost.pull()
        await ghost.commit(np.ones(6, "<f4"))
        newer = served.caller("a", "newer")
        assert (await newer.pull()).header.commits == 1
        said = "worker 'a': a newer process of this name took its place"
        async with ps.refused(Code.ABORTED, said):
            await ghost.commit(np.ones(6, "<f4"))
        async with ps.refused(Code.ABORTED, said):
            await ghost.pull()
        async with ps.refused(Code.ABORTED, said):
            await ghost.renew()
        reply = await newer.commit(np.ones(6, "<f4"))  # its numbers count from 1 again
        assert (reply.ack.outcome, reply.header.commits) == (pb.CommitAck.APPLIED, 2)

    ps(body)


def test_who_has_not_pulled_cannot_commit(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        async with ps.refused(Code.FAILED_PRECONDITION, "worker 'a' has not pulled"):
            await served.caller("a").commit(np.ones(6, "<f4"))
        assert not (await served.caller("a").renew()).known

    ps(body)


# ---- what is refused ---------------------------------------------------------------------


def test_numbers_that_are_none_are_refused_by_tensor_and_then_the_worker_is_quarantined(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        for bad, tensor in (
            (vector(1, 1, 1, np.nan, 1, 1), "weight"),
            (vector(1, 1, 1, 1, np.inf, 1), "bias"),
        ):
            reply = await a.commit(bad)
            assert reply.ack.outcome == pb.CommitAck.REFUSED
            assert f"tensor '{tensor}'" in reply.ack.reason
            np.testing.assert_array_equal(reply.values, np.zeros(6))
        fresh = await a.commit(np.ones(6, "<f4"))
        assert fresh.ack.outcome == pb.CommitAck.APPLIED  # a good one: the count of offences starts anew
        for _ in range(3):
            assert (await a.commit(np.full(6, np.nan, "<f4"))).ack.outcome == pb.CommitAck.REFUSED
        async with ps.refused(Code.PERMISSION_DENIED, "worker 'a' is quarantined"):
            await a.commit(np.ones(6, "<f4"))
        async with ps.refused(Code.PERMISSION_DENIED, "NaN"):
            await a.pull()
        restarted = served.caller("a", "second")
        await restarted.pull()
        assert (await restarted.commit(np.ones(6, "<f4"))).ack.outcome == pb.CommitAck.APPLIED

    ps(body)


def test_an_update_that_exploded_is_refused(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed(np.ones(6, "<f4"))
        (a,) = await served.joined("a")
        assert "norm" in (await a.commit(np.full(6, 1e30, "<f4"))).ack.reason
        for _ in range(8):
            await a.commit(np.full(6, 0.01, "<f4"))
        assert "norm" in (await a.commit(np.full(6, 50, "<f4"))).ack.reason
        more = await a.commit(np.full(6, 0.5, "<f4"), steps=1)  # large, but the model is larger
        assert more.ack.outcome == pb.CommitAck.APPLIED

    ps(body)


def test_another_model_is_refused_with_what_differs(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        other = Manifest((TensorSpec("weight", (2, 3)),))
        async with ps.refused(Code.FAILED_PRECONDITION, "manifest differs: this model's digest is"):
            await a.commit(np.ones(6, "<f4"), manifest_digest=other.digest)
        async with ps.refused(Code.FAILED_PRECONDITION, "the update has 28 bytes"):
            await a.commit(np.ones(7, "<f4"))
        async with ps.refused(Code.FAILED_PRECONDITION, "manifest differs"):
            await a.pull(manifest_digest=other.digest)
        async with ps.refused(Code.FAILED_PRECONDITION, "trainable tensor 'weight' [2, 3]"):
            served.manifest = other
            await served.seed(np.ones(6, "<f4"))

    ps(body)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sequence": 0}, "sequence: counts from 1"),
        ({"codec": common.CODEC_UNSPECIFIED}, "codec: 0"),
        ({"worker": "../x"}, "worker: '../x' is not a device's name"),
        ({"incarnation": ""}, "incarnation"),
    ],
)
def test_malformed_headers_are_said_to_be(ps: Any, fields: dict[str, Any], said: str) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        async with ps.refused(Code.INVALID_ARGUMENT, said):
            await a.commit(np.ones(6, "<f4"), **fields)

    ps(body)


def test_a_caller_that_is_refused_early_can_send_on_and_learns_why(ps: Any) -> None:
    """Else its failing write would hide the status from it."""

    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        stranger = served.caller("stranger")
        call = served.stub.Commit()
        await call.write(pb.CommitPart(header=stranger.header(np.ones(6, "<f4"))))
        for part in parts.cut(np.ones(6, "<f4"), 4):
            await asyncio.sleep(0.05)
            await call.write(pb.CommitPart(part=part))
        await call.done_writing()
        async with ps.refused(Code.FAILED_PRECONDITION, "has not pulled"):
            await ps.received(call)

    ps(body)


def test_a_caller_that_is_refused_and_sends_for_ever_is_cut_off(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.servicer.DRAINED_BYTES", 100_000)

    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        stranger = served.caller("stranger")
        call = served.stub.Commit()
        await call.write(pb.CommitPart(header=stranger.header(np.ones(6, "<f4"))))
        junk = pb.CommitPart(part=common.Part(data=b"0" * 10_000))
        with pytest.raises(grpc.aio.AioRpcError):
            for _ in range(10_000):
                await call.write(junk)

    ps(body)


def test_a_seed_that_is_not_finite_or_not_its_manifest_is_refused(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        async with ps.refused(Code.INVALID_ARGUMENT, "initial parameters: tensor 'weight' has NaN"):
            await served.seed(np.full(6, np.nan, "<f4"))
        async with ps.refused(Code.INVALID_ARGUMENT, "total_bytes: 20 for a manifest of 24"):
            await served.seed(np.ones(5, "<f4"))
        unknown = Manifest((TensorSpec("weight", (6,), "complex64"),))
        async with ps.refused(Code.INVALID_ARGUMENT, "tensor 'weight' has dtype 'complex64'"):
            await served.seed(np.ones(6, "<f4"), manifest=unknown.to_proto())
        assert (await served.seed(np.ones(6, "<f4"))).accepted

    ps(body)


def test_a_model_larger_than_the_memory_for_commits_is_refused_at_its_seed(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (2**20,)),))
        served.direct()
        async with ps.refused(Code.RESOURCE_EXHAUSTED, "the model takes 4 MiB; commit_memory_mb is 2"):
            await served.seed()

    ps(body, memory_bytes=2 * 2**20)


def test_all_samples_zero_is_an_error_and_no_nan_model(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=common.Fold(when=common.Fold.AT_GATE, weight=common.Fold.SAMPLES))
        await served.seed(np.ones(6, "<f4"))
        a, b = await served.joined("a", "b")
        replies = await asyncio.gather(*(c.commit(np.ones(6, "<f4"), samples=0) for c in (a, b)))
        for reply in replies:
            assert reply.ack.outcome == pb.CommitAck.REFUSED
            assert "all weights of its fold are zero" in reply.ack.reason
            np.testing.assert_array_equal(reply.values, np.ones(6))

    ps(body)


# ---- runs ------------------------------------------------------------------------------


def test_a_run_that_is_over_takes_no_commit_but_its_model_can_be_pulled(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1)
        await served.seed()
        (a,) = await served.joined("a")
        await a.commit(np.ones(6, "<f4"))
        async with ps.refused(Code.FAILED_PRECONDITION, "run 'other' is not known here"):
            await a.commit(np.ones(6, "<f4"), run_id="other", sequence=2)
        served.direct(revision=2, finished=True)
        async with ps.refused(Code.FAILED_PRECONDITION, f"run '{ps.run}' is over"):
            await a.commit(np.ones(6, "<f4"), sequence=2)
        assert not (await a.renew()).known
        assert (await a.pull()).header.version == 1
        served.direct(revision=3, run_id="")
        assert (await a.pull()).header.version == 1
        served.direct(revision=4, run_id="run-2")
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await a.pull()
        assert (await served.seed(run_id="run-2")).accepted

    ps(body)


def test_runs_that_follow_one_another_leave_nothing_behind(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (500_000,)),))
        stores: list[weakref.ref[Any]] = []
        threads: list[int] = []
        for number in range(1, 6):
            run = f"run-{number}"
            served.direct(revision=number, run_id=run)
            await served.seed(run_id=run)
            caller = served.caller("a")
            await caller.pull(run_id=run)
            await caller.commit(np.ones(500_000, "<f4"), run_id=run)
            stores.append(weakref.ref(served.host.live._seeded.model.store))
            threads.append(threading.active_count())
        await ps.eventually(lambda: sum(store() is not None for store in stores) == 1)
        await ps.eventually(lambda: threading.active_count() <= threads[0])

    ps(body)


def test_the_reply_carries_the_newest_directive_for_the_next_interval(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        assert not (await a.commit(np.ones(6, "<f4"))).header.HasField("next")
        for revision in (5, 7, 6):
            directive = common.WorkerDirective(revision=revision, action=common.WorkerDirective.TRAIN)
            served.host.direct_next(common.NextDirectives(workers={"a": directive}))
        assert (await a.commit(np.ones(6, "<f4"))).header.next.revision == 7
        served.host.welcome("another scheduler")
        assert not (await a.commit(np.ones(6, "<f4"))).header.HasField("next")

    ps(body)


# ---- the gate --------------------------------------------------------------------------


def test_a_barrier_holds_replies_and_folds_the_mean_of_updates_and_buffers(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (2,)),), (TensorSpec("variance", (1,)),))
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed(vector(10, 10, 1))
        a, b, c = await served.joined("a", "b", "c")
        early = [asyncio.create_task(x.commit(u)) for x, u in ((a, vector(3, 0, 2)), (b, vector(0, 3, 4)))]
        await ps.eventually(lambda: len(served.host.live.run.held) == 2)
        assert not any(task.done() for task in early)
        replies = [await c.commit(vector(3, 3, 6)), *await asyncio.gather(*early)]
        for reply in replies:
            np.testing.assert_allclose(reply.values, vector(8, 8, 4), rtol=1e-6)
            assert reply.header.version == 1
            assert reply.ack.weight == pytest.approx(1 / 3)
        # What a gate held is no property of the link: the worker takes it off its commit time.
        assert [reply.header.held_s > 0 for reply in replies] == [False, True, True]

    ps(body)


def test_the_gate_releases_a_worker_whose_lease_ended(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=AT_GATE, lease_s=0.5)
        await served.seed()
        a, _ = await served.joined("a", "silent")

        async def alive() -> None:
            while True:
                await a.renew()
                await asyncio.sleep(0.1)

        heart = asyncio.create_task(alive())
        reply = await a.commit(np.ones(6, "<f4"))
        heart.cancel()
        assert reply.ack.weight == 1.0
        np.testing.assert_array_equal(reply.values, -np.ones(6))

    ps(body)


def test_a_held_commit_that_is_cut_counts_and_its_retry_is_held_again(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed()
        a, b = await served.joined("a", "b")
        run = served.host.live.run
        cut = asyncio.create_task(a.commit(np.ones(6, "<f4")))
        await ps.eventually(lambda: run.held)
        cut.cancel()
        await ps.eventually(lambda: not run.held)
        retry = asyncio.create_task(a.commit(np.ones(6, "<f4"), sequence=1))
        await ps.eventually(lambda: run.held)
        reply = await b.commit(np.full(6, 3, "<f4"))
        np.testing.assert_array_equal(reply.values, np.full(6, -2))
        again = await retry
        assert (again.ack.outcome, again.ack.weight) == (pb.CommitAck.DUPLICATE, 0.5)
        np.testing.assert_array_equal(again.values, np.full(6, -2))

    ps(body)


def test_a_second_attempt_beside_a_held_one_takes_its_place(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed()
        a, b = await served.joined("a", "b")
        first = asyncio.create_task(a.commit(np.ones(6, "<f4")))
        await ps.eventually(lambda: served.host.live.run.held)
        second = asyncio.create_task(a.commit(np.ones(6, "<f4"), sequence=1))
        with pytest.raises(grpc.aio.AioRpcError, match="a newer attempt took this call's place"):
            await first
        await b.commit(np.ones(6, "<f4"))
        assert (await second).ack.outcome == pb.CommitAck.DUPLICATE

    ps(body)


def test_held_commits_take_no_memory_from_those_they_wait_for(ps: Any) -> None:
    """Else the slowest could never be received, and the barrier would stand for ever."""

    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (1000,)),))
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed()
        callers = await served.joined(*"abcdef")
        replies = await asyncio.gather(*(caller.commit(np.ones(1000, "<f4")) for caller in callers))
        assert {reply.header.version for reply in replies} == {1}

    ps(body, memory_bytes=4000)


def test_held_commits_keep_one_sum_and_not_each_its_update(ps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[weakref.ref[np.ndarray]] = []
    finish = parts.Assembler.finish

    def remember(assembler: parts.Assembler) -> np.ndarray:
        vector = finish(assembler)
        received.append(weakref.ref(vector))
        return vector

    async def body(served: Any) -> None:
        served.manifest = Manifest((TensorSpec("weight", (500_000,)),))
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed()
        callers = await served.joined(*"abcdef")
        monkeypatch.setattr(parts.Assembler, "finish", remember)
        held = [asyncio.create_task(caller.commit(np.ones(500_000, "<f4"))) for caller in callers[1:]]
        await ps.eventually(lambda: len(served.host.live.run.held) == 5)
        await ps.eventually(lambda: sum(vector() is not None for vector in received) == 1)
        await callers[0].commit(np.ones(500_000, "<f4"))
        for reply in await asyncio.gather(*held):
            np.testing.assert_array_equal(reply.values, np.full(500_000, -1))

    ps(body)


def test_a_new_generation_releases_everybody(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1, gate=BARRIER, fold=AT_GATE)
        await served.seed()
        a, _ = await served.joined("a", "slow")
        held = asyncio.create_task(a.commit(np.ones(6, "<f4")))
        await ps.eventually(lambda: served.host.live.run.held)
        served.direct(revision=2, generation=1)
        np.testing.assert_array_equal((await held).values, -np.ones(6))

    ps(body)


def test_the_end_of_a_run_folds_what_waits_and_answers_everybody(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1, gate=BARRIER, fold=AT_GATE)
        await served.seed()
        a, _ = await served.joined("a", "slow")
        held = asyncio.create_task(a.commit(np.ones(6, "<f4")))
        await ps.eventually(lambda: served.host.live.run.held)
        served.direct(revision=2, finished=True)
        np.testing.assert_array_equal((await held).values, -np.ones(6))
        await ps.eventually(lambda: served.host.live.finished)

    ps(body)


def test_a_stopping_server_sends_those_who_wait_to_try_again(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(gate=BARRIER, fold=AT_GATE)
        await served.seed()
        a, _ = await served.joined("a", "slow")
        held = asyncio.create_task(a.commit(np.ones(6, "<f4")))
        await ps.eventually(lambda: served.host.live.run.held)
        served.host.stop_calls()
        async with ps.refused(Code.UNAVAILABLE, "the parameter server is stopping"):
            await held
        async with ps.refused(Code.UNAVAILABLE, "the parameter server is stopping"):
            await a.pull()

    ps(body)


# ---- bounded ----------------------------------------------------------------------------


def test_commits_beyond_the_memory_wait_their_turn(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        a, b = await served.joined("a", "b")
        update = np.ones(6, "<f4")
        slow = served.stub.Commit()
        await slow.write(pb.CommitPart(header=a.header(update)))
        await ps.eventually(lambda: served.host.budget.used)
        waiting = asyncio.create_task(b.commit(update))
        await ps.eventually(lambda: served.host.budget.waiting == 1)
        assert not waiting.done()
        await slow.write(pb.CommitPart(part=next(parts.cut(update))))
        await slow.done_writing()
        await ps.received(slow)
        assert (await waiting).ack.outcome == pb.CommitAck.APPLIED

    ps(body, memory_bytes=24)


def test_a_caller_that_fell_silent_is_given_up(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        silent = served.stub.Commit()
        start = time.monotonic()
        await silent.write(pb.CommitPart(header=a.header(np.ones(6, "<f4"))))
        async with ps.refused(Code.DEADLINE_EXCEEDED, "nothing moved for 0.5 s"):
            await ps.received(silent)
        assert time.monotonic() - start >= 0.5
        assert served.host.budget.used == 0
        assert (await a.commit(np.ones(6, "<f4"), sequence=1)).ack.outcome == pb.CommitAck.APPLIED

    ps(body, stall_s=0.5)


def test_forty_workers_at_once_count_once_each(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        callers = await served.joined(*(f"w{i}" for i in range(40)))
        for _ in range(5):
            await asyncio.gather(*(caller.commit(np.ones(6, "<f4")) for caller in callers))
        reply = await callers[0].pull()
        assert reply.header.version == 200
        np.testing.assert_allclose(reply.values, np.full(6, -5), rtol=1e-4)

    ps(body)
