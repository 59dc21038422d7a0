"""The constant formula: against its closed form, and against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_scheduler.search import FormulaSearch, Terms, measure
from offbeat_scheduler.search.progress import GROUPS, best_interval, equal_interval
from offbeat_scheduler.sync import Device, Fleet

KAPPA = st.floats(1e-4, 0.5)
SECONDS = st.floats(0.01, 5.0)


def equal(count, speed, held, delay):
    return Terms(np.full(count, speed), np.full(count, held), np.full(count, delay))


def fleet(*devices, now_s=0.0, server_s=0.0):
    return Fleet(now_s, {device.name: device for device in devices}, server_s)


@given(held=SECONDS, kappa=KAPPA)
def test_without_overlap_it_is_o_plus_root_of_o_squared_plus_o_over_kappa(held, kappa):
    assert equal_interval(held, 0.0, kappa) == pytest.approx(held + math.sqrt(held**2 + held / kappa))


@settings(deadline=None)
@given(held=SECONDS, delay=st.floats(0, 5), kappa=KAPPA, count=st.integers(1, 5))
def test_the_search_on_a_grid_finds_the_closed_form(held, delay, kappa, count):
    exact = equal_interval(held, delay, kappa)
    found = best_interval(equal(count, 2.0, held, delay), kappa, exact / 30, exact * 30)
    assert found == pytest.approx(exact, rel=0.01)


@settings(deadline=None, max_examples=40)
@given(
    devices=st.lists(
        st.tuples(st.floats(0.1, 10), st.floats(0.01, 2), st.floats(0, 2)), min_size=1, max_size=6
    ),
    kappa=KAPPA,
)
def test_for_unequal_devices_no_interval_makes_more_progress(devices, kappa):
    terms = Terms(*np.array(devices).T)
    found = best_interval(terms, kappa, 0.1, 100.0)

    def progress(interval):
        return sum(v * max(0.0, 1 - c / interval) / (1 + kappa * (interval + d)) for v, c, d in devices)

    best = max(progress(interval) for interval in np.geomspace(0.1, 100.0, 3000))
    assert progress(found) >= best * (1 - 1e-4)


def test_the_interval_stays_within_its_bounds():
    terms = equal(3, 2.0, 1.0, 0.0)
    assert best_interval(terms, 0.01, 20.0, 60.0) == pytest.approx(20.0)
    assert best_interval(terms, 0.01, 1.0, 5.0) == pytest.approx(5.0)
    assert best_interval(terms, 0.01, 9.0, 9.0) == 9.0


def test_a_thousand_devices_are_decided_by_groups_of_like_ones():
    random = np.random.default_rng(0)
    terms = Terms(random.uniform(0.5, 5, 1000), random.uniform(0.01, 1, 1000), random.uniform(0, 1, 1000))
    assert terms.grouped.speed.size == GROUPS
    few = best_interval(terms, 0.02, 1.0, 60.0)
    exact = np.array([2.0, few, 2 * few])
    share = terms.speed[:, None] * (1 - terms.held[:, None] / exact)
    true = (share / (1 + 0.02 * (exact + terms.delay[:, None]))).sum(axis=0)
    assert true.argmax() == 1


# ---- 18 devices, H 3.3, slowest step 1 s, Γ = 20 s -------------------------------------


def setting(commit_s, overlap):
    steps = np.linspace(0.303, 1.0, 18)
    devices = [
        Device(f"d{i:02}", step_s=float(step), commit_s=commit_s, hold_s=0.005)
        for i, step in enumerate(steps)
    ]
    return measure(fleet(*devices), 20.0, overlap=overlap)


@pytest.mark.parametrize(("commit_s", "rates"), [(0.1, {4, 5, 6, 7, 8}), (1.0, {1, 2}), (3.0, {1})])
def test_the_regimes_of_the_design_get_their_rates(commit_s, rates):
    segment = FormulaSearch().next(setting(commit_s, overlap=False))
    assert segment.commits in rates
    assert segment.duration_s == pytest.approx(20.0)


def test_overlapped_a_commits_travel_hardly_lowers_the_rate():
    waiting, overlapped = (FormulaSearch().next(setting(1.0, overlap)) for overlap in (False, True))
    assert overlapped.commits >= 3 * waiting.commits


def test_kappa_is_per_step_so_a_fleet_of_double_speed_gets_half_the_interval():
    slow = FormulaSearch().next(measure(fleet(Device("a", step_s=0.2, commit_s=0.4)), 600.0, overlap=False))
    fast = FormulaSearch().next(measure(fleet(Device("a", step_s=0.1, commit_s=0.2)), 600.0, overlap=False))
    assert fast.interval_s == pytest.approx(slow.interval_s / 2, rel=0.05)


def test_the_rate_does_not_move_with_jitter_but_with_a_change():
    search = FormulaSearch()
    rates = [
        search.next(measure(fleet(Device("a", step_s=0.2, commit_s=commit_s)), 60.0, overlap=False)).commits
        for commit_s in (0.3, 0.33, 0.28, 0.31, 0.3, 3.0)
    ]
    assert len(set(rates[:5])) == 1
    assert rates[5] < rates[0]


def test_it_begins_before_anything_is_measured_and_decides_once_it_is():
    search = FormulaSearch()
    unknown = measure(fleet(Device("a"), Device("b")), 60.0, overlap=True)
    first = search.next(unknown)
    assert first.interval_s <= 5
    assert search.revise(unknown, first) is None
    known = measure(
        fleet(*(Device(n, step_s=0.2, commit_s=0.1, hold_s=0.01) for n in "ab"), now_s=1.0),
        60.0,
        overlap=True,
    )
    decided = search.revise(known, first)
    assert decided is not None
    assert decided.duration_s == pytest.approx(60.0)


def test_a_device_of_which_nothing_is_heard_is_not_waited_for():
    search = FormulaSearch()
    devices = (Device("a", step_s=0.2, commit_s=0.1, hold_s=0.01), Device("silent"))
    search.next(measure(fleet(*devices), 6.0, overlap=True))
    assert search.next(measure(fleet(*devices, now_s=30.0), 6.0, overlap=True)).duration_s == pytest.approx(6)
