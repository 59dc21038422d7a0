"""The accumulated update, and how a fresh model is taken over without losing a step.

The source's U is the sum of learning rate * gradient over the local steps since the
last pull, so U = base - local, where base is the model that they started from
(Hu, Wang, Wu, AAAI 2020; `docs/adsp.md`). A commit travels while training goes on:

    cut:    U = base - local goes out;  base <- local (the copy of what was sent)
    step:   local moves on; base - local is now what was done in flight
    merge:  local <- W + (local - base);  base <- W   when the fresh W arrives

Between any two operations base - local is exactly the update that nobody has been
sent yet, in flight or not; so each step is in one U and in one only, and the copy
needs no third vector. Momentum is not touched: it is kept across a pull.

Floating buffers (BatchNorm's statistics) go out as they are and are taken over as
they come, never as differences: a sum of differences could make a variance negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat_worker.flat import FlatModel


@dataclass(frozen=True)
class Pending:
    """What lies in base - local."""

    steps: int = 0
    samples: int = 0
    loss_sum: float = 0.0  # over the steps whose loss was finite
    loss_count: int = 0

    @property
    def mean_loss(self) -> float:
        return self.loss_sum / self.loss_count if self.loss_count else 0.0


class Accumulator:
    """Keeps base and the wire's buffer beside a flat model.

    Args:
        flat: its `vector` holds the trainable tensors and the buffers, float32.
        max_lone_steps: without a fresh model for so many steps the update stops
            growing: n > max steps count as max, by scaling their sum with max / n. An
            hour of lone drift is not progress, but its direction is worth keeping. 0: no bound.
    """

    def __init__(self, flat: FlatModel, max_lone_steps: int = 0) -> None:
        self._flat = flat
        self.max_lone_steps = max_lone_steps
        self._base = flat.parameters.clone()
        self._wire = torch.empty(
            flat.vector.numel(), dtype=torch.float32, pin_memory=flat.vector.device.type == "cuda"
        )
        self._lone = 0  # steps in base - local, those beyond the bound not counted
        self.pending = Pending()
        self.in_flight: Pending | None = None
        self.steps_since_pull = 0
        self.shrunk = 0  # how often the bound on lone steps scaled an update

    def stepped(self, samples: int, loss: float, *, finite: bool = True) -> None:
        """A local update was made, of `samples` samples."""
        before = self.pending
        self.pending = Pending(
            before.steps + 1,
            before.samples + samples,
            before.loss_sum + (loss if finite else 0.0),
            before.loss_count + finite,
        )
        self._lone += 1
        self.steps_since_pull += 1

    def cut(self) -> torch.Tensor:
        """Take the update out: a CPU vector of shape (elements,), U and then the buffers.

        It is overwritten by the next cut, so only one may be in flight.
        """
        if self.in_flight is not None:
            raise RuntimeError("a commit is in flight already")
        self._shrink()
        local, base, wire = self._flat.parameters, self._base, self._wire
        n = local.numel()
        if local.device.type == "cpu":
            torch.sub(base, local, out=wire[:n])
        else:
            wire[:n].copy_(base.sub_(local))
        base.copy_(local)
        self._flat.gather_buffers()
        wire[n:].copy_(self._flat.buffers)
        self.in_flight, self.pending = self.pending, Pending()
        self._lone = 0
        return wire

    def merge(self, fresh: torch.Tensor) -> None:
        """Take over the fresh model, of shape (elements,), and carry over what was done meanwhile.

        Ends the flight, if there was one. Without one this rebases what is pending. `fresh`
        belongs to the accumulator from here on: on a CPU it becomes the new base, uncopied.
        """
        self._shrink()
        local = self._flat.parameters
        n = local.numel()
        parameters = fresh[:n].to(local.device)
        # In this order: without steps in flight, local is the fresh model to the last bit.
        local.sub_(self._base).add_(parameters)
        self._base = parameters
        self._flat.load_buffers(fresh[n:])
        self._flat.publish()
        self._landed(self.pending.steps)

    def replace(self, fresh: torch.Tensor) -> int:
        """Take the fresh model and drop what was refused, with the steps made on top of it.

        Returns how many steps were dropped.
        """
        dropped = self.pending.steps + (self.in_flight.steps if self.in_flight else 0)
        self._flat.load(fresh)
        self._base.copy_(self._flat.parameters)
        self.pending = Pending()
        self._lone = 0
        self._landed(0)
        return dropped

    def _landed(self, steps: int) -> None:
        self.in_flight = None
        self.steps_since_pull = steps

    def _shrink(self) -> None:
        """Scale base - local so that it weighs no more than `max_lone_steps` steps."""
        bound = self.max_lone_steps
        if not bound or self._lone <= bound:
            return
        self._flat.parameters.sub_(self._base).mul_(bound / self._lone).add_(self._base)
        self._flat.publish()
        self._lone = bound
        self.shrunk += 1
