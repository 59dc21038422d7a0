"""Samples with a given sum, within bounds and near a wish: in whole numbers, and in real ones.

The nearest point is clip(wish + shift, low, high) with one shift for all, found by bisection.
"""

from __future__ import annotations

import numpy as np

from offbeat_scheduler.allocation.problem import Floats, Ints

RESOLUTION = 1e-6
"""Of the shift, in samples: within it no learner's floor rises by more than 1."""


def apportion(wish: Floats, low: Ints, high: Ints, total: int) -> Ints:
    """Whole d_k with low <= d_k <= high and sum `total`, near `wish`: all of shape (K,).

    What rounding down leaves goes to the largest fractions. Requires sum(low) <= total <= sum(high).
    """
    least, most = float((low - wish).min()), float((high - wish).max())
    while most - least > RESOLUTION and least < (middle := (least + most) / 2) < most:
        if np.floor(np.clip(wish + middle, low, high)).sum() <= total:
            least = middle
        else:
            most = middle
    shifted = np.clip(wish + least, low, high)
    samples = np.floor(shifted).astype(np.int64)
    by_fraction = np.argsort(samples - shifted, kind="stable")
    with_room = by_fraction[(samples < high)[by_fraction]]
    samples[with_room[: total - int(samples.sum())]] += 1
    return samples


def level(wish: Floats, low: Ints, high: Ints, total: int) -> Floats:
    """As `apportion`, in real numbers."""
    least, most = float((low - wish).min()), float((high - wish).max())
    while least < (middle := (least + most) / 2) < most:
        if np.clip(wish + middle, low, high).sum() <= total:
            least = middle
        else:
            most = middle
    return np.clip(wish + least, low, high)
