"""What a problem may be, what fits into a cycle, and what an answer says."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import INTEGERS, SCHEMES, Energy, Problem, solve
from offbeat_scheduler.allocation.limits import ROUNDING, Budget, Limits
from offbeat_scheduler.allocation.solution import average_staleness
from support.allocation import fleet, published

FINE: dict[str, Any] = {
    "names": ["a", "b"],
    "compute": [0.1, 0.2],
    "transfer": [0.0, 0.01],
    "fixed": [0.0, 0.5],
    "min_samples": [1, 2],
    "max_samples": [10, 10],
    "samples": 12,
    "cycle_s": 5.0,
}


def energy(**changed: Any) -> Energy:
    values = {"per_sample_update": [1, 1], "per_sample": [0, 0], "fixed": [1, 1], "limit": [9, math.inf]}
    return Energy(**{**values, **changed})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compute": [0.1, 0.0]}, "learner 'b': compute_s_per_sample_update is 0; it must be positive"),
        ({"compute": [-0.1, 0.2]}, "learner 'a': compute_s_per_sample_update is -0.1"),
        ({"compute": [0.1, math.nan]}, "learner 'b': compute_s_per_sample_update is nan"),
        ({"compute": [0.1, math.inf]}, "learner 'b': compute_s_per_sample_update is inf"),
        ({"compute": [0.1, 1e-18]}, "learner 'b': compute_s_per_sample_update is 1e-18"),
        ({"transfer": [-1, 0]}, "learner 'a': transfer_s_per_sample is -1; it must be 0 or more"),
        ({"transfer": [math.nan, 0]}, "learner 'a': transfer_s_per_sample is nan"),
        ({"fixed": [0, -1]}, "learner 'b': fixed_s is -1"),
        ({"fixed": [0, 5.0]}, "learner 'b': fixed_s is 5, and the whole cycle (cycle_s) is 5 s"),
        ({"cycle_s": 0.4}, "learner 'b': fixed_s is 0.5, and the whole cycle (cycle_s) is 0.4 s"),
        ({"cycle_s": 0}, "cycle_s is 0"),
        ({"cycle_s": math.nan}, "cycle_s is nan"),
        ({"cycle_s": "soon"}, "cycle_s is 'soon'"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": 1.5}, "samples is 1.5"),
        ({"samples": 1e17}, "samples is 1e+17"),
        ({"min_samples": [1, 11]}, "learner 'b': min_samples is 11 and max_samples is 10"),
        ({"min_samples": [0, 1]}, "learner 'a': min_samples is 0; it must be 1 or more"),
        ({"min_samples": [1, 1.5]}, "learner 'b': min_samples is 1.5"),
        ({"max_samples": [math.nan, 5]}, "learner 'a': max_samples is nan"),
        ({"max_samples": [10, 10**16]}, "learner 'b': max_samples is 1e+16"),
        ({"names": ["a", "a"]}, "two learners are named 'a'"),
        ({"names": []}, "no learners"),
        ({"compute": [0.1]}, "compute has shape (1,) for 2 learners"),
        ({"compute": ["fast", "slow"]}, "compute holds something that is no number"),
        ({"energy": energy(limit=[9])}, "limit has shape (1,) for 2 learners"),
        ({"energy": energy(limit=[math.nan, 1])}, "learner 'a': energy.max_j is nan"),
        ({"energy": energy(limit=[1, 9])}, "learner 'a': energy.max_j is 1, and energy.fixed_j is 1"),
        (
            {"energy": energy(per_sample_update=[0, 0])},
            "learner 'a': energy.compute_j_per_sample_update is 0",
        ),
        ({"energy": energy(per_sample=[0, -1])}, "learner 'b': energy.transfer_j_per_sample is -1"),
        ({"energy": energy(fixed=[0, math.nan])}, "learner 'b': energy.fixed_j is nan"),
    ],
)
def test_what_cannot_be_is_refused_with_learner_field_and_value(
    changed: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(OffbeatError) as caught:
        Problem(**{**FINE, **changed})
    assert said in caught.value.problem
    assert caught.value.remedy


def test_a_problem_keeps_its_own_arrays() -> None:
    compute = np.array([0.1, 0.2])
    problem = Problem(**{**FINE, "compute": compute})
    compute[0] = 9
    assert problem.compute.tolist() == [0.1, 0.2]
    with pytest.raises(ValueError, match="read-only"):
        problem.compute[0] = 9


def test_an_unknown_scheme_or_rule_is_refused() -> None:
    problem = Problem(**FINE)
    with pytest.raises(OffbeatError, match="scheme is 'best'"):
        solve(problem, "best")  # type: ignore[arg-type]
    with pytest.raises(OffbeatError, match="integer is 'floor'"):
        solve(problem, integer="floor")  # type: ignore[arg-type]


# ---- what fits --------------------------------------------------------------------


def test_decimal_seconds_hold_what_a_person_counts() -> None:
    """3 x 0.1 is more than 0.3 in binary, and 1.1 x 3 more than 3.3."""
    for compute, cycle_s, samples, updates in (
        (0.1, 0.3, 3, 1), (1.1, 3.3, 1, 3), (0.7, 2.1, 1, 3), (0.0005, 7.5, 15, 1000), (0.1, 0.3, 1, 3),
    ):  # fmt: skip
        limits = Limits.of(Problem(["a"], [compute], [0], [0], [1], [10**6], samples, cycle_s))
        assert limits.updates_on(samples).tolist() == [updates]
        assert limits.samples_at(updates).tolist() == [samples]
        assert limits.samples_filling(updates, 1.0).tolist() == [samples]


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-9, 10),
    st.floats(0, 10),
    st.floats(0, 0.9),
    st.floats(1e-3, 1e5),
    st.none() | st.tuples(st.floats(1e-9, 10), st.floats(0, 10), st.floats(0, 0.9)),
    st.data(),
)
def test_samples_by_updates_and_updates_by_samples_are_inverses(
    compute: float,
    transfer: float,
    fixed: float,
    cycle_s: float,
    joules: tuple[float, float, float] | None,
    data: st.DataObject,
) -> None:
    spent = None if joules is None else Energy([joules[0]], [joules[1]], [joules[2]], [1.0])
    problem = Problem(["a"], [compute], [transfer], [fixed * cycle_s], [1], [10], 5, cycle_s, spent)
    limits = Limits.of(problem)
    updates = data.draw(st.integers(0, 50) | st.integers(0, 10**9))
    most = int(limits.samples_at(updates)[0])
    around = range(max(1, most - 2), most + 3)
    for samples in [*around, data.draw(st.integers(1, 10**6))]:
        if samples < 10**14:
            fits = bool(limits.fits(updates, samples)[0])
            assert fits == (samples <= most)
            assert fits == (updates <= int(limits.updates_on(samples)[0]))
    share = data.draw(st.sampled_from([0.5, 0.98, 1.0]))
    if 1 < (least := int(limits.samples_filling(updates, share)[0])) < 10**14:
        filled = [
            max(float((budget.use(updates, samples) / budget.limit)[0]) for budget in limits.budgets)
            for samples in (least - 1, least)
        ]
        assert filled[0] < share <= filled[1] * (1 + 1e-9)


@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_an_ulp_around_the_limit_floors_agree_with_what_fits(ulps: int) -> None:
    """Limits that are just used up: there quotients come out on either side of a whole number."""
    rng = np.random.default_rng(0)
    count = 5000
    tau, samples = rng.integers(1, 30, count), rng.integers(2, 3000, count)
    compute, transfer = rng.uniform(1e-4, 0.1, count), rng.uniform(0, 0.01, count)
    fixed = rng.uniform(0, 0.5, count)
    used = compute * (tau * samples) + transfer * samples + fixed
    for share in (1 + ROUNDING, 0.98 * (1 - ROUNDING)):
        limit = used / share
        if ulps:
            limit = np.nextafter(limit, ulps * np.inf)
        limits = Limits((Budget(compute, transfer, fixed, limit, "s"),))
        most, updates = limits.samples_at(tau), limits.updates_on(samples)
        assert limits.fits(tau, most).all()
        assert not limits.fits(tau, most + 1).any()
        assert limits.fits(updates, samples).all()
        assert not limits.fits(updates + 1, samples).any()
        least = limits.samples_filling(tau, 0.98)
        full = limit * (0.98 * (1 - ROUNDING))
        assert (limits.budgets[0].use(tau, least) >= full).all()
        assert (limits.budgets[0].use(tau, least - 1) < full).all()


# ---- what is infeasible -----------------------------------------------------------


def problem_with(**changed: Any) -> Problem:
    return Problem(**{**FINE, **changed})


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (
            problem_with(min_samples=[1, 30], max_samples=[10, 30], samples=35),
            "b can do one update on at most 21 samples in 5 s, min_samples is 30: 9 too many",
        ),
        (problem_with(samples=2), "min_samples sum to 3, samples is 2: 1 too few"),
        (problem_with(samples=24), "max_samples sum to 20, samples is 24: 4 too many"),
        (
            problem_with(max_samples=[100, 100], samples=80),
            "in 5 s the learners can do one update on at most 71 samples together, samples is 80: 9 too many",
        ),
        (
            problem_with(energy=energy(), min_samples=[9, 2]),
            "a can do one update on at most 8 samples with 9 J, min_samples is 9: 1 too many",
        ),
    ],
)
def test_what_is_infeasible_says_which_bound_is_at_fault_and_by_how_much(
    problem: Problem, reason: str
) -> None:
    for scheme, integer in itertools.product(("async", "sync"), ("maximal", "full-cycle")):
        found = solve(problem, scheme, integer)  # type: ignore[arg-type]
        assert not found.feasible
        assert reason in found.reason
        assert found.tau.size == found.samples.size == found.cycle_time_s.size == 0
        assert (
            found.max_staleness is found.average_staleness is found.idle_share is found.updates_total is None
        )


def test_of_many_learners_at_fault_the_worst_are_named_and_the_others_counted() -> None:
    count = 6
    problem = Problem(
        [f"n{k}" for k in range(count)], np.full(count, 0.1), np.zeros(count), np.zeros(count),
        np.arange(11, 11 + count), np.full(count, 20), 90, 1.0,
    )  # fmt: skip
    reason = solve(problem).reason
    assert reason.startswith(
        "n5 can do one update on at most 10 samples in 1 s, min_samples is 16: 6 too many; n4"
    )
    assert "and 3 more learners" in reason
    assert "n0" not in reason


def test_what_fits_in_parts_of_a_sample_fits_only_in_real_numbers() -> None:
    problem = Problem(["a", "b"], [0.1, 0.1], [0, 0], [0.05, 0.05], [1, 1], [10, 10], 19, 1.0)
    assert solve(problem, integer="relaxed").tau == pytest.approx([1.0, 1.0])
    assert "at most 18 samples together, samples is 19: 1 too many" in solve(problem).reason
    problem = Problem(["a", "b"], [0.1, 0.1], [0, 0], [0.05, 0.06], [1, 1], [10, 10], 19, 1.0)
    reason = solve(problem, integer="relaxed").reason
    assert "at most 18.900 samples together, samples is 19: 0.100 too many" in reason


def test_rounding_makes_no_problem_infeasible() -> None:
    problem = Problem(["a", "b"], [0.1, 0.7], [0, 0], [0, 0], [3, 3], [3, 3], 6, 2.1)
    for integer in INTEGERS:
        assert solve(problem, integer=integer).tau == pytest.approx([7, 1])
    assert solve(problem, integer="relaxed").samples.tolist() == [3, 3]


# ---- what is answered -------------------------------------------------------------


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_average_staleness_is_the_mean_over_all_pairs(tau: list[int]) -> None:
    pairs = [abs(a - b) for a, b in itertools.combinations(tau, 2)]
    assert average_staleness(np.array(tau)) == pytest.approx(sum(pairs) / len(pairs) if pairs else 0.0)


def test_an_answer_tells_times_idling_and_how_long_it_took() -> None:
    problem = problem_with(samples=12)
    ticks = iter([10.0, 10.5])
    found = solve(problem, "eta", clock=lambda: next(ticks))
    assert found.solve_s == 0.5
    assert found.samples.tolist() == [6, 6]
    assert found.tau.tolist() == [8, 3]
    assert found.cycle_time_s == pytest.approx([0.1 * 8 * 6, 0.2 * 3 * 6 + 0.06 + 0.5])
    assert found.idle_share == pytest.approx(1 - (4.8 + 4.16) / 10)
    assert (found.updates_total, found.max_staleness) == (11, 5)
    assert isinstance(found.max_staleness, int)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("integer", INTEGERS)
def test_each_scheme_answers_by_each_rule(scheme: Any, integer: Any) -> None:
    for problem in (published(10, 15.0), fleet(30, cycle_s=20.0)):
        found = solve(problem, scheme, integer)
        assert (found.scheme, found.integer, found.feasible) == (scheme, integer, True)
        assert found.samples.sum() == pytest.approx(problem.samples, rel=1e-9)
        assert found.samples.dtype == found.tau.dtype == (np.float64 if integer == "relaxed" else np.int64)


def test_one_learner_takes_all() -> None:
    problem = Problem(["a"], [0.01], [0.001], [0.1], [1], [100], 50, 2.0)
    for scheme in SCHEMES:
        found = solve(problem, scheme)
        assert (found.samples.tolist(), found.tau.tolist()) == ([50], [3])
        assert (found.max_staleness, found.average_staleness) == (0, 0.0)
    assert solve(problem, integer="relaxed").tau == pytest.approx([1.85 / 0.5])


def test_an_energy_limit_costs_updates_and_is_kept() -> None:
    free = fleet(20, cycle_s=15.0)
    joules = Energy(free.compute * 4, free.transfer, free.fixed, np.where(np.arange(20) % 2, 30.0, np.inf))
    fields = ("names", "compute", "transfer", "fixed", "min_samples", "max_samples", "samples", "cycle_s")
    limited = Problem(**{name: getattr(free, name) for name in fields}, energy=joules)
    for scheme, integer in itertools.product(SCHEMES, INTEGERS):
        found = solve(limited, scheme, integer)
        used = (
            joules.per_sample_update * found.tau * found.samples
            + joules.per_sample * found.samples
            + joules.fixed
        )
        assert found.feasible
        assert (used <= joules.limit * (1 + 1e-9)).all()
        assert found.updates_total is not None
        assert found.updates_total <= (solve(free, scheme, integer).updates_total or 0)
