"""How much gradients differ from batch to batch: the noise scale that a batch size is chosen by.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162: with G the mean
gradient and Sigma one sample's covariance, B = tr(Sigma) / |G|^2 is the batch beyond which more samples add
little. As Pollux (Qiao et al., OSDI 2021) on a single device, both are estimated from two gradients g1, g2 of
b samples each:

    |G|^2 ~ g1 . g2        tr(Sigma) ~ b (|g1|^2 + |g2|^2 - 2 g1 . g2) / 2

*Ours*: both gradients are of the same model, the halves of one batch. A local update in between
would shift the second one by -lr H g1, and near the largest stable learning rate that is as large as G
itself. So now and then a local update goes through its batch in two halves, and applies the mean of their
gradients, which is the gradient of the whole. What it costs is a step's fixed part once more. Only what a
model does to a batch as a whole (BatchNorm) is done to each half.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from offbeat_worker.flat import FlatModel

FIRST_PAIRS = 8
EVERY, LATER_EVERY = 10, 30
"""Local updates from one pair to the next, while there are fewer than `FIRST_PAIRS`, and from then on."""

LEAST = 4
"""Samples of a batch that is halved at least: BatchNorm can't train on a single one."""

WEIGHT = 0.1
"""Of a new pair in the smoothed estimates."""


class GradientNoise:
    """Estimates of one device's data, smoothed; 0 before the first pair.

    Attributes:
        square: |G|^2; may be negative.
        variance: tr(Sigma).
        pairs: measurements behind both.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self.square = 0.0
        self.variance = 0.0
        self._updates = 0  # since the last pair

    def halves(self, samples: int) -> bool:
        """Is the next local update, of so many samples, to go through them in two halves?"""
        every = EVERY if self.pairs < FIRST_PAIRS else LATER_EVERY
        return samples >= LEAST and self._updates + 1 >= every

    def made(self) -> None:
        """A local update was made whose batch was not halved."""
        self._updates += 1

    def take(self, gradients: tuple[torch.Tensor, torch.Tensor], samples: tuple[int, int]) -> None:
        """A pair: of shape (trainable elements,) each, and over how many samples each is."""
        self._updates = 0
        first, second = gradients
        dots = torch.stack((first.dot(second), first.dot(first), second.dot(second)))
        both, one, other = (float(value) for value in dots.tolist())
        if not math.isfinite(both + one + other):
            return  # the model diverges, or its loss is no number
        # |g|^2 is |G|^2 + tr(Sigma) / b: two equations, one unknown, weighted alike.
        variance = (one + other - 2 * both) / (1 / samples[0] + 1 / samples[1])
        self.pairs += 1
        weight = max(WEIGHT, 1 / self.pairs)  # a plain mean at first
        self.square += weight * (both - self.square)
        self.variance += weight * (variance - self.variance)


def backward(
    flat: FlatModel,
    loss_of: Callable[[np.ndarray], torch.Tensor],
    indices: np.ndarray,
    noise: GradientNoise | None,
) -> torch.Tensor:
    """Put the gradient of these samples' mean loss into `flat.gradient`, which is zero; with `noise`, that is
    measured now and then on the way.

    Args:
        loss_of: the mean loss of the samples with such indices, to be differentiated.
        indices: of the batch, shape (n,).

    Returns:
        The batch's mean loss.
    """
    count = len(indices)
    if noise is None or not noise.halves(count):
        loss = loss_of(indices)
        loss.backward()  # type: ignore[no-untyped-call]
        if noise is not None:
            noise.made()
        return loss
    cut = count // 2
    loss = loss_of(indices[:cut])
    loss.backward()  # type: ignore[no-untyped-call]
    flat.gather_gradients()
    first = flat.gradient.clone()
    flat.gradient.zero_()
    other = loss_of(indices[cut:])
    other.backward()  # type: ignore[no-untyped-call]
    flat.gather_gradients()
    noise.take((first, flat.gradient), (cut, count - cut))
    share = cut / count
    flat.gradient.mul_(1 - share).add_(first, alpha=share)
    return share * loss.detach() + (1 - share) * other.detach()
