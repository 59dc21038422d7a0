"""Dealing a data set to learners: disjoint, complete where all of it is dealt, by chance, the same again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_core.dealing import deal

shares = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 40), max_size=8)


@given(shares=shares, spare=st.integers(0, 50), seed=st.integers(0, 2**64 - 1), generation=st.integers(0, 99))
def test_each_gets_its_share_and_no_sample_goes_to_two(shares, spare, seed, generation):
    samples = sum(shares.values()) + spare
    dealt = deal(samples, shares, seed, generation)
    assert {name: len(indices) for name, indices in dealt.items()} == shares
    all_dealt = np.concatenate([np.zeros(0, np.int64), *dealt.values()])
    assert len(set(all_dealt.tolist())) == len(all_dealt)
    assert all((indices >= 0).all() and (indices < samples).all() for indices in dealt.values())
    if not spare:
        assert set(all_dealt.tolist()) == set(range(samples))


def test_the_same_again_gives_the_same_whatever_the_order_of_the_names():
    one = deal(100, {"b": 10, "a": 20}, 7, 3)
    other = deal(100, {"a": 20, "b": 10}, 7, 3)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_seed_and_generation_deal_anew():
    first = deal(1000, {"a": 300}, 7, 3)["a"]
    assert not np.array_equal(first, deal(1000, {"a": 300}, 7, 4)["a"])
    assert not np.array_equal(first, deal(1000, {"a": 300}, 8, 3)["a"])


def test_over_the_generations_each_learner_gets_each_sample_equally_often():
    counts = {"a": np.zeros(20), "b": np.zeros(20)}
    for generation in range(2000):
        for name, indices in deal(20, {"a": 5, "b": 10}, 1, generation).items():
            counts[name][indices] += 1
    # 500 and 1000 each; five standard deviations are less than 112.
    assert np.abs(counts["a"] - 500).max() < 112
    assert np.abs(counts["b"] - 1000).max() < 112


def test_more_than_there_is_cannot_be_dealt():
    with pytest.raises(ValueError, match="11 samples are to be dealt, and the data set has 10"):
        deal(10, {"a": 6, "b": 5}, 1, 1)
    with pytest.raises(ValueError, match="negative"):
        deal(10, {"a": 6, "b": -1}, 1, 1)
