"""How many samples d_k and local updates tau_k each learner gets: exact solvers and baselines.

`solve` is a pure function of a problem. The scheme "async" is solved exactly, by one of three rules:

- relaxed: real numbers, everybody works the full cycle;
- maximal: whole numbers, nobody could make one more update;
- full-cycle: whole numbers, everybody works at least 98 % of the cycle.

The others are baselines: "sync" (the same tau for all), "eta" (equal samples), "sai" (the source's
heuristic).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import eta, full_cycle, maximal, relaxed, sai, synchronous
from offbeat_scheduler.allocation.problem import Energy, Problem
from offbeat_scheduler.allocation.solution import INTEGERS, SCHEMES, Allocation, Integer, Scheme

__all__ = ["INTEGERS", "SCHEMES", "Allocation", "Energy", "Integer", "Problem", "Scheme", "solve"]

_EXACT: dict[Integer, Callable[[Problem], Allocation]] = {
    "maximal": maximal.solve,
    "full-cycle": full_cycle.solve,
    "relaxed": relaxed.solve,
}
_BASELINES: dict[Scheme, Callable[[Problem, Integer], Allocation]] = {
    "sync": synchronous.solve,
    "eta": eta.solve,
    "sai": sai.solve,
}


def solve(
    problem: Problem,
    scheme: Scheme = "async",
    integer: Integer = "maximal",
    clock: Callable[[], float] = time.perf_counter,
) -> Allocation:
    """The allocation of `problem`, or why there is none.

    Args:
        scheme: "async", or a baseline: "sync", "eta", "sai".
        integer: the rule. Baselines know whole numbers (either of the first two) and "relaxed".
        clock: seconds, for `solve_s`.

    Raises:
        OffbeatError: no such scheme or rule.
    """
    for name, value, known in (("scheme", scheme, SCHEMES), ("integer", integer, INTEGERS)):
        if value not in known:
            raise OffbeatError(f"{name} is {value!r}", f"give one of {', '.join(known)}")
    began = clock()
    found = _EXACT[integer](problem) if scheme == "async" else _BASELINES[scheme](problem, integer)
    return replace(found, solve_s=clock() - began)
