"""Who gets which samples of a data set that the parameter server holds.

In parallelized mode each learner k trains on d_k samples, dealt by chance anew for each
generation. The server and the simulator deal by this one function.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def deal(samples: int, shares: Mapping[str, int], seed: int, generation: int) -> dict[str, np.ndarray]:
    """A permutation of the data set, cut in the order of the learners' names.

    Args:
        samples: in the data set.
        shares: d_k by learner.
        seed: of the run.

    Returns:
        by learner its samples' indices, int64 of shape (d_k,), ascending (a disk reads them in order; the
        learner shuffles them anyway). No index comes twice, and each is as likely to come as any other.

    Raises ValueError where there are fewer samples than are to be dealt.
    """
    total = sum(shares.values())
    if min(shares.values(), default=0) < 0:
        raise ValueError(f"shares: {min(shares.values())} is negative")
    if total > samples:
        raise ValueError(f"shares: {total} samples are to be dealt, and the data set has {samples}")
    order = np.random.default_rng((seed, generation)).permutation(samples)
    dealt: dict[str, np.ndarray] = {}
    start = 0
    for name in sorted(shares):
        dealt[name] = np.sort(order[start : start + shares[name]])
        start += shares[name]
    return dealt
