"""When a commit is due, by lists of moments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_worker.trigger import Grid, Passes, Rule, Steps, Trigger


def _commits(rule: Rule, boundaries: list[float], start: float = 0.0) -> list[float]:
    """The batch boundaries at which commits start, none being in flight at any."""
    trigger = Trigger()
    trigger.set(rule, start)
    served = []
    for now in boundaries:
        if trigger.due(now, steps=1, passes=0):
            trigger.served(now)
            served.append(now)
    return served


def test_commits_start_at_the_first_boundary_after_each_deadline_and_do_not_drift() -> None:
    boundaries = [0.7 * i for i in range(1, 60)]
    served = _commits(Grid(0.0, 2.0), boundaries)
    assert len(served) == 20
    for k, moment in enumerate(served, start=1):
        assert 0 <= moment - 2.0 * k < 0.7


def test_slow_steps_serve_one_of_several_missed_deadlines() -> None:
    assert _commits(Grid(0.0, 1.0), [3.5, 7.0, 10.5]) == [3.5, 7.0, 10.5]


def test_a_joiner_does_not_commit_for_deadlines_before_it_came() -> None:
    assert _commits(Grid(0.0, 10.0), [41.0, 49.0, 50.5, 55.0], start=40.5) == [50.5]


def test_no_commit_without_a_step() -> None:
    trigger = Trigger()
    trigger.set(Grid(0.0, 1.0), 0.0)
    assert not trigger.due(5.0, steps=0, passes=0)
    assert trigger.due(5.0, steps=1, passes=0)


def test_a_grid_that_shifts_by_the_networks_jitter_serves_each_deadline_once() -> None:
    trigger = Trigger()
    trigger.set(Grid(0.0, 1.0), 0.0)
    assert trigger.due(1.01, 1, 0)
    trigger.served(1.01)
    trigger.set(Grid(0.05, 1.0), 1.02)  # its deadline 1.05 is the one that was served
    assert not trigger.due(1.1, 1, 0)
    assert trigger.deadline_s == pytest.approx(2.05)
    trigger.set(Grid(-0.05, 1.0), 1.5)
    assert trigger.deadline_s == pytest.approx(1.95)


def test_a_deadline_that_is_due_is_not_lost_to_a_new_directive() -> None:
    trigger = Trigger()
    trigger.set(Grid(0.0, 2.0), 0.0)
    trigger.set(Grid(0.0, 5.0), 2.1)  # came while a slow step hid the deadline at 2.0
    assert trigger.due(2.5, 1, 0)
    trigger.served(2.5)
    assert trigger.deadline_s == 5.0


def test_points_of_a_new_grid_that_lie_behind_are_not_served() -> None:
    trigger = Trigger()
    trigger.set(Grid(0.0, 100.0), 0.0)
    trigger.set(Grid(0.0, 2.0), 51.0)
    assert not trigger.due(51.5, 1, 0)
    assert trigger.due(52.0, 1, 0)


@settings(max_examples=200)
@given(
    interval=st.floats(0.1, 5.0),
    step=st.floats(0.01, 0.09),
    jitter=st.lists(st.floats(-0.2, 0.2), min_size=30, max_size=30),
)
def test_a_worker_that_is_fast_enough_serves_every_deadline_whatever_the_jitter(
    interval: float, step: float, jitter: list[float]
) -> None:
    """A directive comes with each commit, and its grid is off by up to a fifth of the interval."""
    trigger = Trigger()
    trigger.set(Grid(0.0, interval), 0.0)
    now, count = 0.0, 0
    while now < 20 * interval:
        now += step
        if trigger.due(now, 1, 0):
            trigger.served(now)
            trigger.set(Grid(jitter[count % 30] * interval, interval), now)
            count += 1
    # Jitter of either sign shifts the last of twenty deadlines into or out of the window.
    assert 19 <= count <= 20 or (count == 21 and jitter[20] < 0)


def test_steps_and_passes_count_from_the_last_cut() -> None:
    trigger = Trigger()
    trigger.set(Steps(4), 0.0)
    assert [trigger.due(0.0, n, 0) for n in (0, 3, 4, 9)] == [False, False, True, True]
    trigger.set(Passes(2), 0.0)
    assert [trigger.due(0.0, 10, n) for n in (0, 1, 2)] == [False, False, True]


def test_before_any_rule_nothing_is_due() -> None:
    assert not Trigger().due(1e9, 1, 1)
