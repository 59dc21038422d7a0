"""Whole numbers by the full-cycle rule: everybody works at least (1 - eps) T. Exact.

The rule leaves a learner with tau updates a window of sample counts; (a, b) has a solution if one window per
learner, of a to b updates, can be chosen so that samples in them sum to d. More choice never hurts: with (a,
b) also (a - 1, b) and (a, b + 1) have one. So the least b for each a is found on a walk along a staircase,
from the largest a downwards, until no smaller or equal b - a is possible. Among the solutions of the least
b - a the one with the most updates is taken, and of these the one with the largest sum of tau_k d_k. That sum
by itself says little here: everybody works all the time, so it hardly differs.

With an energy limit, "works the full cycle" means: uses (1 - eps) of its seconds or of its joules.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import few_kinds
from offbeat_scheduler.allocation.faults import fault
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.maximal import first, greatest_a, last
from offbeat_scheduler.allocation.most_work import Choice, Options, most_updates, most_work
from offbeat_scheduler.allocation.problem import Problem
from offbeat_scheduler.allocation.solution import Allocation, infeasible
from offbeat_scheduler.allocation.windows import Windows

EPS = 0.02
LOOKED_FOR = 1000
"""So far from d a sum is looked for that would do, where none of the bounds is at fault."""
Prefer = Literal["updates", "work"]


def solve(problem: Problem, eps: float = EPS, prefer: Prefer = "updates") -> Allocation:
    """The allocation with the least max staleness.

    Args:
        eps: the share of the cycle that a learner may be idle, between 0 and 1.
        prefer: among those, the most updates, then the most work; or by "work", the sum of
            tau_k d_k, alone.
    """
    if not 0 < eps < 1:
        raise OffbeatError(f"eps is {eps}", "give the share of the cycle that may be idle, between 0 and 1")
    if reason := fault(problem):
        return infeasible(problem, "async", "full-cycle", reason)
    limits = Limits.of(problem)
    windows = Windows(problem, limits, 1 - eps)
    ranges = best_ranges(problem, limits, windows)
    if not ranges:
        return infeasible(problem, "async", "full-cycle", _fault(problem, limits, windows, eps))
    best: Choice | None = None
    for a, b in ranges:
        if prefer == "updates" and best is not None and b * problem.learners < best.updates_sum:
            continue
        options = Options(np.arange(a, b + 1), *windows.table(a, b), problem.samples)
        choice = few_kinds.most_work(options, most_updates=prefer == "updates")
        if choice is None:
            choice = most_work(options, most_updates(options) if prefer == "updates" else None)
        if best is None or _rank(choice, prefer) > _rank(best, prefer):
            best = choice
    assert best is not None
    return Allocation(problem, "async", "full-cycle", True, "", best.updates, best.samples)


def _rank(choice: Choice, prefer: Prefer) -> tuple[int, int]:
    return (0 if prefer == "work" else choice.updates_sum), choice.work


def best_ranges(problem: Problem, limits: Limits, windows: Windows) -> list[tuple[int, int]]:
    """All (a, b) of the least b - a that have a solution, from the largest a down; empty if none has."""
    most_a = greatest_a(problem, limits)
    top = int(limits.updates_on(problem.min_samples).max())
    if not windows.reach(1, top):
        return []
    a = last(1, most_a, lambda a: windows.reach(a, top))
    b = first(a, top, lambda b: windows.reach(a, b))
    found: dict[int, list[tuple[int, int]]] = {}
    least_b = _least_b(problem, windows, b)
    least = b - a
    while a >= 1 and max(least_b, a) - a <= least:
        while b - 1 >= max(a, least_b) and windows.reach(a, b - 1):
            b -= 1
        found.setdefault(b - a, []).append((a, b))
        least = min(least, b - a)
        a -= 1
    return found[least]


def _least_b(problem: Problem, windows: Windows, enough: int) -> int:
    """A bound from below: with a smaller b the fewest samples sum to more than d, or are too many for one."""

    def possible(b: int) -> bool:
        lowest = windows.at(b)[0]
        return bool((lowest <= problem.max_samples).all()) and int(lowest.sum()) <= problem.samples

    return first(1, enough, possible)


def _fault(problem: Problem, limits: Limits, windows: Windows, eps: float) -> str:
    """Why nobody's idling for more than eps is too much to ask, where everybody can make an update."""
    full = f"{100 * (1 - eps):g} % of the cycle"
    top = int(limits.updates_on(problem.min_samples).max())
    lo, hi = windows.union(1, top)
    real = lo <= hi
    for k in np.flatnonzero(~real.any(axis=0)):
        # So many updates fill the cycle only beyond max_samples, one more fits only below min_samples.
        fit = int(limits.part(int(k)).updates_on(problem.min_samples[k])[0])
        fills = int(limits.samples_filling(fit, 1 - eps)[k])
        next_fit = int(limits.samples_at(fit + 1)[k])
        return (
            f"{problem.names[k]} fills {full} with {fit} update{'s' * (fit > 1)} on at least {fills} "
            f"samples, max_samples is {problem.max_samples[k]}: {fills - problem.max_samples[k]} too few; "
            f"{fit + 1} updates fit on at most {next_fit}, min_samples is {problem.min_samples[k]}: "
            f"{problem.min_samples[k] - next_fit} too many; widen its bounds, or use the maximal rule"
        )
    least = int(np.where(real, lo, np.iinfo(np.int64).max).min(axis=0).sum())
    most = int(np.where(real, hi, 0).max(axis=0).sum())
    d = problem.samples
    if d < least or d > most:
        bound, by, what = ("least", least - d, "few") if d < least else ("most", d - most, "many")
        return (
            f"to work {full} the learners hold at {bound} {least if d < least else most} samples together, "
            f"samples is {d}: {by} too {what}; change samples or the cycle, or use the maximal rule"
        )
    near = next(
        (
            f"; {d + sign * by} would do"
            for by in range(1, LOOKED_FOR)
            for sign in (-1, 1)
            if windows.reach(1, top, d + sign * by)
        ),
        "",
    )
    return (
        f"no numbers of samples with which all learners work {full} sum to samples, {d}{near}; "
        "change samples or the cycle, or use the maximal rule"
    )
