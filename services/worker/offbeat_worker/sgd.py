"""Stochastic gradient descent with momentum, on one flat vector.

The same numbers as `torch.optim.SGD` (without dampening and Nesterov), in a handful
of operations whatever the number of tensors. Rates come with each step, because a
directive may change them at any time; the momentum stays, also across a pull.

One difference: a tensor that a batch does not touch has a gradient of 0 here, none there,
so its momentum and weight decay go on.

A gradient may be kept back and applied with the next step, so that two gradients of the same
model can be compared (`noise.py`); nothing of it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from offbeat_worker.flat import FlatModel


@dataclass(frozen=True)
class _Kept:
    """A gradient that is still to be applied, and how."""

    gradient: torch.Tensor = field(repr=False)
    learning_rate: float
    momentum: float
    weight_decay: float


class FlatSGD:
    """Updates `flat.parameters` from `flat.gradient`, and zeroes that."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat
        self._velocity: torch.Tensor | None = None
        self._kept: _Kept | None = None

    @property
    def kept(self) -> torch.Tensor | None:
        """The gradient that is kept back, shape (trainable elements,)."""
        return self._kept.gradient if self._kept is not None else None

    def gathered(self) -> torch.Tensor:
        """The gradient of the last backward pass, not yet applied: shape (trainable elements,)."""
        self._flat.gather_gradients()
        return self._flat.gradient

    @torch.no_grad()
    def keep(self, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        """Keep the gradient back; it is applied before the next one, or by `flush`."""
        self.flush()
        self._kept = _Kept(self.gathered().clone(), learning_rate, momentum, weight_decay)
        self._flat.gradient.zero_()

    @torch.no_grad()
    def flush(self) -> bool:
        """Apply what is kept back; call it before the model is read or replaced. False: nothing was."""
        kept, self._kept = self._kept, None
        if kept is None:
            return False
        self._apply(kept.gradient, kept.learning_rate, kept.momentum, kept.weight_decay)
        self._flat.publish()
        return True

    @torch.no_grad()
    def step(self, learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self._flat.gather_gradients()
        self.flush()
        self._apply(self._flat.gradient, learning_rate, momentum, weight_decay)
        self._flat.gradient.zero_()
        self._flat.publish()

    def _apply(
        self, gradient: torch.Tensor, learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        """May change `gradient`."""
        parameters = self._flat.parameters
        if weight_decay:
            gradient.add_(parameters, alpha=weight_decay)
        if momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(gradient)
            update = self._velocity.mul_(momentum).add_(gradient)
        else:
            update = gradient
        parameters.add_(update, alpha=-learning_rate)

    def forget(self) -> None:
        """Drop momentum and gradients: after an update that was refused, they may hold NaN."""
        self._velocity = None
        self._kept = None
        self._flat.gradient.zero_()

    def drop(self) -> None:
        """Drop what a backward pass that broke off has left; what is kept back stays."""
        self._flat.gather_gradients()
        self._flat.gradient.zero_()
