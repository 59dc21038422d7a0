"""Dividing a data set among devices: disjoint parts that together are everything.

Each device makes the whole division by itself, from the run's seed, and takes its
part. So it must come out the same everywhere: numpy freezes the streams of
`RandomState` for good, while those of `Generator` may change with a release, and
a fleet's devices don't all have the same numpy.
"""

from __future__ import annotations

import numpy as np


def iid(samples: int, shards: int, seed: int) -> list[np.ndarray]:
    """Shuffled and cut into parts that differ by at most one sample.

    Returns:
        one sorted int64 array of indices per shard.
    """
    order = _stream(seed).permutation(samples)
    return [np.sort(part) for part in np.array_split(order, shards)]


def dirichlet(labels: np.ndarray, shards: int, seed: int, alpha: float) -> list[np.ndarray]:
    """Each class is divided in proportions drawn from Dirichlet(alpha): small alpha, unequal devices.

    Source: Hsu, Qi, Brown, arXiv 1909.06335, with proportions per class. A shard that
    got nothing takes one sample from the largest, so that all have some where there are
    as many samples as shards.

    Args:
        labels: class of each sample, shape (n,).
        alpha: above 0; towards infinity all devices get the same mixture.

    Returns:
        one sorted int64 array of indices per shard.
    """
    stream = _stream(seed)
    parts: list[list[int]] = [[] for _ in range(shards)]
    for label in np.unique(labels):
        members = stream.permutation(np.flatnonzero(labels == label))
        proportions = _proportions(stream, alpha, shards)
        cuts = np.floor(np.cumsum(proportions)[:-1] * len(members) + 0.5).astype(np.int64)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.extend(piece.tolist())
    for part in parts:
        largest = max(parts, key=len)
        if not part and len(largest) > 1:
            part.append(largest.pop())
    return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]


def _proportions(stream: np.random.RandomState, alpha: float, shards: int) -> np.ndarray:
    draws = stream.standard_gamma(alpha, shards)
    total = draws.sum()
    if not total > 0:  # every draw of a tiny alpha can underflow; its limit is one shard for all
        draws[stream.randint(shards)] = total = 1.0
    return draws / total


def _stream(seed: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(seed))
