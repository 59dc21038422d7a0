"""What is bounded: memory for commits, silence, norms, leases."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_core.clock import VirtualClock
from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.admission import Budget
from offbeat_ps.inspection import ENOUGH, FIRST, GROWTH, NormBound, inspect
from offbeat_ps.lane import LARGE_BYTES, Lane
from offbeat_ps.membership import Membership
from offbeat_ps.stalls import Stalled, Stalls

MANIFEST = Manifest(
    (TensorSpec("scale", ()), TensorSpec("nothing", (0,)), TensorSpec("weight", (2,))),
    (TensorSpec("mean", (2,)),),
)


# ---- memory ---------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(1, 150), max_size=30), st.randoms(use_true_random=False))
def test_memory_is_granted_in_order_and_never_exceeded(sizes: list[int], chance: object) -> None:
    """What is larger than all of it comes alone, but it comes."""

    async def main() -> None:
        budget = Budget(100)
        order: list[int] = []
        going: set[int] = set()

        async def call(number: int, size: int) -> None:
            async with budget.grant(size):
                going.add(number)
                order.append(number)
                assert budget.used <= 100 or going == {number}
                for _ in range(chance.randint(0, 5)):  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
                going.discard(number)

        await asyncio.wait_for(asyncio.gather(*(call(i, size) for i, size in enumerate(sizes))), 30)
        assert order == list(range(len(sizes)))
        assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(main())


def test_a_caller_that_goes_away_while_it_waits_holds_nothing() -> None:
    async def main() -> None:
        budget = Budget(100)

        async def call() -> None:
            async with budget.grant(60):
                await asyncio.sleep(0.01)

        first, gone, third = (asyncio.create_task(call()) for _ in range(3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait_for(asyncio.gather(first, third), 30)
        assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(main())


def test_a_caller_that_goes_away_as_its_turn_comes_gives_its_memory_back() -> None:
    async def main() -> None:
        budget = Budget(100)
        inside = asyncio.Event()

        async def call() -> None:
            async with budget.grant(100):
                await inside.wait()

        first, second = asyncio.create_task(call()), asyncio.create_task(call())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)  # the first gives back; the second is granted, but did not run yet
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(main())


def test_memory_can_be_given_back_before_the_end() -> None:
    async def main() -> None:
        budget = Budget(100)
        async with budget.grant(80) as grant:
            grant.release()
            assert budget.used == 0
            grant.release()
        assert budget.used == 0

    asyncio.run(main())


# ---- silence ----------------------------------------------------------------------------


def test_a_transfer_without_progress_is_ended_and_one_that_waits_is_not() -> None:
    async def main() -> None:
        clock = VirtualClock()
        stalls = Stalls(clock, stall_s=60.0)
        ended: list[str] = []

        async def transfer(name: str) -> None:
            try:
                with stalls.watch() as progress:
                    if name == "held":
                        progress.pause()
                    if name == "moving":
                        movers.append(progress)
                    await asyncio.Event().wait()
            except Stalled:
                ended.append(name)

        movers: list = []
        tasks = [asyncio.create_task(transfer(name)) for name in ("silent", "held", "moving")]
        await asyncio.sleep(0)
        clock.run_until(50.0)
        movers[0].moved()
        clock.run_until(70.0)
        stalls.check()
        await asyncio.sleep(0)
        assert (ended, stalls.ended) == (["silent"], 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


# ---- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "tensor"), [(0, "scale"), (1, "weight"), (2, "weight"), (3, "mean"), (4, "mean")]
)
@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")]
)
def test_a_number_that_is_none_is_found_wherever_it_is(
    index: int, tensor: str, value: float, said: str
) -> None:
    vector = np.ones(5, "<f4")
    vector[index] = value
    assert inspect(vector, MANIFEST).fault == f"tensor '{tensor}' has {said} in it"


def test_an_overflow_of_the_norm_is_no_fault_of_a_tensor() -> None:
    finding = inspect(np.full(5, 3e38, "<f4"), MANIFEST)
    assert finding.fault == ""
    assert finding.norm == pytest.approx(3e38 * math.sqrt(3), rel=1e-6)


def test_the_first_updates_have_a_wide_bound() -> None:
    bound = NormBound(elements=100)
    assert bound.fault(FIRST * 10, 1, model_norm=0.0) == ""
    assert "above the bound" in bound.fault(FIRST * 10.1, 1, model_norm=0.0)


def test_a_model_that_begins_at_zero_and_learns_slowly_is_not_mistaken_for_one_that_explodes() -> None:
    bound = NormBound(elements=100)
    for _ in range(ENOUGH):
        bound.accept(0.0, 1)
    assert bound.fault(5.0, 1, model_norm=0.0) == ""


def test_the_bound_follows_the_typical_update_per_step() -> None:
    bound = NormBound(elements=100)
    for _ in range(200):
        bound.accept(2.0, 4)
    assert bound.limit(steps=3) == pytest.approx(GROWTH * 0.5 * 3)


# ---- leases ---------------------------------------------------------------------------------


def test_a_lease_ends_so_long_after_it_was_last_kept() -> None:
    membership = Membership(lease_s=10, window_s=30)
    assert membership.keep("a", 0.0)
    assert not membership.keep("a", 5.0)
    assert membership.next_end() == 15.0
    assert membership.expire(14.9) == []
    assert membership.expire(15.0) == ["a"]
    assert membership.keep("a", 16.0)


def test_m_counts_everybody_seen_within_the_window_and_nobody_else() -> None:
    membership = Membership(lease_s=10, window_s=30)
    membership.keep("a", 0.0)
    membership.keep("b", 20.0)
    assert membership.active(40.0) == {"a", "b"}
    membership.expire(40.1)
    assert membership.active(40.1) == {"b"}
    membership.expire(100.0)
    assert membership.active(100.0) == set()
    assert membership._ends == {}  # nothing is kept of those who are gone


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "drop", "expire", "excuse", "configure", "ask"]),
            st.sampled_from("abc"),
            st.floats(0, 20),
        ),
        max_size=60,
    )
)
def test_m_is_right_at_any_time_although_it_is_not_counted_each_time(
    events: list[tuple[str, str, float]],
) -> None:
    membership, now = Membership(lease_s=10, window_s=30), 0.0
    for kind, name, number in events:
        if kind == "keep":
            membership.keep(name, now)
        elif kind == "drop":
            membership.drop(name)
        elif kind == "excuse":
            membership.excuse(number, now)
        elif kind == "configure":
            membership.configure(10, number)
        else:
            now += number
            if kind == "expire":
                membership.expire(now)
        assert membership.active(now) == membership.counted(now)


def test_a_quarantined_worker_leaves_m_at_once() -> None:
    membership = Membership(lease_s=10, window_s=30)
    membership.keep("a", 0.0)
    assert membership.drop("a")
    assert membership.active(0.0) == set()


# ---- order --------------------------------------------------------------------------------


@pytest.mark.parametrize("model_bytes", [LARGE_BYTES, LARGE_BYTES + 1])
def test_work_is_done_in_the_order_in_which_it_was_submitted(model_bytes: int) -> None:
    async def main() -> None:
        lane, done = Lane(model_bytes), []
        try:
            await asyncio.gather(*(lane.submit(lambda i=i: done.append(i)) for i in range(100)))
            assert done == list(range(100))
            with pytest.raises(ZeroDivisionError):
                await lane.submit(lambda: 1 / 0)
            await lane.aside(lambda: sum(range(10_000)))
            await asyncio.sleep(0.01)
            assert lane.busy_s > 0
        finally:
            lane.close()

    asyncio.run(main())
