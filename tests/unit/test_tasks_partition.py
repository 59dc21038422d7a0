"""Data is divided into disjoint parts that together are everything, the same way on each device."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_worker.tasks.partition import dirichlet, iid

seeds = st.integers(0, 2**64 - 1)


def assert_is_partition(parts: list[np.ndarray], samples: int, shards: int) -> None:
    assert len(parts) == shards
    assert sorted(np.concatenate(parts).tolist()) == list(range(samples))


@given(st.integers(0, 300), st.integers(1, 40), seeds)
@settings(deadline=None)
def test_iid_parts_are_disjoint_complete_and_of_equal_size(samples: int, shards: int, seed: int) -> None:
    parts = iid(samples, shards, seed)
    assert_is_partition(parts, samples, shards)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    again = iid(samples, shards, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(
    st.lists(st.integers(0, 9), min_size=0, max_size=200),
    st.integers(1, 20),
    seeds,
    st.sampled_from([1e-6, 1e-3, 0.1, 0.5, 1.0, 100.0, 1e6]),
)
@settings(deadline=None)
def test_dirichlet_parts_are_disjoint_complete_and_none_is_empty_where_there_are_samples_enough(
    labels: list[int], shards: int, seed: int, alpha: float
) -> None:
    parts = dirichlet(np.asarray(labels, dtype=np.int64), shards, seed, alpha)
    assert_is_partition(parts, len(labels), shards)
    assert sum(len(part) > 0 for part in parts) == min(shards, len(labels))
    again = dirichlet(np.asarray(labels, dtype=np.int64), shards, seed, alpha)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def imbalance(alpha: float) -> float:
    """Mean over shards of the distance between a shard's mixture of classes and the whole one's."""
    labels = np.repeat(np.arange(10), 200)
    distances = []
    for seed in range(5):
        for part in dirichlet(labels, 5, seed, alpha):
            mixture = np.bincount(labels[part], minlength=10) / len(part)
            distances.append(np.abs(mixture - 0.1).sum())
    return float(np.mean(distances))


def test_a_smaller_alpha_makes_devices_less_alike() -> None:
    assert imbalance(0.05) > 1.5 * imbalance(0.5) > 3 * imbalance(50.0)


def test_another_seed_divides_otherwise() -> None:
    labels = np.arange(100) % 4
    assert not np.array_equal(iid(100, 2, 1)[0], iid(100, 2, 2)[0])
    assert not np.array_equal(dirichlet(labels, 2, 1, 0.5)[0], dirichlet(labels, 2, 2, 0.5)[0])


IID_10_3_1 = [[0, 1, 8, 9], [3, 6, 7], [2, 4, 5]]
DIRICHLET_12_3_7 = [[2], [0, 1, 3, 5, 7, 8, 10], [4, 6, 9, 11]]


def test_the_division_is_the_same_with_every_version_of_numpy() -> None:
    # Devices of one fleet may have different numpy. If these fail, their shards overlap.
    assert [part.tolist() for part in iid(10, 3, 1)] == IID_10_3_1
    assert [part.tolist() for part in dirichlet(np.arange(12) % 2, 3, 7, 0.5)] == DIRICHLET_12_3_7


@pytest.mark.parametrize("kind", ["text", "whole floats"])
def test_labels_need_not_be_integers(kind: str) -> None:
    labels = np.array(["cat", "dog"] * 10) if kind == "text" else np.array([0.0, 1.0] * 10)
    assert_is_partition(dirichlet(labels, 3, 1, 0.5), 20, 3)
