"""Suggest and improve, the source's heuristic: samples move from those with the least updates to the others.

Each move takes just enough samples from a learner with the least tau to raise it by one, and gives them to
the one with the greatest (to the next one where a bound is reached). A move is kept unless the max staleness
grows. The search ends there, or when as many moves as there are learners have not made it smaller.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offbeat_scheduler.allocation import eta, relaxed
from offbeat_scheduler.allocation.apportion import apportion
from offbeat_scheduler.allocation.faults import fault, fault_of_sums
from offbeat_scheduler.allocation.limits import Limits
from offbeat_scheduler.allocation.problem import Ints, Problem
from offbeat_scheduler.allocation.solution import Allocation, Integer, infeasible


def solve(problem: Problem, integer: Integer = "maximal") -> Allocation:
    """The better of what two suggestions lead to: equal shares, and the relaxed optimum, rounded.

    In real numbers the second suggestion is the optimum: nothing is left to improve.
    """
    if integer == "relaxed":
        return replace(relaxed.solve(problem), scheme="sai")
    if reason := fault_of_sums(problem):
        return infeasible(problem, "sai", integer, reason)
    limits = Limits.of(problem)
    low, high, total = problem.min_samples, problem.max_samples, problem.samples
    wishes = [np.zeros(problem.learners)]
    if not fault(problem, whole=False):
        wishes.append(relaxed.point(problem, limits).samples)
    found = []
    for wish in wishes:
        samples = improve(problem, limits, apportion(wish, low, high, total))
        tau = np.maximum(limits.updates_on(samples), 0)
        found.append(eta.marked(problem, "sai", integer, tau, samples))
    return min(found, key=lambda one: (one.max_staleness, -one.tau.sum()))


def improve(problem: Problem, limits: Limits, samples: Ints) -> Ints:
    """Samples of shape (K,), no worse in max staleness than those given."""
    samples = samples.copy()
    tau = limits.updates_on(samples)
    raised = limits.samples_at(tau + 1)  # on so many samples a learner makes one update more
    spread, idle_moves = int(tau.max() - tau.min()), 0
    while idle_moves < problem.learners:
        moved = _move(problem, samples, tau, raised)
        if moved is None:
            break
        new = dict(zip(moved, (samples[k] for k in moved), strict=True))
        for k, d in moved.items():
            part = limits.part(k)
            samples[k], tau[k] = d, part.updates_on(d)[0]
            raised[k] = part.samples_at(tau[k] + 1)[0]
        now = int(tau.max() - tau.min())
        if now > spread:
            for k, d in new.items():
                samples[k] = d
            break
        idle_moves = 0 if now < spread else idle_moves + 1
        spread = now
    return samples


def _move(problem: Problem, samples: Ints, tau: Ints, raised: Ints) -> dict[int, int] | None:
    """The new samples of those whom one move concerns; None if there is no move."""
    least = np.flatnonzero((tau == tau.min()) & (raised >= problem.min_samples))
    if not least.size or tau.max() == tau.min():
        return None
    giver = int(least[np.argmin(samples[least] - raised[least])])
    left = int(samples[giver] - raised[giver])
    moved = {giver: int(raised[giver])}
    takers = tau > tau[giver]
    while left:
        takers &= samples < problem.max_samples
        for k in moved:
            takers[k] = False
        if not takers.any():
            return None
        taker = int(np.argmax(np.where(takers, tau, -1)))
        taken = min(left, int(problem.max_samples[taker] - samples[taker]))
        moved[taker] = int(samples[taker]) + taken
        left -= taken
    return moved
