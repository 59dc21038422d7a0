"""ADSP: equal commit counts on a fixed grid, without bursts and without oscillation."""

import pytest

from offbeat_scheduler.models import make_model
from offbeat_scheduler.sync import Device, Fleet, Grid
from support.virtual import Hand, run_settings, trio

PERIOD_S = 6.0


def adsp(period_s=PERIOD_S, **options):
    run = run_settings({"adsp": options}, period_s)
    return make_model(run.sync, run)


def fixed(rate, devices=None, **options):
    return Hand(adsp(rate=rate, **options), devices or trio())


def test_a_fixed_rate_divides_the_check_period_and_searches_nothing():
    hand = fixed(4)
    assert hand.plan.triggers == dict.fromkeys(trio(), Grid(1.5, 0.0))
    assert (hand.plan.commit_rate, hand.plan.interval_s, hand.plan.searching) == (4, 1.5, False)
    assert hand.to(100).probes == ()


def test_commits_overlap_with_training_unless_told_otherwise():
    assert fixed(4).plan.overlap
    assert not fixed(4, overlap=False).plan.overlap


def test_updates_enter_at_once_and_nobody_waits():
    plan = fixed(4).plan
    assert (plan.fold.when, plan.fold.weight, plan.gate.slack, plan.cohort) == ("at_once", "equal", None, ())


@pytest.mark.parametrize(("rate", "window_s"), [(4, 2 * PERIOD_S), (1, 3 * PERIOD_S)])
def test_m_counts_who_was_seen_within_two_check_periods_and_three_intervals(rate, window_s):
    assert fixed(rate).plan.membership_window_s == pytest.approx(window_s)


def test_nothing_new_is_said_while_nothing_changes():
    hand = fixed(4)
    first = hand.plan.triggers
    hand.to(20 * PERIOD_S)
    assert all(plan.triggers == first for plan in hand.plans)


# ---- deficits ----------------------------------------------------------------------


def test_a_commit_in_flight_at_the_checkpoint_is_no_deficit():
    hand = fixed(4, trio(commit_s=1.0))
    first = hand.plan.triggers
    # The deadline at 6 s has just passed: only three commits of the four are counted.
    for name in hand.devices:
        hand.change(name, commits=3)
    hand.now_s = PERIOD_S
    assert hand.decide().triggers == first


def test_commits_that_were_counted_a_while_ago_are_no_deficit_either():
    hand = fixed(4)
    fleet = Fleet(PERIOD_S, dict(hand.devices), counted_at_s=1.4)
    assert hand.model.decide(fleet).triggers == dict.fromkeys(trio(), Grid(1.5, 0.0))


def test_missed_commits_are_made_up_for_in_the_next_check_period():
    hand = fixed(4)
    hand.to(4.0)  # 2 commits each
    hand.to(PERIOD_S, losing=("slow",))  # the others: 4
    assert hand.plan.triggers["fast-1"] == Grid(1.5, 0.0)
    # Two are missing; the one that is due at 6 s may be on its way.
    assert hand.plan.triggers["slow"].interval_s == pytest.approx(PERIOD_S / 5)
    hand.to(4 * PERIOD_S)
    assert len(set(hand.counts().values())) == 1
    assert hand.plan.triggers["slow"] == hand.plan.triggers["fast-1"]


def test_nobody_is_asked_for_more_than_twice_the_commits():
    hand = fixed(4)
    hand.to(3 * PERIOD_S - 0.1, losing=("slow",))
    for period in range(3, 12):
        hand.to(period * PERIOD_S)
        assert hand.plan.triggers["slow"].interval_s >= PERIOD_S / 8 - 1e-9
    assert len(set(hand.counts().values())) == 1


def test_catching_up_does_not_ask_for_what_the_device_cannot_do():
    devices = trio()
    devices["slow"] = Device("slow", step_s=1.0, commit_s=0.3, hold_s=0.01)
    hand = fixed(4, devices)
    hand.to(2 * PERIOD_S, losing=("slow",))
    assert hand.plan.triggers["slow"].interval_s == pytest.approx(1.5)


def test_who_committed_too_often_commits_less_but_at_least_once():
    hand = fixed(4)
    hand.to(PERIOD_S - 0.1)
    hand.change("fast-1", commits=6)
    hand.to(PERIOD_S)
    commits = PERIOD_S / hand.plan.triggers["fast-1"].interval_s
    assert 1 <= commits < 4


# ---- who comes, goes, or is too slow ---------------------------------------------------


def test_a_joiner_takes_the_common_grid_and_has_nothing_to_catch_up():
    hand = fixed(4)
    hand.to(10 * PERIOD_S + 2)
    hand.devices["new"] = Device("new", joined_s=hand.now_s)
    hand.decide()
    assert hand.plan.triggers["new"] == hand.plan.triggers["slow"]
    hand.to(12 * PERIOD_S)
    hand.change("new", step_s=0.1, commit_s=0.05)
    for period in range(13, 18):
        hand.to(period * PERIOD_S)
        assert hand.plan.triggers["new"] == hand.plan.triggers["slow"]
    assert hand.counts()["new"] < hand.counts()["slow"] / 2


def test_who_comes_back_does_not_catch_up_on_its_absence():
    hand = fixed(4)
    hand.to(5 * PERIOD_S)
    gone = hand.devices.pop("fast-2")
    hand.decide()
    assert set(hand.plan.triggers) == set(hand.devices)
    hand.to(20 * PERIOD_S)
    hand.devices["fast-2"] = gone
    hand.decide()
    for period in range(21, 25):
        hand.to(period * PERIOD_S)
        assert hand.plan.triggers["fast-2"] == hand.plan.triggers["slow"]


def test_a_restart_that_nobody_saw_leave_is_an_absence_too():
    hand = fixed(4)
    hand.to(5 * PERIOD_S)
    hand.change("fast-2", joined_s=hand.now_s, commits=3)
    hand.decide()
    hand.to(6 * PERIOD_S)
    assert hand.plan.triggers["fast-2"] == hand.plan.triggers["slow"]


def test_a_server_that_forgot_commits_causes_no_burst():
    hand = fixed(4)
    hand.to(5 * PERIOD_S)
    for name in hand.devices:
        hand.change(name, commits=7)
    hand.decide()
    hand.to(6 * PERIOD_S)
    assert set(hand.plan.triggers.values()) == {Grid(1.5, 0.0)}


def test_a_device_too_slow_for_the_interval_is_exempt_and_that_is_said():
    devices = trio()
    devices["slow"] = Device("slow", step_s=2.5, commit_s=0.1)
    hand = fixed(4, devices)
    hand.to(5 * PERIOD_S, losing=("slow",))
    assert hand.plan.triggers["slow"] == hand.plan.triggers["fast-1"]
    assert len(hand.plan.notes) == 1
    assert "slow" in hand.plan.notes[0]
    assert "2.5 s" in hand.plan.notes[0]
    # Once it is quick enough it is one of them again, without a burst.
    hand.change("slow", step_s=0.3)
    hand.to(7 * PERIOD_S)
    assert hand.plan.notes == ()
    assert hand.plan.triggers["slow"] == hand.plan.triggers["fast-1"]


def test_a_note_does_not_change_with_every_measurement():
    devices = trio()
    devices["slow"] = Device("slow", step_s=2.5, commit_s=0.1)
    hand = fixed(4, devices)
    hand.to(PERIOD_S)
    said = hand.plan.notes
    hand.change("slow", step_s=2.6)
    assert hand.to(3 * PERIOD_S).notes == said


def test_a_run_goes_on_after_everybody_was_away():
    hand = Hand(adsp(), trio())
    for _ in range(20):
        hand.to(hand.now_s + 1)
        hand.loss(1 / (1 + hand.now_s))
    away = hand.devices
    hand.devices = {}
    assert hand.decide().triggers == {}
    hand.now_s = 500.0
    hand.devices = dict(away)
    hand.decide()
    assert set(hand.plan.triggers) == set(away)
    assert hand.plan.wake_at_s is not None
    assert hand.plan.wake_at_s >= 500


# ---- time ------------------------------------------------------------------------------


def test_a_decision_that_comes_late_stays_on_the_grid():
    hand = fixed(4)
    hand.now_s = PERIOD_S + 0.4
    for name in hand.devices:
        hand.change(name, commits=4)
    assert hand.decide().triggers == dict.fromkeys(trio(), Grid(1.5, 0.0))
    assert hand.plan.wake_at_s == pytest.approx(2 * PERIOD_S)


def test_a_driver_that_slept_for_long_asks_nobody_to_catch_up_with_the_clock():
    hand = fixed(4)
    hand.now_s = 100 * PERIOD_S + 0.1
    for name in hand.devices:
        hand.change(name, commits=400)
    assert hand.decide().triggers == dict.fromkeys(trio(), Grid(1.5, 0.0))


def test_deciding_more_often_changes_nothing():
    one, other = fixed(4), fixed(4)
    one.to(5 * PERIOD_S)
    while other.now_s < 5 * PERIOD_S:
        other.to(round(other.now_s + 0.25, 2))
    assert one.plan == other.plan


def test_before_anything_is_measured_the_interval_is_safe_and_a_look_is_taken_soon():
    hand = Hand(adsp(60.0), {name: Device(name) for name in trio()})
    assert 0 < hand.plan.interval_s <= 5
    assert hand.plan.wake_at_s <= 1


@pytest.mark.parametrize("search", ["robust", "formula"])
def test_as_long_as_nothing_is_measured_the_interval_stays_safe(search):
    hand = Hand(adsp(search=search), {name: Device(name) for name in trio()})
    for _ in range(30):
        hand.to(hand.now_s + 2)
        assert 1 <= hand.plan.interval_s <= PERIOD_S


def test_an_interval_shorter_than_a_commit_is_given_up_as_soon_as_that_is_known():
    hand = Hand(adsp(), {name: Device(name, step_s=d.step_s) for name, d in trio().items()})
    hand.to(2.5)
    assert hand.plan.interval_s < 2
    for name in hand.devices:
        hand.change(name, commit_s=2.2, hold_s=0.01)
    hand.to(3.1)
    assert hand.plan.interval_s >= 2.2


@pytest.mark.parametrize("search", ["robust", "formula", "source"])
def test_the_interval_never_falls_below_a_step_or_a_commit_of_the_fleet(search):
    devices = trio(commit_s=1.7)
    hand = Hand(adsp(20.0, search=search), devices)
    value = 2.0
    while hand.now_s < 400:
        hand.to(hand.now_s + 1)
        value *= 0.995
        hand.loss(value)
        assert hand.plan.interval_s >= 1.7
        assert hand.plan.notes == () or "slow" in hand.plan.notes[0]


def test_one_hopeless_device_does_not_hold_back_the_fleet():
    devices = {f"d{i}": Device(f"d{i}", step_s=0.1, commit_s=0.05, hold_s=0.005) for i in range(5)}
    devices["stone"] = Device("stone", step_s=30.0, commit_s=0.05, hold_s=0.005)
    hand = Hand(adsp(20.0, search="formula"), devices)
    hand.to(30)
    assert hand.plan.interval_s < 3
    assert any("stone" in note for note in hand.plan.notes)


def test_the_hubs_load_bounds_the_rate():
    devices = {f"d{i:03}": Device(f"d{i:03}", step_s=0.05, commit_s=0.05, hold_s=1e-4) for i in range(200)}
    model = adsp(20.0, search="formula")
    model.decide(Fleet(0.0, devices, server_s=0.01))
    plan = model.decide(Fleet(0.5, devices, server_s=0.01))
    assert 200 * 0.01 / plan.interval_s <= 0.5
    assert any("parameter server" in note for note in plan.notes)
