"""ADSP: equal commit counts on a fixed grid, without bursts and without oscillation."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.shown import ALL_DEADLINES, SPARE, Shown
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


# ---- devices that run in bursts ----------------------------------------------------------------


@dataclass(frozen=True)
class Throttled(VirtualDevice):
    """It runs for a quarter of each `cycle_s` and stalls for the rest, as a container that may use a
    quarter of a processor. `step_s` is what a step takes while it runs."""

    cycle_s: float = 0.1

    def step_at(self, now_s, batches=1.0, **how):
        runs_s = self.cycle_s / 4
        phase = now_s % self.cycle_s
        left_s = max(0.0, runs_s - phase)
        if self.step_s <= left_s:
            return self.step_s
        cycles, rest_s = divmod(self.step_s - left_s, runs_s)
        return self.cycle_s - phase + cycles * self.cycle_s + rest_s


class Watched:
    """A model, and what the fleet was each time it was asked."""

    parallelized = False

    def __init__(self, model):
        self._model = model
        self.counts = []  # (time, commits by device)

    def observe(self, loss):
        self._model.observe(loss)

    def decide(self, fleet):
        self.counts.append((fleet.now_s, {name: device.commits for name, device in fleet.devices.items()}))
        return self._model.decide(fleet)

    def apart(self, since_s):
        """The most by which two counts differed at one time."""
        return max(max(c.values()) - min(c.values()) for now_s, c in self.counts if now_s >= since_s)

    def made(self, from_s, to_s):
        """By device, commits between two moments."""
        first = next(counts for now_s, counts in self.counts if now_s >= from_s)
        last = next(counts for now_s, counts in self.counts if now_s >= to_s)
        return {name: last[name] - first[name] for name in first}


def live(devices, seconds, period_s=10.0, seed=0, **options):
    """A run in virtual time with the demo's figures: reports each second, an evaluation every two."""
    run = run_settings({"adsp": options}, period_s, evaluate={"every_s": 2}, target={"loss": 0.301})
    model = Watched(make_model(run.sync, run))
    result = simulate(
        run,
        devices,
        PowerLaw(0.5, noise=0.01, seed=seed),
        max_s=seconds,
        server_s=0.002,
        report_every_s=1.0,
        control_s=0.01,
        seed=seed,
        model=model,
    )
    return model, result


def containers(cycle_s, jitter=0.3):
    """Three devices that may use three, two and one quarter of a processor; the last one in bursts."""
    return [
        VirtualDevice("container-1", 0.0067, 0.02, 0.002, jitter=jitter),
        VirtualDevice("container-2", 0.01, 0.02, 0.002, jitter=jitter),
        Throttled("container-3", 0.005, 0.02, 0.002, jitter=jitter, cycle_s=cycle_s),
    ]


@pytest.mark.parametrize("search", ["robust", "formula"])
@pytest.mark.parametrize("cycle_s", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_device_that_runs_in_bursts_commits_as_often_as_the_others(search, cycle_s, seed):
    """Its mean step and commit fit a far shorter interval than the one that it can keep."""
    model, result = live(containers(cycle_s), 200.0, seed=seed, search=search)
    commits = [device.commits for device in result.devices.values()]
    assert min(commits) >= 0.98 * max(commits)
    assert result.plan.interval_s >= cycle_s * 0.75
    # Nor is the interval longer than that takes.
    assert result.plan.interval_s <= 2.5 * cycle_s
    # What is missed of one check period is made up for in the next.
    assert model.apart(since_s=100.0) <= max(6, 0.2 * 10.0 / result.plan.interval_s)


@pytest.mark.parametrize("rate", [10, 25])
def test_at_a_fixed_rate_that_its_bursts_allow_it_keeps_up_in_each_check_period(rate):
    model, result = live(containers(0.1), 100.0, rate=rate)
    commits = [device.commits for device in result.devices.values()]
    assert max(commits) - min(commits) <= 1
    for start_s in range(20, 90, 10):
        made = model.made(start_s, start_s + 10).values()
        assert max(made) - min(made) <= 1


def test_the_interval_of_a_bursty_fleet_neither_swings_nor_stays_long_for_ever():
    _, result = live(containers(0.2), 300.0, search="formula")
    intervals = [plan.interval_s for now_s, plan in result.plans if now_s > 150]
    assert max(intervals) <= 2 * min(intervals)
    assert len(set(intervals)) <= 12

    class Relieved(Throttled):
        """The burden is gone after 100 s."""

        def step_at(self, now_s, batches=1.0, **how):
            return super().step_at(now_s) if now_s < 100 else self.step_s

    fleet = [*containers(0.2)[:2], Relieved("container-3", 0.005, 0.02, 0.002, jitter=0.3, cycle_s=0.2)]
    _, result = live(fleet, 600.0, search="formula")
    before = next(plan.interval_s for now_s, plan in reversed(result.plans) if now_s < 100)
    assert before > 0.15
    assert result.plan.interval_s < before / 2


def test_a_device_that_stalls_for_longer_than_the_others_care_for_does_not_hold_them_back():
    fleet = containers(5.0)
    alone, _ = live(fleet[:2], 100.0, search="formula")
    _, result = live(fleet, 100.0, search="formula")
    commits = {name: device.commits for name, device in result.devices.items()}
    assert commits["container-1"] == pytest.approx(commits["container-2"], abs=3)
    assert commits["container-1"] > 0.5 * alone.counts[-1][1]["container-1"]
    assert any("container-3" in note for note in result.plan.notes)


@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5),
    commit_s=st.floats(0.01, 0.5),
    fits=st.floats(1.3, 4.0),
    jitter=st.sampled_from([0.0, 0.1, 0.2]),
    overlap=st.booleans(),
    seed=st.integers(0, 5),
)
def test_commits_are_within_one_of_each_other_in_each_check_period(
    steps, commit_s, fits, jitter, overlap, seed
):
    """Wherever a step and a commit fit the interval."""
    need_s = math.exp(2 * jitter) * (max(steps) + commit_s)
    rate = max(1, math.floor(20.0 / (fits * need_s)))
    fleet = [VirtualDevice(f"d{i}", step_s, commit_s, 0.002, jitter=jitter) for i, step_s in enumerate(steps)]
    model, _ = live(fleet, 201.0, period_s=20.0, seed=seed, rate=rate, overlap=overlap)
    # Cumulative, at any time: so it holds of each check period.
    assert model.apart(since_s=0.0) <= 1 + (jitter > 0)


def shown(*windows, interval_s=0.1, measured_s=0.05, into=None):
    """Windows of (deadlines dealt, missed), a check period of 10 s each."""
    found = into or Shown(10.0)
    for number, (dealt, missed) in enumerate(windows):
        found.take(10.0 * number, interval_s, interval_s * dealt, dealt, missed, measured_s)
    return found


def test_a_device_needs_the_interval_that_it_was_seen_to_achieve():
    assert shown((40, 12)).need_s == pytest.approx(SPARE * 0.1 * 40 / 28)


@pytest.mark.parametrize("windows", [[(ALL_DEADLINES, 2)], [(100, 10)], [(5, 4)]])
def test_few_misses_and_commits_that_come_late_show_nothing(windows):
    assert shown(*windows).need_s == 0


def test_who_made_no_commit_at_all_was_not_there():
    assert shown((40, 40)).need_s == 0


def test_who_was_cut_off_for_most_of_the_time_is_not_taken_for_slow_at_once():
    assert shown((40, 39)).need_s == pytest.approx(0.16)


def keeping_up(found, interval_s, periods):
    """The needs after each of so many check periods without a miss."""
    needs = []
    for number in range(1, periods + 1):
        found.take(1000.0 + 10.0 * number, interval_s, 10.0, round(10.0 / interval_s), 0, 0.05)
        needs.append(found.need_s)
    return needs


def test_what_was_shown_fades_while_the_device_keeps_up():
    found = shown((100, 20), interval_s=0.1)
    needs = keeping_up(found, 0.13, 200)
    assert needs == sorted(needs, reverse=True)
    assert 0.8 * needs[0] < needs[4]
    assert needs[-1] == 0


def test_each_time_that_it_has_to_rise_again_it_stays_for_longer():
    def held(found):
        found.take(now_s := 10_000.0, 0.1, 10.0, 100, 30, 0.05)
        need_s = found.need_s
        while found.need_s == need_s:
            now_s += 10.0
            found.take(now_s, need_s, 10.0, 100, 0, 0.05)
        return now_s

    found = Shown(10.0)
    first, second, third = (held(found) for _ in range(3))
    assert first < second < third


def test_an_interval_that_is_kept_is_not_too_short():
    found = shown((100, 30))
    assert found.need_s > 0.11
    found.take(20.0, 0.11, 11.0, 100, 0, 0.05)
    assert found.need_s == 0.11
