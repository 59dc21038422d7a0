"""Why a problem has no solution: which bound of which learner, or which total, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from offbeat_scheduler.allocation.limits import ROUNDING, Limits
from offbeat_scheduler.allocation.problem import Ints, Problem

SHOWN = 3
"""So many learners are named, the worst first; the others are counted."""


def fault(problem: Problem, *, whole: bool = True) -> str:
    """The reason why not everybody can make at least one update on samples that sum to d; empty: they can.

    Args:
        whole: in whole numbers of samples, or in real ones.
    """
    if reason := fault_of_sums(problem):
        return reason
    limits = Limits.of(problem)
    one = limits.samples_at(1)
    if (one < problem.min_samples).any():
        return _fault_of_learners(problem, limits, one)
    most = np.minimum(one if whole else np.maximum(limits.room(1), one), problem.max_samples)
    total = most.sum()
    if problem.samples - total > (0 if whole else ROUNDING * problem.samples):
        return (
            f"in {_cycle(problem)} the learners can do one update on at most {_count(total)} samples "
            f"together, samples is {problem.samples}: {_count(problem.samples - total)} too many; "
            "lower samples, lengthen the cycle, or add learners"
        )
    return ""


def fault_of_sums(problem: Problem) -> str:
    """The reason why no samples within the bounds sum to d; empty: some do."""
    for name, bounds, sign, other in (
        ("min_samples", problem.min_samples, 1, "lower"),
        ("max_samples", problem.max_samples, -1, "raise"),
    ):
        total = sum(map(int, bounds)) if bounds.max() > 2**40 else int(bounds.sum())
        if (over := sign * (total - problem.samples)) > 0:
            amount, change = ("few", "raise") if sign > 0 else ("many", "lower")
            return (
                f"the learners' {name} sum to {total}, samples is {problem.samples}: {over} too {amount}; "
                f"{other} {name} or {change} samples"
            )
    return ""


def _fault_of_learners(problem: Problem, limits: Limits, most: Ints) -> str:
    over = problem.min_samples - most
    worst = np.argsort(-over, kind="stable")
    worst = worst[over[worst] > 0]
    named = "; ".join(
        f"{problem.names[k]} can do one update on at most {most[k]} samples "
        f"{_within(problem, limits, k)}, min_samples is {problem.min_samples[k]}: {over[k]} too many"
        for k in worst[:SHOWN]
    )
    more = f"; and {len(worst) - SHOWN} more learners" if len(worst) > SHOWN else ""
    return f"{named}{more}; lower min_samples, lengthen the cycle, or leave the learner out"


def _within(problem: Problem, limits: Limits, k: int) -> str:
    """The budget that is used up first."""
    rooms = [
        (budget.limit[k] - budget.fixed[k]) / (budget.per_update[k] + budget.per_sample[k])
        for budget in limits.budgets
        if np.isfinite(budget.limit[k])
    ]
    budget = limits.budgets[int(np.argmin(rooms))]
    return f"in {_cycle(problem)}" if budget.unit == "s" else f"with {budget.limit[k]:g} {budget.unit}"


def _cycle(problem: Problem) -> str:
    return f"{problem.cycle_s:g} s"


def _count(value: float) -> str:
    """Of samples: real numbers of them where they are not whole."""
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def names(learners: Sequence[str]) -> str:
    """As many as a person reads, and how many more there are."""
    shown = ", ".join(learners[:SHOWN])
    return shown if len(learners) <= SHOWN else f"{shown} and {len(learners) - SHOWN} more"
