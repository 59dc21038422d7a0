"""When updates enter the model, and with what weight.

`Fold` decides; `Sums` holds Σ w·U while updates wait for their fold.

The invariant: over one commit of each active worker, all made while the set of active
workers does not change, the weights sum to at most 1 (at the gate: over one fold of each
group, whoever is in it). At 2/M and 3/M training never reached its target, so nothing here
can be configured to exceed it; a `server_rate` or the staleness can only make updates count
for less.

Across a change of the set it does not hold, for an update that is in the model cannot
be weighed anew: w1 alone commits at weight 1, w2 joins and commits at 1/2, and the last
commits of the two sum to 1.5, once. No single weight exceeds 1, so M workers' last
commits never sum to more than M; and as soon as each active worker has committed
since the change, they sum to at most 1 again.

| when | weight of an update | normalised |
|---|---|---|
| at once | rate · share · d | on arrival |
| every K | share · min(1, rate · M/K) · d: with equal weights rate/K, at most 1/M | on arrival |
| at the gate | rate · G · m d / Σ m over those that arrived | at the fold |

m is what the rule measures of an update: 1 (equal), the samples behind it (samples), the
samples that the device holds (data), or 1 / its local updates (per step). A worker's share
is its m out of the active workers' (equal: 1/M). G is the share of the group whose gate it
is, the sum of its members' shares; the only gate's is 1. d = (1 + staleness)^-p <= 1; at the
gate the sum below the line is without d, so that there too it only lowers.

Per step is FedNova's rule (Wang et al., "Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization", NeurIPS 2020) for equal devices: W <- W - tau_eff Σ (1/M)
U_i/tau_i, so that a device that made more local updates pulls the model no further
towards its own data. The weights tau_eff/(M tau_i) sum to tau_eff · mean(1/tau), which is above 1 for
their tau_eff, the arithmetic mean; ours is the harmonic mean, with which they are
(1/tau_i) / Σ_j (1/tau_j) and sum to 1.

The weights of "at once" and "every K" are fixed on arrival, so that the
acknowledgement, which leaves before the fold, can name them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import dataclass
from enum import Enum

import numpy as np

SMALLEST = 1e-30
"""The least that staleness makes of a weight."""


class When(Enum):
    AT_ONCE = "at_once"
    EVERY_K = "every_k"
    AT_GATE = "at_gate"


class Weight(Enum):
    EQUAL = "equal"
    SAMPLES = "samples"
    DATA = "data"
    PER_STEP = "per_step"


@dataclass(frozen=True)
class FoldRule:
    """What the scheduler asks for. `server_rate` is taken as at most 1 (every K: at most K/M)."""

    when: When = When.AT_ONCE
    weight: Weight = Weight.EQUAL
    every_k: int = 0
    server_rate: float = 1.0
    staleness_power: float = 0.0

    def __post_init__(self) -> None:
        if self.when is When.EVERY_K and self.every_k < 1:
            raise ValueError(f"fold.every_k: {self.every_k} is not positive; give 1 or more commits per fold")
        if not 0 < self.server_rate < math.inf:
            raise ValueError(f"fold.server_rate: {self.server_rate} is not a positive number")
        if not 0 <= self.staleness_power < math.inf:
            raise ValueError(f"fold.staleness_power: {self.staleness_power} is not a number of 0 or more")


class Shares:
    """Each worker's share of the fleet's measure, such that the shares in force never sum to more than 1.

    A worker's share is m_i / Σ m with the m of everybody's last commit. While these change,
    the shares of successive commits could sum to more than 1; so each active worker
    keeps what it took last, and another takes no more than what that leaves. When the
    set of active workers changes, all shares are set anew.
    """

    def __init__(self) -> None:
        self._measures: dict[str, float] = {}
        self._taken: dict[str, float] = {}

    def note(self, worker: str, measure: float) -> None:
        """The measure of the worker's newest commit; its share follows when it is claimed."""
        if measure > 0:
            self._measures[worker] = measure

    def claim(self, worker: str, measure: float, active: Set[str]) -> float:
        """The share of `worker`'s commit of this measure; `active` contains the worker."""
        if measure <= 0:
            return 0.0  # takes nothing, so that its share is still there for its next commit
        self._measures[worker] = measure
        return self.claim_all((worker,), active)

    def claim_all(self, workers: Collection[str], active: Set[str]) -> float:
        """The shares of all `workers`, a part of `active`, together; somebody's measure is known."""
        if not self._measures.keys() <= active:
            self._measures = {name: m for name, m in self._measures.items() if name in active}
        typical, total = self._measure(active)
        if self._taken.keys() != active:
            self._taken = {name: self._measures.get(name, typical) / total for name in active}
        free = max(0.0, 1.0 - sum(self._taken.values()) + sum(self._taken[name] for name in workers))
        together = 0.0
        for name in workers:
            share = min(self._measures.get(name, typical) / total, free - together)
            self._taken[name] = max(0.0, share)
            together += self._taken[name]
        return together

    def _measure(self, active: Set[str]) -> tuple[float, float]:
        """(mean measure of those known, measure of all: who has not committed yet counts as the mean)."""
        known = self._measures.values()
        typical = math.fsum(known) / len(known)
        return typical, math.fsum(known) + typical * (len(active) - len(known))


class Fold:
    """Decides the weight of each update and what a fold is scaled with.

    Args:
        before: the rule in force until now: shares that were taken stay in force where their measure does.
    """

    def __init__(self, rule: FoldRule, before: Fold | None = None) -> None:
        self.rule = rule
        kept = before is not None and before.rule.weight is rule.weight
        self._shares: Shares = before._shares if before is not None and kept else Shares()

    def measure(self, *, samples: int, shard_samples: int, steps: int) -> float:
        """m of an update; 0 where nothing is behind it."""
        match self.rule.weight:
            case Weight.EQUAL:
                return 1.0
            case Weight.SAMPLES:
                return float(samples)
            case Weight.DATA:
                return float(shard_samples)
            case Weight.PER_STEP:
                return 1.0 / steps if steps > 0 else 0.0

    def discount(self, staleness: int) -> float:
        """d, in (0, 1]: however stale, an update does not count as one that has nothing behind it."""
        power = self.rule.staleness_power
        return max((1.0 + staleness) ** -power, SMALLEST) if power else 1.0

    def arriving(self, worker: str, measure: float, staleness: int, active: Set[str]) -> float:
        """The weight of an update that is normalised on arrival.

        Args:
            active: the M workers that count, the arriving one among them.
        """
        rate = self.rule.server_rate
        if self.rule.when is When.EVERY_K:
            rate *= len(active) / self.rule.every_k
        if self.rule.weight is Weight.EQUAL:
            share = 1.0 / len(active)
        else:
            share = self._shares.claim(worker, measure, active)
        return share * min(rate, 1.0) * self.discount(staleness)

    def waiting(self, worker: str, measure: float, staleness: int) -> float:
        """The weight of an update that waits for its gate, before normalising: m d."""
        if self.rule.weight is not Weight.EQUAL:
            self._shares.note(worker, measure)
        return measure * self.discount(staleness)

    def share(self, members: Collection[str], active: Set[str]) -> float:
        """G: the share of a group's members, a part of `active`, together; one of them has committed."""
        if self.rule.weight is Weight.EQUAL:
            return len(members) / len(active)
        return self._shares.claim_all(members, active)

    def factors(self, weights: float, measures: float, share: float) -> tuple[float, float]:
        """(scale of Σ w·U, share of the buffers' mean) of a fold.

        Args:
            weights: Σ w > 0 of those in it.
            measures: Σ m of them, at least as much.
            share: G; without a gate it is not looked at.
        """
        if self.rule.when is When.AT_GATE:
            return min(self.rule.server_rate, 1.0) * share / measures, share * (weights / measures)
        return 1.0, min(weights, 1.0)


class Sums:
    """Σ w·U (buffers: Σ w·B_i) and Σ w of the updates that wait for their fold."""

    def __init__(self, values: np.ndarray | None = None, weight: float = 0.0) -> None:
        self.values = values
        self.weight = weight

    def add(self, update: np.ndarray, weight: float) -> None:
        """Takes `update` over: the first one's memory holds the sums."""
        np.multiply(update, np.float32(weight), out=update)
        if self.values is None:
            self.values = update
        else:
            self.values += update
        self.weight += weight

    def take(self) -> np.ndarray:
        """The weighted sum, leaving nothing behind."""
        if self.values is None:
            raise ValueError("nothing waits for a fold")
        values = self.values
        self.clear()
        return values

    def clear(self) -> None:
        self.values, self.weight = None, 0.0
