"""How each learner spends the cycle under a plan: what the table and the plot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Cycle:
    """Of K learners; arrays of shape (K,).

    Args:
        title: what was planned, for a heading.
        cycle_s: T, seconds.
        names: of the learners.
        samples, updates: d_k and tau_k; whole numbers, or real ones.
        transfer_s, compute_s: seconds of the cycle; what is left is idle.
        max_staleness, average_staleness: in updates, over pairs of learners.
        solve_s: seconds that solving took.
        note: what a person should know of it; empty: nothing.
        energy_share: of its joules per cycle, what each learner uses; nan: it has no limit.
    """

    title: str
    cycle_s: float
    names: Sequence[str]
    samples: npt.NDArray[Any]
    updates: npt.NDArray[Any]
    transfer_s: Floats
    compute_s: Floats
    max_staleness: float
    average_staleness: float
    solve_s: float
    note: str
    energy_share: Floats

    @property
    def busy_s(self) -> Floats:
        return self.transfer_s + self.compute_s

    @property
    def idle_s(self) -> Floats:
        """Not below 0: in floats a full cycle may end a little after itself."""
        return np.maximum(self.cycle_s - self.busy_s, 0.0)

    @property
    def idle_share(self) -> Floats:
        return self.idle_s / self.cycle_s
