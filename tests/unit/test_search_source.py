"""The source's search, to the letter, and the weaknesses that it is known for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_scheduler.search import SourceSearch, measure
from offbeat_scheduler.search.source import fit_three, reward
from offbeat_scheduler.sync import Device, Fleet, Loss
from support.virtual import run_settings

PERIOD_S = 10.0


def pace(now_s):
    device = Device("a", step_s=0.1, commit_s=0.05, hold_s=0.01)
    return measure(Fleet(now_s, {"a": device}), PERIOD_S, overlap=True)


class Script:
    """Runs a search on a loss that is a function of time and rate."""

    def __init__(self, search, loss, every_s=0.5):
        self.search, self.loss, self.every_s = search, loss, every_s
        self.rates = []  # (time, commits) of each segment

    def run(self, until_s):
        now = 0.0
        segment, end = self.search.next(pace(now)), 0.0
        end = segment.duration_s
        self.rates.append((now, segment.commits))
        while now < until_s:
            now = round(now + self.every_s, 6)
            self.search.observe(Loss(now, self.loss(now, segment.commits), 0))
            if now >= end:
                segment = self.search.next(pace(now))
            elif (revised := self.search.revise(pace(now), segment)) is not None:
                segment = revised
            else:
                continue
            self.rates.append((now, segment.commits))
            end = now + segment.duration_s
        return self


# ---- the fit and the reward --------------------------------------------------------------


@given(
    a1_squared=st.floats(0.01, 10), a2=st.floats(0.1, 10), a3=st.floats(0, 5), duration=st.floats(0.5, 100)
)
def test_the_curve_through_three_of_its_points_is_found_again(a1_squared, a2, a3, duration):
    points = [1 / (a1_squared * t + a2) + a3 for t in (0, duration / 2, duration)]
    curve = fit_three(*points, duration)
    assert curve is not None
    for t, value in zip((0, duration / 2, duration), points, strict=True):
        assert 1 / (curve[0] * t + curve[1]) + curve[2] == pytest.approx(value, rel=1e-6)


def test_the_reward_is_one_over_the_time_to_the_goal():
    curve = (0.5, 1.0, 0.2)
    goal = 1 / (0.5 * 8 + 1.0) + 0.2  # reached after 8 s
    assert reward(curve, goal) == pytest.approx(1 / 8)


def test_a_line_has_no_such_curve_and_earns_nothing():
    assert fit_three(3.0, 2.0, 1.0, 60) is None
    assert reward(None, 0.5) == 0


# ---- the search ----------------------------------------------------------------------------


def test_the_search_climbs_from_one_while_the_reward_rises():
    speed = {1: 0.2, 2: 0.4, 3: 0.8, 4: 0.01}
    state = {"at": 0.0, "progress": 0.0}

    def loss(now, rate):
        state["progress"] += speed[rate] * (now - state["at"])
        state["at"] = now
        return 1 / (1 + state["progress"])

    script = Script(SourceSearch(evaluations=1, target_loss=0.01), loss).run(80)
    assert [probe.rate for probe in script.search.probes] == [1, 2, 3, 4]
    assert [probe.chosen for probe in script.search.probes] == [False, False, True, False]
    assert script.rates[-1][1] == 3
    assert not script.search.searching


def test_a_probe_lasts_one_check_period_or_what_is_asked_for():
    def loss(now, rate):
        return 1 / (1 + now)

    for probe_s, expected in ((0.0, PERIOD_S), (4.0, 4.0)):
        probes = Script(SourceSearch(probe_s=probe_s), loss).run(60).search.probes
        assert probes
        assert all(probe.end_s - probe.start_s == pytest.approx(expected, abs=0.51) for probe in probes)


def test_the_goal_is_the_target_or_nine_tenths_of_the_loss_at_the_start():
    def loss(now, rate):
        return 2.0 / (1 + 0.1 * now) + 0.3

    script = Script(SourceSearch(evaluations=1), loss).run(12)
    (probe,) = script.search.probes
    curve = fit_three(*(loss(probe.start_s + t, 1) for t in (0, 5, 10)), 10.0)
    assert probe.reward == pytest.approx(reward(curve, 0.9 * loss(probe.start_s, 1)), rel=1e-6)

    (probe,) = Script(SourceSearch(evaluations=1, target_loss=0.7), loss).run(12).search.probes
    assert probe.reward == pytest.approx(reward(curve, 0.7), rel=1e-6)


def test_the_three_losses_are_means_of_the_last_evaluations():
    def loss(now, rate):
        return 1 / (1 + now)

    (probe,) = Script(SourceSearch(evaluations=3), loss, every_s=1.0).run(11.5).search.probes
    end = probe.end_s
    assert probe.loss_end == pytest.approx(sum(loss(end - back, 1) for back in (0, 1, 2)) / 3)


def test_each_epoch_searches_anew_from_one():
    def loss(now, rate):
        return 1 / (1 + now)

    script = Script(SourceSearch(epoch_s=100), loss).run(150)
    begins = [probe.start_s for probe in script.search.probes if probe.rate == 1]
    assert len(begins) == 2
    assert begins[1] - begins[0] >= 100


def test_two_kinds_of_loss_never_meet_in_one_search():
    search = SourceSearch(evaluations=3)
    script = Script(search, lambda now, rate: 5 / (1 + now)).run(8)
    search.observe(Loss(8.1, 0.01, 0, source="workers"))
    segment = search.revise(pace(8.1), search.next(pace(8.1)))
    assert search.searching
    assert search.probes == ()
    assert segment is None or segment.commits == 1
    assert script.rates[0] == (0.0, 1)


# ---- what is known to go wrong with it (kept, for comparison) ---------------------------------


def test_a_rising_loss_can_get_the_best_reward():
    honest = reward(fit_three(1.0, 0.95, 0.91, 60), 0.9)
    rising = reward(fit_three(1.0, 2.5, 2.0, 60), 0.9)
    assert 0 < honest < rising


def test_a_fall_that_slows_down_makes_the_next_rate_look_worse():
    # Shorter intervals are better here, up to 8 commits per check period and more.
    devices = [VirtualDevice(f"d{i}", 0.2, 0.01, 0.001) for i in range(3)]
    run = run_settings({"adsp": {"search": "source"}}, 20.0)
    result = simulate(run, devices, PowerLaw(0.05, s0=10), max_s=120)
    assert result.plan.commit_rate <= 2
