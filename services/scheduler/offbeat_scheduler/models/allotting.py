"""One cycle's allocation, from what is known of its learners; for the models of `mel.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from offbeat_scheduler.allocation import Allocation, Integer, Problem, Scheme, solve

MOST_FULL_CYCLE = 200
"""The full-cycle rule may take seconds for a thousand learners, in which the scheduler hears nobody."""

MOST_PASSES = 2000
"""Where a learner could make more passes than this, the full-cycle rule has too many ways to choose from;
with so many passes the maximal rule leaves next to no time idle."""


@dataclass(frozen=True)
class Part:
    """A learner's coefficients (seconds) and the least and the most samples that it may be allotted."""

    compute_s: float  # C2
    transfer_s: float  # C1
    fixed_s: float  # C0
    least: int
    most: int

    def room_s(self, cycle_s: float) -> float:
        """Of the cycle, what the model's transfer leaves."""
        return max(0.0, cycle_s - self.fixed_s)

    def fitting(self, cycle_s: float) -> int:
        """Samples on which it makes at least one update in a cycle."""
        fit = self.room_s(cycle_s) / (self.compute_s + self.transfer_s)
        return min(int(fit + 1e-9), self.most)

    def passes(self, cycle_s: float) -> float:
        """Updates that it could make on its least samples."""
        room_s = self.room_s(cycle_s) - self.transfer_s * self.least
        return room_s / (self.compute_s * self.least)


def allocate(
    parts: Mapping[str, Part], cycle_s: float, wanted: int, scheme: Scheme, integer: Integer
) -> Allocation:
    """Samples and passes by learner.

    Args:
        wanted: d. Where bounds or the cycle's length don't allow so many or so few, as near as they do: more
            would leave the whole fleet without an allocation.
    """
    low = np.array([part.least for part in parts.values()])
    problem = Problem(
        names=tuple(parts),
        compute=np.array([part.compute_s for part in parts.values()]),
        transfer=np.array([part.transfer_s for part in parts.values()]),
        fixed=np.array([part.fixed_s for part in parts.values()]),
        min_samples=low,
        max_samples=np.array([part.most for part in parts.values()]),
        samples=max(int(low.sum()), min(wanted, sum(part.fitting(cycle_s) for part in parts.values()))),
        cycle_s=cycle_s,
    )
    passes = max(part.passes(cycle_s) for part in parts.values())
    if len(parts) > MOST_FULL_CYCLE or passes > MOST_PASSES:
        integer = "maximal"
    found = solve(problem, scheme, integer, clock=_no_clock)
    # Windows of the full-cycle rule may leave gaps, and equal samples may break a bound.
    return found if found.feasible else solve(problem, "async", "maximal", clock=_no_clock)


def filling(parts: Mapping[str, Part], cycle_s: float, goal: float) -> int:
    """A d with which everybody can work the full cycle: the same tau for all, and one more for whom the
    samples that it may have don't fill the cycle with it. Of these, the nearest to `goal`. For samples that
    don't travel."""
    high = np.array([part.most for part in parts.values()], float)
    room = np.array([part.room_s(cycle_s) / part.compute_s for part in parts.values()])
    needed = np.maximum(np.ceil(room / high), 1.0)

    def total(tau: int) -> int:
        return int(np.floor(room / np.maximum(tau, needed) + 1e-9).sum())

    low, high_tau = 1, 2 + int(room.sum() / goal)  # total(high_tau) < goal
    while high_tau - low > 1:
        middle = (low + high_tau) // 2
        low, high_tau = (middle, high_tau) if total(middle) >= goal else (low, middle)
    return max(1, min((total(low), total(high_tau)), key=lambda d: abs(d - goal)))


def _no_clock() -> float:
    """A plan must not depend on how long it took to make."""
    return 0.0
