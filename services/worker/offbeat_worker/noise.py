"""How much gradients differ from batch to batch: the noise scale that a batch size is chosen by.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv 1812.06162: with G the mean
gradient and Sigma one sample's covariance, B = tr(Sigma) / |G|^2 is the batch beyond which more samples add
little. As Pollux (Qiao et al., OSDI 2021) on a single device, both are estimated from two gradients g1, g2 of
b samples each:

    |G|^2 ~ g1 . g2        tr(Sigma) ~ b (|g1|^2 + |g2|^2 - 2 g1 . g2) / 2

*Ours*: both gradients are of the same model. A local update in between shifts the second one
by -lr H g1, and near the largest stable learning rate that is as large as G itself. So at every tenth local
update the gradient is kept back and applied together with the next one (`sgd.py`); no work is
done twice. Where a commit or a fresh model comes between the two, the next local update begins another pair;
so a device for which that is so after every local update measures nothing.
"""

from __future__ import annotations

import math

import torch

from offbeat_worker.sgd import FlatSGD

EVERY = 10
"""Local updates from one pair to the next."""

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
        self._updates = 0  # since the last pair began
        self._samples = 0  # of the first gradient

    def begins(self) -> bool:
        """Is the gradient of the local update that was just computed the first of a pair?"""
        self._updates += 1
        return self._updates >= EVERY

    def keep(self, samples: int) -> None:
        """It is, of so many samples."""
        self._samples = samples

    def take(self, first: torch.Tensor, second: torch.Tensor, samples: int) -> None:
        """Both gradients of a pair, shape (trainable elements,); the second of `samples` samples."""
        self._updates = 1
        dots = torch.stack((first.dot(second), first.dot(first), second.dot(second)))
        both, one, other = (float(value) for value in dots.tolist())
        if not math.isfinite(both + one + other) or not self._samples or not samples:
            return  # the model diverges, or its loss is no number
        # |g|^2 is |G|^2 + tr(Sigma) / b: two equations, one unknown, weighted alike.
        variance = (one + other - 2 * both) / (1 / self._samples + 1 / samples)
        self.pairs += 1
        weight = max(WEIGHT, 1 / self.pairs)  # a plain mean at first
        self.square += weight * (both - self.square)
        self.variance += weight * (variance - self.variance)


def descend(sgd: FlatSGD, noise: GradientNoise | None, samples: int, how: tuple[float, float, float]) -> None:
    """Apply the gradient of the last backward pass, over `samples` samples; with `noise`, measure it
    now and then on the way. `how`: learning rate, momentum, weight decay."""
    if noise is not None:
        if sgd.kept is not None:
            noise.take(sgd.kept, sgd.gathered(), samples)
        elif noise.begins():
            noise.keep(samples)
            sgd.keep(*how)
            return
    sgd.step(*how)
