"""Weights: never more than one model's worth over one commit of each active worker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_ps.fold import Fold, FoldRule, Shares, Sums, Weight, When

NAMES = [f"w{i}" for i in range(6)]
rates = st.floats(0.01, 10)
samples = st.integers(0, 10_000)


def test_at_once_an_update_weighs_one_over_m() -> None:
    fold = Fold(FoldRule())
    assert fold.arriving("a", 1, 0, {"a"}) == 1.0
    assert fold.arriving("a", 1, 0, {"a", "b", "c"}) == 1 / 3


def test_every_k_weighs_one_over_k_but_never_more_than_one_over_m() -> None:
    assert Fold(FoldRule(When.EVERY_K, every_k=4)).arriving("a", 1, 0, {"a", "b"}) == 1 / 4
    assert Fold(FoldRule(When.EVERY_K, every_k=2)).arriving("a", 1, 0, {"a", "b", "c", "d"}) == 1 / 4
    half = FoldRule(When.EVERY_K, every_k=2, server_rate=0.25)
    assert Fold(half).arriving("a", 1, 0, {"a", "b", "c", "d"}) == 0.25 / 2


def test_a_server_rate_cannot_raise_a_weight() -> None:
    assert Fold(FoldRule(server_rate=3.0)).arriving("a", 1, 0, {"a", "b"}) == 0.5
    assert Fold(FoldRule(server_rate=0.5)).arriving("a", 1, 0, {"a", "b"}) == 0.25
    assert Fold(FoldRule(When.AT_GATE, server_rate=3.0)).factors(4.0, 4.0, 1.0) == (0.25, 1.0)


def test_at_the_gate_weights_are_normalised_over_those_that_arrived() -> None:
    fold = Fold(FoldRule(When.AT_GATE, Weight.SAMPLES))
    weights = [fold.waiting(name, n, 0) for name, n in (("a", 100), ("b", 300))]
    scale, share = fold.factors(400, 400, 1.0)
    assert [w * scale for w in weights] == [0.25, 0.75]
    assert share == 1.0


def test_by_samples_a_share_is_of_the_active_workers_samples() -> None:
    shares = Shares()
    active = {"a", "b"}
    shares.claim("a", 100, active)
    shares.claim("b", 300, active)
    assert shares.claim("a", 100, active) == pytest.approx(0.25)
    assert shares.claim("b", 300, active) == pytest.approx(0.75)


def test_who_is_gone_takes_no_share_from_those_who_stayed() -> None:
    shares, active = Shares(), {"a", "b"}
    shares.claim("a", 100, active)
    shares.claim("b", 100, active)
    shares.note("gone", 10_000)
    assert shares.claim("a", 100, active) == 0.5


def test_however_stale_an_update_has_a_weight() -> None:
    fold = Fold(FoldRule(staleness_power=400.0))
    assert fold.discount(0) == 1.0
    assert 0.0 < fold.arriving("a", 1.0, 10**9, {"a"}) < 1e-20


def test_at_a_gate_staleness_lowers_an_update_and_raises_no_other() -> None:
    fold = Fold(FoldRule(When.AT_GATE, staleness_power=1.0))
    weights = [fold.waiting("fresh", 1.0, 0), fold.waiting("stale", 1.0, 3)]
    scale, share = fold.factors(sum(weights), 2.0, 1.0)
    assert [w * scale for w in weights] == [0.5, 0.125]
    assert share == 0.625


@pytest.mark.parametrize(
    ("weight", "measure"),
    [(Weight.EQUAL, 1.0), (Weight.SAMPLES, 64.0), (Weight.DATA, 500.0), (Weight.PER_STEP, 0.25)],
)
def test_what_a_rule_measures_of_an_update(weight: Weight, measure: float) -> None:
    fold = Fold(FoldRule(weight=weight))
    assert fold.measure(samples=64, shard_samples=500, steps=4) == measure
    if weight is not Weight.EQUAL:
        assert fold.measure(samples=0, shard_samples=0, steps=0) == 0.0


def test_another_server_rate_leaves_the_shares_that_were_taken_in_force() -> None:
    fold, active = Fold(FoldRule(weight=Weight.DATA)), {"a", "b"}
    fold.arriving("a", 100, 0, active)
    fold.arriving("b", 300, 0, active)
    fold.arriving("a", 100, 0, active)
    after = Fold(FoldRule(weight=Weight.DATA, server_rate=0.5), fold)
    assert after.arriving("b", 300, 0, active) == pytest.approx(0.375)
    assert Fold(FoldRule(weight=Weight.SAMPLES), fold).arriving("b", 300, 0, active) == 0.5


def test_a_worker_without_samples_takes_nothing_and_loses_no_share() -> None:
    shares = Shares()
    active = {"a", "b"}
    assert shares.claim("a", 0, active) == 0.0
    shares.claim("b", 100, active)
    assert shares.claim("a", 0, active) == 0.0
    assert shares.claim("a", 100, active) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"when": When.EVERY_K}, "every_k: 0"),
        ({"server_rate": -1.0}, "server_rate: -1"),
        ({"server_rate": float("nan")}, "server_rate: nan"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FoldRule(**fields)


@settings(deadline=None)
@given(
    st.sampled_from([When.AT_ONCE, When.EVERY_K]),
    st.sampled_from(list(Weight)),
    st.integers(1, 12),
    rates,
    st.lists(st.tuples(st.sampled_from(NAMES), samples), min_size=1, max_size=60),
)
def test_over_one_commit_of_each_active_worker_the_weights_sum_to_at_most_one(
    when: When, weight: Weight, k: int, rate: float, commits: list[tuple[str, int]]
) -> None:
    """Whatever the order and the samples: the last weight of each, summed, at every moment."""
    fold = Fold(FoldRule(when, weight, k, rate))
    active, last = set(NAMES), {}
    for name, n in commits:
        got = fold.arriving(name, n, 0, active)
        assert 0.0 <= got <= 1.0
        if got > 0.0:
            last[name] = got
        assert sum(last.values()) <= 1.0 + 1e-9


@settings(deadline=None)
@given(
    st.sampled_from([When.AT_ONCE, When.EVERY_K]),
    st.sampled_from(list(Weight)),
    st.integers(1, 12),
    rates,
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(NAMES), min_size=1),
            st.lists(st.tuples(st.integers(0, len(NAMES) - 1), samples), max_size=12),
        ),
        min_size=2,
        max_size=8,
    ),
)
def test_while_the_set_of_active_workers_stands_still_the_weights_of_its_commits_sum_to_at_most_one(
    when: When, weight: Weight, k: int, rate: float, stretches: list[tuple[set[str], list[tuple[int, int]]]]
) -> None:
    """Workers join, leave and return. Only the commits made under one set are summed."""
    fold = Fold(FoldRule(when, weight, k, rate))
    ever: dict[str, float] = {}
    for active, commits in stretches:
        names, last = sorted(active), {}
        for index, n in commits:
            name = names[index % len(names)]
            got = fold.arriving(name, n, 0, active)
            assert 0.0 <= got <= 1.0
            if got > 0.0:
                last[name] = ever[name] = got
            assert sum(last.values()) <= 1.0 + 1e-9
            assert sum(w for other, w in ever.items() if other in active) <= len(active) + 1e-9


@pytest.mark.parametrize("weight", list(Weight))
def test_across_a_join_the_last_commits_sum_to_more_than_one_once(weight: Weight) -> None:
    fold = Fold(FoldRule(weight=weight))
    last = {"w1": fold.arriving("w1", 100, 0, {"w1"})}
    last["w2"] = fold.arriving("w2", 100, 0, {"w1", "w2"})
    assert last == {"w1": 1.0, "w2": 0.5}
    last["w1"] = fold.arriving("w1", 100, 0, {"w1", "w2"})
    assert sum(last.values()) == 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 10_000)), min_size=1, max_size=40))
def test_shares_settle_at_the_true_shares(noise: list[tuple[str, int]]) -> None:
    """Whatever came before, after the samples stand still everybody gets what it deserves."""
    shares, active = Shares(), set(NAMES)
    for name, n in noise:
        shares.claim(name, n, active)
    for _ in range(30):
        got = {name: shares.claim(name, 10 * (i + 1), active) for i, name in enumerate(NAMES)}
    for i, name in enumerate(NAMES):
        assert got[name] == pytest.approx((i + 1) / 21, rel=0.02)


@settings(deadline=None)
@given(
    st.sampled_from(list(Weight)),
    rates,
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10_000)), min_size=1, max_size=20),
)
def test_the_weights_of_a_gates_fold_sum_to_at_most_one(
    weight: Weight, rate: float, arrivals: list[tuple[str, int]]
) -> None:
    fold = Fold(FoldRule(When.AT_GATE, weight, server_rate=rate))
    weights = [fold.waiting(name, n, 0) for name, n in arrivals]
    if sum(weights) > 0:
        scale, _ = fold.factors(sum(weights), sum(weights), 1.0)
        assert sum(w * scale for w in weights) == pytest.approx(min(rate, 1.0))


def test_sums_keep_the_first_updates_memory_and_hand_it_over() -> None:
    sums = Sums()
    first = np.ones(4, "<f4")
    sums.add(first, 2.0)
    sums.add(np.ones(4, "<f4"), 3.0)
    assert sums.values is first
    np.testing.assert_array_equal(sums.take(), np.full(4, 5))
    with pytest.raises(ValueError, match="nothing waits"):
        sums.take()
