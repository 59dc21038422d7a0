"""Samples that the parameter server deals to a learner which holds none of its own.

A new generation's samples are asked for only once those of the last one are let go, so
that the learner never holds more than it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import TensorDataset

from offbeat_core.samples import Layout


@dataclass(frozen=True)
class Wanted:
    """Fetch so many samples, those of this generation. Answered by Given."""

    run_id: str
    generation: int
    count: int


@dataclass(frozen=True)
class Given:
    """The samples of a generation."""

    run_id: str
    generation: int
    layout: Layout
    data: np.ndarray = field(repr=False)  # uint8, (layout.total_bytes,); taken over


class Supply:
    """Which samples a learner has, and which it waits for."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._wanted: Wanted | None = None
        self._asked = False
        self.dataset: TensorDataset | None = None
        self._generation: int | None = None  # of the data set

    def follow(self, generation: int, count: int) -> bool:
        """A directive deals it samples. Returns whether they are others than those that it has or waits for.

        Those that it has are let go then.
        """
        known = self._wanted.generation if self._wanted else self._generation
        if known == generation:
            return False
        self.drop()
        self._wanted = Wanted(self._run_id, generation, count)
        return True

    def drop(self) -> None:
        """Let go of what it has, and wait for nothing."""
        self.dataset = self._generation = self._wanted = None
        self._asked = False

    def ask(self) -> Wanted | None:
        """What is to be fetched; once."""
        if self._wanted is None or self._asked:
            return None
        self._asked = True
        return self._wanted

    def take(self, given: Given) -> TensorDataset | None:
        """The samples have come; None if they are not those that it waits for."""
        if self._wanted is None or given.generation != self._wanted.generation:
            return None
        self.dataset = TensorDataset(*_tensors(given))
        self._generation, self._wanted = given.generation, None
        return self.dataset


def _tensors(given: Given) -> list[torch.Tensor]:
    """One of shape (samples, ...) per field: views into the bytes that came."""
    arrays = zip(given.layout.fields, given.layout.arrays(given.data), strict=True)
    return [
        torch.from_numpy(array).view(torch.bfloat16) if spec.dtype == "bfloat16" else torch.from_numpy(array)
        for spec, array in arrays
    ]
