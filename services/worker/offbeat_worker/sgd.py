"""Stochastic gradient descent with momentum, on one flat vector.

The same numbers as `torch.optim.SGD` (without dampening and Nesterov), in a handful
of operations whatever the number of tensors. Rates come with each step, because a
directive may change them at any time; the momentum stays, also across a pull.

One difference: a tensor that a batch does not touch has a gradient of 0 here, none there,
so its momentum and weight decay go on.
"""

from __future__ import annotations

import torch

from offbeat_worker.flat import FlatModel


class FlatSGD:
    """Updates `flat.parameters` from `flat.gradient`, and zeroes that."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._velocity: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._flat.gather_gradients()
        gradient, parameters = self._flat.gradient, self._flat.parameters
        if weight_decay:
            gradient.add_(parameters, alpha=weight_decay)
        update = gradient
        if momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(gradient)
            update = self._velocity.mul_(momentum).add_(gradient)
        parameters.add_(update, alpha=-learning_rate)
        gradient.zero_()
        self._flat.publish()

    def forget(self) -> None:
        """Drop momentum and gradients: after an update that was refused, they may hold NaN."""
        self._velocity = None
        self._flat.gradient.zero_()

    def drop(self) -> None:
        """Drop what a backward pass that broke off has left."""
        self._flat.gather_gradients()
        self._flat.gradient.zero_()
