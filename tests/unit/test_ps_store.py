"""The store: one vector operation per update, consistent snapshots, no copy without a reader."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.fold import Sums
from offbeat_ps.store import Snapshot, Store

MANIFEST = Manifest((TensorSpec("weight", (3,)),), (TensorSpec("variance", (2,)),))


def make(*values: float) -> Store:
    return Store(MANIFEST, np.array(values or (0, 0, 0, 1, 1), "<f4"))


def vector(*values: float) -> np.ndarray:
    return np.array(values, "<f4")


def test_an_update_is_subtracted_and_buffers_are_blended() -> None:
    store = make(10, 10, 10, 4, 8)
    store.apply(vector(4, 8, -4, 8, 8), 0.25)
    np.testing.assert_array_equal(store.snapshot().values, vector(9, 8, 11, 5, 8))
    assert store.version == 1


def test_a_full_weight_leaves_nothing_of_the_old_buffers() -> None:
    store = make(0, 0, 0, 1e30, 7)
    store.apply(vector(0, 0, 0, 0.1, 0.3), 1.0)
    np.testing.assert_array_equal(store.snapshot().values[3:], vector(0.1, 0.3))


def test_a_positive_variance_stays_positive() -> None:
    store = make(0, 0, 0, 1e-6, 5)
    for weight in (0.5, 0.9, 1.0, 0.1):
        store.apply(vector(0, 0, 0, 1e-9, 1e-3), weight)
        assert (store.snapshot().values[3:] > 0).all()


def test_a_snapshot_stays_what_it_was_while_the_model_goes_on() -> None:
    store = make()
    before = store.snapshot()
    store.apply(vector(1, 1, 1, 1, 1), 1.0)
    after = store.snapshot()
    np.testing.assert_array_equal(before.values[:3], vector(0, 0, 0))
    np.testing.assert_array_equal(after.values[:3], vector(-1, -1, -1))
    assert (before.version, after.version) == (0, 1)


def test_the_model_changes_in_place_when_nobody_holds_it_and_elsewhere_when_somebody_does() -> None:
    store = make()
    home = store._values
    store.apply(vector(1, 1, 1, 1, 1), 0.5)
    assert store._values is home
    held = store.snapshot()
    update = vector(1, 1, 1, 1, 1)
    store.apply(update, 0.5)
    assert store._values is update  # no vector was allocated
    del held
    gc.collect()
    store.snapshot()  # looked at and let go
    home = store._values
    store.apply(vector(1, 1, 1, 1, 1), 0.5)
    assert store._values is home


def test_all_readers_between_two_folds_share_one_snapshot() -> None:
    store = make()
    assert store.snapshot() is not None
    first, second = store.snapshot(), store.snapshot()
    assert first is second


def test_readers_cannot_write() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make().snapshot().values[0] = 1


def test_a_vector_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="4 numbers for a manifest of 5"):
        Store(MANIFEST, np.zeros(4, "<f4"))


def test_a_mean_of_updates_and_buffers_is_exact() -> None:
    store, sums = make(), Sums()
    sums.add(vector(1, 2, 3, 10, 20), 1.0)
    sums.add(vector(3, 2, 1, 30, 20), 3.0)
    store.fold(sums, scale=1 / 4, share=1.0)
    np.testing.assert_array_equal(store.snapshot().values, vector(-2.5, -2, -1.5, 25, 20))
    assert sums.values is None
    assert sums.weight == 0.0


numbers = st.floats(-1e3, 1e3, width=32)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.lists(numbers, min_size=5, max_size=5), st.floats(1, 1000)), min_size=1, max_size=8)
)
def test_a_fold_is_the_weighted_mean(updates: list[tuple[list[float], float]]) -> None:
    store, sums = make(), Sums()
    for values, weight in updates:
        sums.add(vector(*values), weight)
    total = sum(weight for _, weight in updates)
    assert sums.weight == pytest.approx(total)
    store.fold(sums, scale=1 / total, share=1.0)
    mean = np.average([v for v, _ in updates], axis=0, weights=[w for _, w in updates])
    expected = np.concatenate([-mean[:3], mean[3:]])
    np.testing.assert_allclose(store.snapshot().values, expected, rtol=1e-5, atol=2e-3)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["read", "drop", "apply", "add", "fold"]), max_size=40))
def test_no_snapshot_is_ever_half_an_update(events: list[str]) -> None:
    """Every update is constant over the vector: a torn snapshot would hold two different numbers."""
    store = Store(Manifest((TensorSpec("weight", (64,)),)), np.zeros(64, "<f4"))
    sums, held, expected = Sums(), [], {0: 0.0}
    for event in events:
        if event == "read":
            held.append(store.snapshot())
        elif event == "drop" and held:
            held.pop(0)
        elif event == "apply":
            store.apply(np.ones(64, "<f4"), 0.5)
            expected[store.version] = expected[store.version - 1] - 0.5
        elif event == "add":
            sums.add(np.ones(64, "<f4"), 1.0)
        elif event == "fold" and sums.values is not None:
            store.fold(sums, scale=1 / sums.weight, share=1.0)
            expected[store.version] = expected[store.version - 1] - 1.0
        for snapshot in held:
            assert isinstance(snapshot, Snapshot)
            np.testing.assert_allclose(snapshot.values, expected[snapshot.version], atol=1e-5)
