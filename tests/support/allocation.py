"""Allocation problems: the recorded cases, the published setting, and small ones with optima by brute force.

Small problems have decimal coefficients, and the brute force counts in whole thousandths: it agrees
with a solver only where that treats 3 x 0.1 s as a person does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from offbeat_scheduler.allocation import Energy, Problem

CASES = sorted((Path(__file__).parents[1] / "cases" / "allocation").glob("*.json"))
MNIST = 60_000


def read_case(path: Path) -> tuple[Problem, dict[str, Any]]:
    """A recorded problem, and what is known of its optimum."""
    case = json.loads(path.read_text(encoding="utf-8"))

    def each(field: str) -> list[Any]:
        return [learner[field] for learner in case["learners"]]

    problem = Problem(
        names=tuple(each("name")),
        compute=each("compute_s_per_sample_update"),
        transfer=each("transfer_s_per_sample"),
        fixed=each("fixed_s"),
        min_samples=each("min_samples"),
        max_samples=each("max_samples"),
        samples=case["samples"],
        cycle_s=case["cycle_s"],
    )
    return problem, case["expected"]


def published(learners: int, cycle_s: float, within: float | None = None) -> Problem:
    """The setting of the source: MNIST-shaped, half of the learners at 2.4 GHz, half at 700 MHz, all at 50 m.

    `within`: d_k differs from d/K by at most this share; None: it is free.
    """
    share = MNIST / learners
    free = (1, MNIST)
    bounds = free if within is None else (np.ceil(share * (1 - within)), np.floor(share * (1 + within)))
    operations = 1_123_736
    return Problem(
        names=tuple(f"learner-{k}" for k in range(learners)),
        compute=[operations / (0.7e9 if k % 2 else 2.4e9) for k in range(learners)],
        transfer=np.full(learners, 3.1615e-5),
        fixed=np.full(learners, 0.09047),
        min_samples=np.full(learners, bounds[0]),
        max_samples=np.full(learners, bounds[1]),
        samples=MNIST,
        cycle_s=cycle_s,
    )


def fleet(learners: int, *, cycle_s: float = 7.5, per_learner: int = 3000, seed: int = 0) -> Problem:
    """Learners that differ in speed by up to 20, and in their links."""
    rng = np.random.default_rng(seed)
    return Problem(
        names=tuple(f"learner-{k}" for k in range(learners)),
        compute=2e-4 * 20 ** rng.random(learners),
        transfer=rng.uniform(1e-5, 5e-5, learners),
        fixed=rng.uniform(0.05, 0.1, learners),
        min_samples=np.full(learners, per_learner // 5),
        max_samples=np.full(learners, per_learner * 3),
        samples=per_learner * learners,
        cycle_s=cycle_s,
    )


# ---- small problems, in thousandths ------------------------------------------------


@dataclass(frozen=True)
class Small:
    """Coefficients in whole thousandths: (compute, transfer, fixed) of seconds, and of joules or None."""

    seconds: tuple[tuple[int, int, int], ...]
    bounds: tuple[tuple[int, int], ...]
    samples: int
    cycle: int
    joules: tuple[tuple[int, int, int, int] | None, ...]

    @property
    def problem(self) -> Problem:
        compute, transfer, fixed = np.array(self.seconds).T / 1000
        low, high = np.array(self.bounds).T
        energy = None
        if any(self.joules):
            rows = [one or (0, 0, 0, np.inf) for one in self.joules]
            energy = Energy(*(np.array(rows, float).T / 1000))
        names = tuple(f"learner-{k}" for k in range(len(self.bounds)))
        return Problem(names, compute, transfer, fixed, low, high, self.samples, self.cycle / 1000, energy)

    def budgets(self, k: int) -> list[tuple[int, int, int, int]]:
        joules = self.joules[k]
        return [(*self.seconds[k], self.cycle), *([joules] if joules else [])]

    def most_updates(self, k: int, samples: int) -> int:
        """floor((T - C0 - C1 d) / (C2 d)), exactly; the least of time and energy."""
        return min(
            (limit - fixed - per_sample * samples) // (per_update * samples)
            for per_update, per_sample, fixed, limit in self.budgets(k)
        )

    def full_updates(self, k: int, samples: int, idle: int) -> list[int]:
        """The numbers of updates, 1 or more, that use up a budget but for `idle` thousandths of it."""
        return [
            tau
            for tau in range(1, self.most_updates(k, samples) + 1)
            if any(
                1000 * (per_update * tau * samples + per_sample * samples + fixed) >= (1000 - idle) * limit
                for per_update, per_sample, fixed, limit in self.budgets(k)
            )
        ]

    def divisions(self) -> Iterator[tuple[int, ...]]:
        """All d within the bounds that sum to `samples`."""
        for first in itertools.product(*(range(low, high + 1) for low, high in self.bounds[:-1])):
            last = self.samples - sum(first)
            if self.bounds[-1][0] <= last <= self.bounds[-1][1]:
                yield *first, last

    def maximal(self) -> int | None:
        """The least max staleness by the maximal rule; None if there is no allocation."""
        spreads = []
        for division in self.divisions():
            tau = [self.most_updates(k, d) for k, d in enumerate(division)]
            if min(tau) >= 1:
                spreads.append(max(tau) - min(tau))
        return min(spreads, default=None)

    def full_cycle(self, idle: int) -> list[tuple[int, int, int]]:
        """All that the full-cycle rule allows: (max staleness, sum of tau, sum of tau d)."""
        full = [
            {d: self.full_updates(k, d, idle) for d in range(low, high + 1)}
            for k, (low, high) in enumerate(self.bounds)
        ]
        return [
            (max(tau) - min(tau), sum(tau), sum(t * d for t, d in zip(tau, division, strict=True)))
            for division in self.divisions()
            for tau in itertools.product(*(full[k][d] for k, d in enumerate(division)))
        ]


@st.composite
def smalls(draw: st.DrawFn, learners: int = 3, most_samples: int = 12) -> Small:
    count = draw(st.integers(1, learners))
    bounds = []
    for _ in range(count):
        low = draw(st.integers(1, most_samples))
        bounds.append((low, draw(st.integers(low, most_samples))))
    cycle = draw(st.integers(200, 3000))
    some = st.tuples(st.integers(1, 100), st.integers(0, 40), st.integers(0, 150))
    limited = st.tuples(st.integers(1, 100), st.integers(0, 40), st.integers(0, 150), st.integers(200, 3000))
    return Small(
        seconds=tuple(draw(some) for _ in range(count)),
        bounds=tuple(bounds),
        samples=draw(st.integers(sum(low for low, _ in bounds), sum(high for _, high in bounds))),
        cycle=cycle,
        joules=tuple(draw(st.none() | limited) for _ in range(count)),
    )
