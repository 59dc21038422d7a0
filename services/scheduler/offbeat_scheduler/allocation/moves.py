"""Learners move away from their best options, one by one: the least cost of each change of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from offbeat_scheduler.allocation.problem import Floats

MOST = float(np.finfo(float).max)


@dataclass(frozen=True)
class Move:
    """A learner's option, relative to its best one: `gain` updates, `end` samples, and steps from there.

    Each step is one sample less (`down`) or more, at a regret of `per_step`.
    """

    row: int
    gain: int
    end: int
    steps: int
    regret: float
    per_step: float
    down: bool

    @property
    def span(self) -> tuple[int, int]:
        return (self.end - self.steps, self.end) if self.down else (self.end, self.end + self.steps)


@dataclass(frozen=True)
class Table:
    """The least cost for each change of the sum of samples, from `first` on; inf: not reached.

    The cost is the regret, less a prize for each update gained.
    """

    first: int
    costs: Floats

    def cost_of(self, change: int) -> float:
        at = change - self.first
        return float(self.costs[at]) if 0 <= at < len(self.costs) else math.inf

    def plus(self, moves: list[Move], prize: float, most: float, low: int, high: int) -> Table | None:
        """With one learner more: costs of at most `most`, changes from low to high. None: none is left."""
        first = max(low, self.first + min(move.span[0] for move in moves))
        last = min(high, self.first + len(self.costs) - 1 + max(move.span[1] for move in moves))
        if first > last:
            return None
        costs = np.full(last - first + 1, np.inf)
        for move in moves:
            one = _spread(self.costs, move) + (move.regret - prize * move.gain)
            start = self.first + move.span[0]
            begin, end = max(start, first), min(start + len(one), last + 1)
            if begin < end:
                part = costs[begin - first : end - first]
                np.minimum(part, one[begin - start : end - start], out=part)
        reached = np.flatnonzero(costs <= min(most, MOST))
        if not reached.size:
            return None
        costs = costs[reached[0] : reached[-1] + 1]
        if math.isfinite(most):
            costs[costs > most] = np.inf
        return Table(first + int(reached[0]), costs)

    def last_move(self, change: int, moves: list[Move], prize: float) -> tuple[Move, int]:
        """The move of the learner that came after this table on the best way to `change`, and its samples."""
        best: tuple[float, Move, int] | None = None
        for move in moves:
            steps = np.arange(move.steps + 1)
            changes = move.end - steps if move.down else move.end + steps
            at = change - changes - self.first
            inside = (at >= 0) & (at < len(self.costs))
            if inside.any():
                costs = self.costs[at[inside]] + move.per_step * steps[inside]
                number = int(costs.argmin())
                cost = float(costs[number]) + move.regret - prize * move.gain
                if best is None or cost < best[0]:
                    best = cost, move, int(changes[inside][number])
        assert best is not None
        return best[1], best[2]


def _spread(costs: Floats, move: Move) -> Floats:
    """The least cost with 0 to `steps` steps added: for down, min over j of costs[x + j] + j per_step.

    In log2(steps) passes: what 2m samples reach follows from what m reach. Longer than `costs` by
    `steps`, at the low end for down, else at the high one.
    """
    steps = move.steps
    if not steps:
        return costs
    wide = np.concatenate((np.full(steps, np.inf), costs if move.down else costs[::-1]))
    length = 1
    while length <= steps:
        shift = min(length, steps + 1 - length)
        wide[:-shift] = np.minimum(wide[:-shift], wide[shift:] + shift * move.per_step)
        length += shift
    return wide if move.down else wide[::-1]
