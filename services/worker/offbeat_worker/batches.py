"""The order of samples, and batches made of them.

Each epoch is a new permutation, from a generator seeded by run, shard and epoch: the same
device sees the same order in every run of the same seed. The batch size may change
between two batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from offbeat_core.errors import OffbeatError


class Order:
    """Indices of batches, epoch after epoch.

    A last batch of a single sample is merged into the one before it: BatchNorm can't
    train on one. A shard smaller than the batch makes batches of all it has.

    Args:
        size: samples in the shard.
        seed, shard: of the run and the device.

    Attributes:
        even: divide each pass into batches of about equal size. Where a commit ends a pass, a last batch of
            three samples at the learning rate of a whole one would be most of what it says.
        most: samples of a batch at most, also of one that a single sample would be merged into; 0: no bound.

    Raises OffbeatError for an empty shard.
    """

    def __init__(self, size: int, seed: int, shard: int) -> None:
        if size == 0:
            raise OffbeatError(
                f"shard: {shard} holds no samples", "give this device another shard, or fewer shards"
            )
        self._seed = seed
        self._shard = shard
        self._epoch = 0
        self.passes = 0  # finished ones
        self.most = 0
        self.even = False
        self.renew(size)

    @classmethod
    def empty(cls, seed: int, shard: int) -> Order:
        """Of no samples yet: `renew` says when there are some."""
        order = cls(1, seed, shard)
        order.renew(0)
        return order

    def renew(self, size: int) -> None:
        """So many others have taken the place of all samples; a new pass begins, finished ones count on."""
        self._samples = np.arange(size)
        self._all = self._samples
        self._drawn: tuple[int, int] | None = None  # samples, and for which generation
        self._shuffle()

    @property
    def size(self) -> int:
        """Samples in one pass."""
        return len(self._samples)

    @property
    def held(self) -> int:
        """Samples in the shard, whichever are trained on."""
        return len(self._all)

    def choose(self, samples: Sequence[int]) -> None:
        """Train on these indices only (empty: all) from the next batch on; a new pass begins.

        Raises OffbeatError for an index that the shard does not have.
        """
        self._drawn = None
        chosen = np.asarray(samples, dtype=np.int64) if len(samples) else self._all
        if len(chosen) == len(self._samples) and np.array_equal(chosen, self._samples):
            return
        if chosen.max() >= len(self._all):
            raise OffbeatError(
                f"samples: {int(chosen.max())} is not in this shard of {len(self._all)} samples",
                "the allocation was made for another shard",
            )
        self._samples = chosen
        self._shuffle()

    def draw(self, count: int, generation: int) -> None:
        """Train on so many samples from the next batch on, drawn by chance for each generation; a new pass
        begins. 0, or as many as there are: all of them."""
        if not 0 < count < len(self._all):
            self.choose(())
            return
        if (count, generation) == self._drawn:
            return
        self._drawn = (count, generation)
        chance = np.random.default_rng((self._seed, self._shard, generation, count))
        self._samples = np.sort(chance.choice(self._all, count, replace=False))
        self._shuffle()

    def upcoming(self, batch: int) -> int:
        """How many samples the next batch will have: at a pass's end fewer, or one more to avoid a single;
        with `even` as many as the others of its pass."""
        left = len(self._order) - self._position
        if self.even:
            return -(-left // -(-left // batch))
        size = min(batch, left)
        if batch > 1 and left - size == 1:
            if not self.most or size < self.most:
                return size + 1
            return max(2, size - 1)  # two are left for the last one
        return size

    def share(self, batch: int) -> float:
        """The next batch's samples over a usual one's; of a pass smaller than `batch`, over all of it."""
        return self.upcoming(batch) / min(batch, len(self._order))

    def look(self, batch: int) -> np.ndarray:
        """Indices of the next batch, shape (`upcoming`,); it stays the next one."""
        return self._order[self._position : self._position + self.upcoming(batch)]

    def advance(self, samples: int) -> None:
        """So many of the next ones were trained on."""
        self._position += samples
        if self._position == len(self._order):
            self.passes += 1
            self._epoch += 1
            self._shuffle()

    def next(self, batch: int) -> np.ndarray:
        """Indices of the next batch, shape (`upcoming`,)."""
        indices = self.look(batch)
        self.advance(len(indices))
        return indices

    def _shuffle(self) -> None:
        chance = np.random.default_rng((self._seed, self._shard, self._epoch))
        self._order = chance.permutation(self._samples)
        self._position = 0


def fetcher(dataset: Any) -> Callable[[np.ndarray], Any]:
    """A function from indices of shape (n,) to a batch as `default_collate` makes it.

    Tensor data sets are indexed as a whole: item by item, a small model would wait for its data.
    """
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        return lambda indices: [tensor[torch.from_numpy(indices)] for tensor in tensors]
    if type(dataset) is Subset:
        inner = fetcher(dataset.dataset)
        subset = np.asarray(dataset.indices)
        return lambda indices: inner(subset[indices])
    if hasattr(dataset, "__getitems__"):
        return lambda indices: default_collate(dataset.__getitems__(indices.tolist()))
    return lambda indices: default_collate([dataset[index] for index in indices.tolist()])
