"""The relaxed optimum: the recorded cases, the published table, scipy's SLSQP, and the KKT conditions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from offbeat_scheduler.allocation import Energy, Problem, solve
from offbeat_scheduler.allocation.kkt import residuals
from offbeat_scheduler.allocation.limits import Limits
from support.allocation import CASES, fleet, published, read_case


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_recorded_optima_are_found(path: Path) -> None:
    problem, expected = read_case(path)
    relaxed, whole = solve(problem, integer="relaxed"), solve(problem)
    if expected["relaxed"] is None:
        assert not relaxed.feasible
        assert relaxed.max_staleness is None
    else:
        assert relaxed.max_staleness == pytest.approx(expected["relaxed"]["max_staleness"], abs=1e-6)
    assert whole.max_staleness == (expected["whole"] and expected["whole"]["max_staleness"])


def test_there_are_recorded_cases_feasible_and_not() -> None:
    assert len(CASES) == 13
    assert sum(read_case(path)[1]["whole"] is None for path in CASES) == 1


PUBLISHED = [
    # T, K: c; of equal shares the least and most updates, maximum and average staleness;
    # of the full-cycle rule z, average and updates; updates of the synchronous scheme
    (7.5, 10, 1.647, (0, 2, 2, 1.11), (1, 0.56, 15), 10),
    (7.5, 20, 3.350, (1, 5, 4, 2.11), (1, 0.51, 72), 60),
    (15, 10, 3.371, (1, 5, 4, 2.22), (1, 0.53, 36), 30),
    (15, 20, 6.798, (3, 10, 7, 3.68), (1, 0.27, 137), 120),
    (30, 20, 13.695, (6, 21, 15, 7.89), (1, 0.34, 276), 260),
]


@pytest.mark.parametrize(("cycle_s", "learners", "common", "equal", "full", "together"), PUBLISHED)
def test_the_published_setting_has_its_known_values(
    cycle_s: float,
    learners: int,
    common: float,
    equal: tuple[int, int, int, float],
    full: tuple[int, float, int],
    together: int,
) -> None:
    problem = published(learners, cycle_s)
    relaxed = solve(problem, integer="relaxed")
    assert relaxed.tau == pytest.approx(np.full(learners, relaxed.tau[0]))
    assert relaxed.max_staleness == 0.0
    assert round(float(relaxed.tau[0]), 3) == common
    eta = solve(problem, "eta")
    assert eta.average_staleness is not None
    assert (eta.tau.min(), eta.tau.max(), eta.max_staleness) == equal[:3]
    assert round(eta.average_staleness, 2) == equal[3]
    found = solve(problem, integer="full-cycle")
    assert found.average_staleness is not None
    assert (found.max_staleness, round(found.average_staleness, 2), found.updates_total) == full
    sync = solve(problem, "sync")
    assert (sync.updates_total, sync.max_staleness) == (together, 0)


@pytest.mark.parametrize(
    ("within", "relaxed", "whole"),
    [(0.5, 0.392, 0), (0.4, 1.156, 1), (0.3, 1.812, 1), (0.2, 2.425, 3), (0.1, 3.038, 3), (0.0, 3.689, 4)],
)
def test_narrower_bounds_cost_the_known_staleness(within: float, relaxed: float, whole: int) -> None:
    problem = published(20, 7.5, within)
    found = solve(problem, integer="relaxed").max_staleness
    assert found is not None
    assert round(found, 3) == relaxed
    assert solve(problem).max_staleness == whole


# ---- against other ways to find it ------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, most: int = 6) -> Problem:
    """Feasible in real numbers, bounds often binding, some with energy limits."""
    count = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    compute, transfer = rng.uniform(1e-3, 1e-2, count), rng.uniform(0, 1e-3, count)
    low = rng.integers(5, 60, count)
    high = low + rng.integers(0, 80, count)
    energy = None
    if draw(st.booleans()):
        limits = np.where(rng.random(count) < 0.5, np.inf, rng.uniform(20, 60, count))
        energy = Energy(
            rng.uniform(0.01, 0.1, count), rng.uniform(0, 0.05, count), rng.uniform(0, 1, count), limits
        )
    samples = int(rng.integers(low.sum(), high.sum() + 1))
    names = [str(k) for k in range(count)]
    return Problem(names, compute, transfer, rng.uniform(0, 0.5, count), low, high, samples, 10.0, energy)


def spread(problem: Problem, samples: np.ndarray) -> float:
    tau = Limits.of(problem).pace(samples)
    return float(tau.max() - tau.min())


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_no_other_division_has_a_smaller_spread(problem: Problem, seed: int) -> None:
    found = solve(problem, integer="relaxed")
    if not found.feasible:
        return
    assert found.samples.sum() == pytest.approx(problem.samples, rel=1e-9)
    assert (found.samples >= problem.min_samples).all()
    assert (found.samples <= problem.max_samples).all()
    assert found.tau == pytest.approx(Limits.of(problem).pace(found.samples), rel=1e-9)
    assert found.max_staleness is not None
    rng = np.random.default_rng(seed)
    for _ in range(20):
        share = rng.dirichlet(np.ones(problem.learners))
        other = found.samples + rng.normal(0, 5) * (share - 1 / problem.learners)
        if (other >= problem.min_samples).all() and (other <= problem.max_samples).all():
            assert spread(problem, other) >= found.max_staleness - 1e-9


@settings(max_examples=30, deadline=None)
@given(problems(most=5))
def test_scipy_never_does_better(problem: Problem) -> None:
    """SLSQP on min b - a with a <= tau_k(d_k) <= b, from equal shares."""
    found = solve(problem, integer="relaxed")
    if not found.feasible:
        return
    limits, count = Limits.of(problem), problem.learners
    low, high = problem.min_samples.astype(float), problem.max_samples.astype(float)
    part = (problem.samples - low.sum()) / max(1.0, (high - low).sum())
    start = low + part * (high - low)
    pace = limits.pace(start)

    def within(x: np.ndarray) -> np.ndarray:
        tau = limits.pace(np.clip(x[:count], low, high))
        return np.concatenate((tau - x[-2], x[-1] - tau))

    answer = minimize(
        lambda x: x[-1] - x[-2],
        np.concatenate((start, [pace.min(), pace.max()])),
        bounds=[*zip(low, high, strict=True), (None, None), (None, None)],
        constraints=[
            {"type": "eq", "fun": lambda x: x[:count].sum() - problem.samples},
            {"type": "ineq", "fun": within},
        ],
        method="SLSQP",
        options={"maxiter": 300},
    )
    theirs = np.clip(answer.x[:count], low, high)
    if abs(theirs.sum() - problem.samples) < 1e-6:
        assert found.max_staleness is not None
        assert found.max_staleness <= spread(problem, theirs) + 1e-6


# ---- the KKT conditions -----------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_optimum_is_stationary(problem: Problem) -> None:
    found = solve(problem, integer="relaxed")
    if found.feasible:
        assert residuals(problem, found.tau, found.samples).worst < 1e-7


def test_a_point_that_could_be_better_is_not_stationary() -> None:
    problem = published(20, 7.5, 0.3)
    found = solve(problem, integer="relaxed")
    samples = found.samples.copy()
    fast, slow = int(found.tau.argmax()), int(found.tau.argmin())
    samples[fast] -= 50
    samples[slow] += 50
    moved = residuals(problem, Limits.of(problem).pace(samples), samples)
    assert moved.stationary > 0.01
    assert moved.full < 1e-9


def test_each_way_to_violate_a_condition_has_its_residual() -> None:
    problem = published(10, 7.5)
    found = solve(problem, integer="relaxed")
    assert residuals(problem, found.tau * 0.9, found.samples).full == pytest.approx(0.1, rel=0.05)
    assert residuals(problem, found.tau, found.samples * 0.9).total == pytest.approx(0.1)
    tight = published(10, 7.5, 0.1)
    outside = residuals(tight, found.tau, found.samples)
    assert outside.bounds > 0.1


def test_the_closed_forms_confirm_the_optimum_where_bounds_bind_and_are_0_by_0_elsewhere() -> None:
    problem = fleet(12)
    found = solve(problem, integer="relaxed")
    assert found.max_staleness is not None
    assert found.max_staleness > 0
    kkt = residuals(problem, found.tau, found.samples)
    moved = np.abs(kkt.flow) > 1e-9
    assert moved.sum() >= 2
    alpha, compute = kkt.alpha[moved], problem.compute[moved]
    assert -kkt.flow[moved] / (alpha * compute) == pytest.approx(found.samples[moved])
    pull = kkt.omega + kkt.upper[moved] - kkt.lower[moved] + alpha * problem.transfer[moved]
    assert -pull / (alpha * compute) == pytest.approx(found.tau[moved])

    free = published(10, 7.5)
    found = solve(free, integer="relaxed")
    kkt = residuals(free, found.tau, found.samples)
    assert kkt.worst < 1e-9
    assert kkt.alpha == pytest.approx(np.zeros(10))
    assert kkt.omega == pytest.approx(0.0)
