"""When updates enter the model, and with what weight.

`Fold` decides; `Sums` holds Σ w·U while updates wait for their fold.

The invariant: over one commit of each active worker, all made while the set of active
workers does not change, the weights sum to at most 1 (at the gate: over one fold,
whoever is in it). At 2/M and 3/M training never reached its target, so nothing here can
be configured to exceed it; a `server_rate` can only make updates count for less.

Across a change of the set it does not hold, for an update that is in the model cannot
be weighed anew: w1 alone commits at weight 1, w2 joins and commits at 1/2, and the last
commits of the two sum to 1.5, once. No single weight exceeds 1, so M workers' last
commits never sum to more than M; and as soon as each active worker has committed
since the change, they sum to at most 1 again.

| when | weight of an update | normalised |
|---|---|---|
| at once | rate · 1/M, or rate · its share of the active workers' samples | on arrival |
| every K | rate/K, at most 1/M (by samples: in proportion to its share) | on arrival |
| at the gate | rate · w / Σ w over those that arrived, w = 1 or its samples | at the fold |

The weights of "at once" and "every K" are fixed on arrival, so that the
acknowledgement, which leaves before the fold, can name them.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

import numpy as np


class When(Enum):
    AT_ONCE = "at_once"
    EVERY_K = "every_k"
    AT_GATE = "at_gate"


class Weight(Enum):
    EQUAL = "equal"
    SAMPLES = "samples"


@dataclass(frozen=True)
class FoldRule:
    """What the scheduler asks for. `server_rate` is taken as at most 1 (every K: at most K/M)."""

    when: When = When.AT_ONCE
    weight: Weight = Weight.EQUAL
    every_k: int = 0
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        if self.when is When.EVERY_K and self.every_k < 1:
            raise ValueError(f"fold.every_k: {self.every_k} is not positive; give 1 or more commits per fold")
        if not 0 < self.server_rate < float("inf"):
            raise ValueError(f"fold.server_rate: {self.server_rate} is not a positive number")


class Shares:
    """Each worker's share of the fleet's samples, such that the shares in force never sum to more than 1.

    A worker's share is n_i / Σ n with the n of everybody's last commit. While these change,
    the shares of successive commits could sum to more than 1; so each active worker
    keeps what it took last, and another takes no more than what that leaves. When the
    set of active workers changes, all shares are set anew.
    """

    def __init__(self) -> None:
        self._samples: dict[str, int] = {}
        self._taken: dict[str, float] = {}

    def claim(self, worker: str, samples: int, active: Set[str]) -> float:
        """The share of `worker`'s commit with `samples` behind it; `active` contains the worker."""
        if samples <= 0:
            return 0.0  # takes nothing, so that its share is still there for its next commit
        self._samples[worker] = samples
        if self._taken.keys() != active:
            self._samples = {name: n for name, n in self._samples.items() if name in active}
            typical, total = self._measure(active)
            self._taken = {name: self._samples.get(name, typical) / total for name in active}
        _, total = self._measure(active)
        free = 1.0 - sum(share for name, share in self._taken.items() if name != worker)
        self._taken[worker] = max(0.0, min(samples / total, free))
        return self._taken[worker]

    def _measure(self, active: Set[str]) -> tuple[float, float]:
        """(mean samples of those known, samples of all: who has not committed yet counts as the mean)."""
        known = self._samples.values()
        typical = sum(known) / len(known)
        return typical, sum(known) + typical * (len(active) - len(known))


class Fold:
    """Decides the weight of each update and when a fold is due."""

    def __init__(self, rule: FoldRule) -> None:
        self.rule = rule
        self._shares = Shares()

    def weight(self, worker: str, samples: int, active: Set[str]) -> float:
        """What the update is multiplied with on arrival; at the gate, before normalising.

        Args:
            active: the M workers that count, the arriving one among them.
        """
        rule = self.rule
        if rule.when is When.AT_GATE:
            return 1.0 if rule.weight is Weight.EQUAL else float(samples)
        active_count = len(active)
        if rule.weight is Weight.EQUAL:
            share = 1.0 / active_count
        else:
            share = self._shares.claim(worker, samples, active)
        rate = rule.server_rate
        if rule.when is When.EVERY_K:
            rate *= active_count / rule.every_k
        return share * min(rate, 1.0)

    def factors(self, total: float) -> tuple[float, float]:
        """(scale of Σ w·U, share of the buffers' mean) of a fold whose weights sum to `total` > 0."""
        if self.rule.when is When.AT_GATE:
            return min(self.rule.server_rate, 1.0) / total, 1.0
        return 1.0, min(total, 1.0)


class Sums:
    """Σ w·U (buffers: Σ w·B_i) and Σ w of the updates that wait for their fold."""

    def __init__(self) -> None:
        self.values: np.ndarray | None = None
        self.weight = 0.0

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
