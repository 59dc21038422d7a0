"""The order of samples, and batches made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset

from offbeat_core.errors import OffbeatError
from offbeat_worker.batches import Order, fetcher


@given(size=st.integers(1, 200), batch=st.integers(1, 70), seed=st.integers(0, 5))
def test_each_pass_takes_every_sample_once_and_no_batch_is_a_single_one(
    size: int, batch: int, seed: int
) -> None:
    order = Order(size, seed, shard=0)
    for epoch in (1, 2):
        seen: list[int] = []
        while order.passes < epoch:
            indices = order.next(batch)
            assert len(indices) <= batch + 1
            if batch > 1 and size > 1:
                assert len(indices) > 1
            seen.extend(indices)
        assert sorted(seen) == list(range(size))


@given(size=st.integers(4, 200), batch=st.integers(3, 70), bound=st.integers(3, 70))
def test_a_bound_holds_also_where_a_single_sample_would_be_merged(size: int, batch: int, bound: int) -> None:
    order = Order(size, seed=1, shard=0)
    order.most = bound
    seen: list[int] = []
    while order.passes < 1:
        share = order.share(min(batch, bound))
        indices = order.next(min(batch, bound))
        assert 2 <= len(indices) <= bound
        assert share == len(indices) / min(batch, bound, size)
        seen.extend(indices)
    assert sorted(seen) == list(range(size))


def test_what_was_only_looked_at_is_still_the_next_batch() -> None:
    order, other = Order(10, 1, 0), Order(10, 1, 0)
    first = order.look(6).tolist()
    assert first == order.look(6).tolist()
    order.advance(len(order.look(3)))
    assert [*first[:3], *order.next(7)] == other.next(10).tolist()
    assert order.passes == 1


def test_order_depends_on_seed_shard_and_epoch_and_on_nothing_else() -> None:
    def two_passes(seed: int, shard: int) -> list[list[int]]:
        order = Order(50, seed, shard)
        return [order.next(50).tolist() for _ in range(2)]

    assert two_passes(1, 0) == two_passes(1, 0)
    first, second = two_passes(1, 0)
    assert first != second
    assert first != two_passes(2, 0)[0]
    assert first != two_passes(1, 1)[0]


def test_batch_size_may_change_within_a_pass() -> None:
    order = Order(10, 1, 0)
    seen = [*order.next(2), *order.next(5), *order.next(3)]
    assert sorted(seen) == list(range(10))
    assert order.passes == 1


def test_shard_smaller_than_a_batch_is_one_batch() -> None:
    order = Order(3, 1, 0)
    assert sorted(order.next(32)) == [0, 1, 2]
    assert order.passes == 1


def test_empty_shard_is_an_error() -> None:
    with pytest.raises(OffbeatError, match="shard: 4 holds no samples"):
        Order(0, 1, 4)


def test_chosen_samples_are_trained_on_and_the_same_choice_does_not_begin_anew() -> None:
    order = Order(20, 1, 0)
    order.choose([3, 5, 7, 9])
    assert order.size == 4
    first = order.next(2).tolist()
    order.choose([3, 5, 7, 9])
    assert sorted([*first, *order.next(2).tolist()]) == [3, 5, 7, 9]
    order.choose([])
    assert order.size == 20
    with pytest.raises(OffbeatError, match="20 is not in this shard of 20"):
        order.choose([20])


class Items(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([index, index]), "y": torch.tensor(float(index))}


class Several(Items):
    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return [super(Several, self).__getitem__(i) for i in indices]


def test_every_kind_of_data_set_gives_the_same_batch() -> None:
    indices = np.array([4, 1])
    for dataset in (Items(), Several()):
        batch = fetcher(dataset)(indices)
        assert batch["x"].tolist() == [[4, 4], [1, 1]]
        assert batch["y"].tolist() == [4.0, 1.0]
    tensors = TensorDataset(torch.arange(6), torch.arange(6) * 10)
    assert [t.tolist() for t in fetcher(tensors)(indices)] == [[4, 1], [40, 10]]
    subset = Subset(tensors, [5, 3, 1, 0, 2])
    assert [t.tolist() for t in fetcher(subset)(indices)] == [[2, 3], [20, 30]]


@given(st.integers(1, 300), st.integers(1, 64))
def test_an_even_pass_takes_every_sample_once_in_batches_that_differ_by_one(size: int, batch: int) -> None:
    order = Order(size, seed=1, shard=0)
    order.even = True
    taken = []
    while order.passes < 1:
        taken.append(order.next(batch))
    assert sorted(np.concatenate(taken).tolist()) == list(range(size))
    sizes = [len(indices) for indices in taken]
    assert len(sizes) == -(-size // batch)
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1
