"""A fast device keeps its own speed beside slow ones."""

import os

import pytest

from benchmarks import beside


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="two cores are needed: one for the fast worker, one for all else",
)
def test_the_fastest_device_makes_as_many_steps_beside_slower_ones_as_alone() -> None:
    """Steps per wall second, counted from outside; windows in turn, so that a drift hits both alike."""
    found = beside.measure(rounds=5, window_s=4.0, at_most=15)
    assert found["ratio"] >= beside.LIMIT, found
