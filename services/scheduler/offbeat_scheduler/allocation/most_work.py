"""One option per learner, samples that sum to d: the most updates, and of these choices the most work. Exact.

Learner k has an option per number of updates t: any d_k from lo to hi samples. Wanted is the largest sum of
updates t, or of work t d_k, or of work among the choices with N updates in sum.

**Bound.** With a price p on a sample and q on an update, learner k alone can't do better than u_k = max(worth
- p d_k - q t), so no choice with d samples and N updates is worth more than U = sum u_k + p d + q N. (p, q)
are chosen to make U small. What a learner's option falls short of u_k is its regret, and a choice is worth U
minus its regrets.

**Core.** Most learners take their option without regret. For a core of learners, those to whom another option
costs least, dynamic programming over the sum of samples finds the best choice. Worths are whole numbers: if
the choice is worth more than U - 1, none is better. Otherwise the core grows, up to all learners with a
regret that is not greater than the sum of the best choice's: there can't be a better choice outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offbeat_scheduler.allocation.moves import MOST, Move, Table
from offbeat_scheduler.allocation.problem import Floats, Ints

FEW = 64
FIRST_CORE = 24
CORE_GROWS = 4
PRICE_RESOLUTION = 1e-10
FEE_RESOLUTION = 1e-3


@dataclass(frozen=True)
class Options:
    """Of K learners: numbers of updates (n,), lo and hi (n, K), no option where lo > hi; d in total."""

    updates: Ints
    lo: Ints
    hi: Ints
    total: int


@dataclass(frozen=True)
class Choice:
    """Updates and samples of each learner, (K,)."""

    updates: Ints
    samples: Ints

    @property
    def updates_sum(self) -> int:
        return int(self.updates.sum())

    @property
    def work(self) -> int:
        return int(self.updates @ self.samples)


def most_updates(options: Options) -> Choice:
    """A choice with the largest sum of updates. There must be one that sums to d."""
    return _Search(options, Worth(0, 1)).best()


def most_work(options: Options, most: Choice | None = None) -> Choice:
    """A choice with the largest sum of t d_k; with one of the most updates given, among those with as many.

    An update is then worth so much work that a choice with fewer can't be as good. For a few learners that
    may be the most by which works differ. Of many that would leave few choices without regret; so a
    good one is found first, with a second price, on updates, and it tells how little is enough.
    """
    if most is None:
        return _Search(options, Worth(1, 0)).best()
    if options.lo.shape[1] <= FEW:
        return _Search(options, Worth(1, _range_of_work(options) + 1)).best(most)
    first = _Search(options, Worth(1, 0), most.updates_sum)
    found = first.in_cores(most)
    short = first.bound - found.work
    if short < 1 - first.fuzz:
        return found
    return _Search(options, Worth(1, max(0, math.ceil(short - first.fee)) + 1)).best(found)


def _range_of_work(options: Options) -> int:
    real, updates = options.lo <= options.hi, options.updates[:, None]
    most = np.where(real, updates * options.hi, 0).max(axis=0)
    least = np.where(real, updates * options.lo, np.iinfo(np.int64).max).min(axis=0)
    return int((most - least).sum())


@dataclass(frozen=True)
class Worth:
    """What a choice is worth: so much per sample and update, and so much per update."""

    per_work: int
    per_update: int

    def of(self, choice: Choice) -> int:
        return self.per_work * choice.work + self.per_update * choice.updates_sum


class _Search:
    """Of the choices with d samples, and with so many updates in sum if a number is given."""

    def __init__(self, options: Options, worth: Worth, updates_sum: int | None = None) -> None:
        self._options = options
        self._worth = worth
        self._updates_sum = updates_sum
        self._real = options.lo <= options.hi
        self._learners = np.arange(options.lo.shape[1])
        self._t = options.updates.astype(float)[:, None]
        self._price, self.fee = self._prices()
        value, self._ends, self._margin = self._alone(self._price, self.fee)
        self._regret = value.max(axis=0) - value
        self.bound = float(
            value.max(axis=0).sum() + self._price * options.total + self.fee * (updates_sum or 0)
        )
        # Of a sum of that many numbers; far below 1, by which worths differ.
        self.fuzz = min(0.1, 1e-6 + 1e-14 * float(np.abs(value.max(axis=0)).sum()))
        self._row = self._best_rows(value)
        self._base = self._ends[self._row, self._learners]
        self._missing = options.total - int(self._base.sum())

    # ---- the bound ----------------------------------------------------------------

    def _alone(self, price: float, fee: float) -> tuple[Floats, Ints, Floats]:
        """The value of each option to its learner and the samples that make it, (n, K); and what a sample
        more is worth to it, (n,)."""
        margin = self._worth.per_work * self._t - price
        ends = np.where(margin >= 0, self._options.hi, self._options.lo)
        value = np.where(self._real, margin * ends + (self._worth.per_update - fee) * self._t, -np.inf)
        return value, ends, margin[:, 0]

    def _wanted(self, price: float, fee: float) -> tuple[int, int]:
        """The samples and updates that the learners alone choose, in sum."""
        value, ends, _ = self._alone(price, fee)
        row = value.argmax(axis=0)
        return int(ends[row, self._learners].sum()), int(self._options.updates[row].sum())

    def _prices(self) -> tuple[float, float]:
        """Prices near those of the least bound. Any are right; the best save the most search."""
        if (wanted := self._updates_sum) is None:
            return self._price_at(0.0)[0], 0.0
        # Beyond this fee nobody looks at samples any more.
        most = 2.0 * float(self._t.max()) * float(np.where(self._real, self._options.hi, 0).max())
        fee = _crossing(lambda fee: self._price_at(fee)[1] >= wanted, -most, most, FEE_RESOLUTION)
        return self._price_at(fee)[0], fee

    def _price_at(self, fee: float) -> tuple[float, float]:
        """The price at which d samples are wanted, and how many updates then are, fractions included."""
        total = self._options.total
        top = float(self._t.max()) + 1
        step = 1.0
        while self._wanted(top - step, fee)[0] < total and step < 1e15:
            step *= 4
        price = _crossing(
            lambda price: self._wanted(price, fee)[0] >= total, top - step, top, PRICE_RESOLUTION
        )
        more, updates = self._wanted(price, fee)
        less, updates_less = self._wanted(_just_above(price), fee)
        part = min(1.0, max(0.0, (more - total) / (more - less))) if more > less else 0.0
        return price, updates + part * (updates_less - updates)

    def _best_rows(self, value: Floats) -> Ints:
        """Each learner's best option; of two that are equal the one that leaves little missing to d."""
        rows = value.argmax(axis=0)
        other = self._alone(_just_above(self._price), self.fee)[0].argmax(axis=0)
        fewer = self._ends[rows, self._learners] - self._ends[other, self._learners]
        excess = int(self._ends[rows, self._learners].sum()) - self._options.total
        switched = (fewer > 0) & (np.cumsum(np.maximum(fewer, 0)) <= excess)
        return np.where(switched, other, rows)

    # ---- the search ---------------------------------------------------------------

    def best(self, found: Choice | None = None) -> Choice:
        """The best choice; `found` is one that is known."""
        core = FIRST_CORE
        while True:
            regret = math.inf if found is None else self.bound - self._worth.of(found)
            movable = self._movable(regret)
            if found is not None and (regret < 1 - self.fuzz or not movable.size):
                return found
            found = self._better(found, self._with(movable[:core], regret))
            if core >= movable.size:
                assert found is not None, "no choice sums to d"
                return found
            core *= CORE_GROWS

    def in_cores(self, found: Choice) -> Choice:
        """A good choice with the given sum of updates, if `found`, which has it, is not the best one seen."""
        for core in (FIRST_CORE, FIRST_CORE * CORE_GROWS):
            if (regret := self.bound - self._worth.of(found)) >= 1 - self.fuzz:
                found = self._better(found, self._with(self._movable(regret)[:core], regret)) or found
        return found

    def _better(self, one: Choice | None, other: Choice | None) -> Choice | None:
        if one is None or other is None:
            return one or other
        return other if self._worth.of(other) > self._worth.of(one) else one

    def _movable(self, regret: float) -> Ints:
        """The learners that can do something else at a regret of at most so much, the least first."""
        other = self._regret.copy()
        stretch = self._options.lo < self._options.hi
        own = self._row, self._learners
        other[own] = np.where(stretch[own], np.abs(self._margin[self._row]), np.inf)
        least = other.min(axis=0)
        order = np.argsort(least, kind="stable")
        return order[least[order] <= min(regret + self.fuzz, MOST)]

    def _with(self, core: Ints, regret: float) -> Choice | None:
        """The best choice in which only the core moves, by regrets that sum to at most so much."""
        moves = [self._moves(k, regret) for k in core.tolist()]
        # Where a sum of updates is wanted, an update more outweighs all regrets.
        prize = 0.0
        if self._updates_sum is not None:
            prize = 1 + 2 * sum(max(one.regret + one.steps * one.per_step for one in some) for some in moves)
            regret = math.inf
        limit = regret + self.fuzz
        least = [min(one.span[0] for one in some) for some in moves]
        most = [max(one.span[1] for one in some) for some in moves]
        left_least, left_most = sum(least), sum(most)
        tables = [Table(0, np.zeros(1))]
        for some, low, high in zip(moves, least, most, strict=True):
            left_least, left_most = left_least - low, left_most - high
            useful = self._missing - left_most, self._missing - left_least
            if (table := tables[-1].plus(some, prize, limit, *useful)) is None:
                return None
            tables.append(table)
        if not math.isfinite(tables[-1].cost_of(self._missing)):
            return None
        row, samples, at = self._row.copy(), self._base.copy(), self._missing
        for k, some, before in zip(core.tolist()[::-1], moves[::-1], tables[-2::-1], strict=True):
            move, change = before.last_move(at, some, prize)
            row[k], samples[k], at = move.row, samples[k] + change, at - change
        choice = Choice(self._options.updates[row], samples)
        return choice if self._updates_sum in (None, choice.updates_sum) else None

    def _moves(self, k: int, regret: float) -> list[Move]:
        """What learner k may do, its best included."""
        options = self._options
        moves = []
        for row in np.flatnonzero(self._regret[:, k] <= min(regret + self.fuzz, MOST)).tolist():
            margin = float(self._margin[row])
            steps = int(options.hi[row, k] - options.lo[row, k])
            if margin:
                steps = int(min(steps, max(0.0, regret + self.fuzz - self._regret[row, k]) / abs(margin)))
            moves.append(
                Move(
                    row=row,
                    gain=int(options.updates[row] - options.updates[self._row[k]]),
                    end=int(self._ends[row, k] - self._base[k]),
                    steps=steps,
                    regret=float(self._regret[row, k]),
                    per_step=abs(margin),
                    down=margin >= 0,
                )
            )
        return moves


def _crossing(holds: Callable[[float], bool], low: float, high: float, resolution: float) -> float:
    """About the largest number for which it holds: at `low` it does, at `high` not."""
    while high - low > resolution and low < (middle := (low + high) / 2) < high:
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _just_above(price: float) -> float:
    return price + 2 * PRICE_RESOLUTION + 1e-12 * abs(price)
