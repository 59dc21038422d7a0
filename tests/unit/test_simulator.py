"""The simulator: the real decisions in virtual time, and what they make of three unequal devices."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_cli.simulator import (
    Evaluation,
    Perceptron,
    PowerLaw,
    Quadratic,
    VirtualDevice,
    simulate,
    time_to_loss,
)
from offbeat_core.config import Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.sync import Fold, Gate, Group, Plan, Steps, SyncModel
from support.virtual import run_settings


def trio(commit_s=0.1, hold_s=0.003, jitter=0.0):
    """Speeds 1, 3, 3."""
    return [
        VirtualDevice(name, step_s, commit_s, hold_s, jitter)
        for name, step_s in (("slow", 0.3), ("fast-1", 0.1), ("fast-2", 0.1))
    ]


def spread(result):
    counts = [device.commits for device in result.devices.values()]
    return max(counts) - min(counts), max(counts)


def digits(seed, shards=3):
    datasets = pytest.importorskip("sklearn.datasets")
    data, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(data))
    return Perceptron(
        data / 16, labels, np.array_split(order[360:], shards), order[:360], learning_rate=0.1, seed=seed
    )


# ---- the same seed, the same run ---------------------------------------------------------


@pytest.mark.parametrize("sync", ["adsp", "bsp", "fixed-adacomm:4"])
def test_the_same_seed_gives_the_same_run_and_another_one_does_not(sync):
    def run(seed):
        work = Quadratic(seed=seed)
        return simulate(run_settings(sync), trio(jitter=0.2), work, max_s=30, report_every_s=1, seed=seed)

    first = run(1)
    assert run(1) == first
    assert run(2) != first


def test_what_was_decided_is_decided_again_from_the_same_fleets():
    run = run_settings("adsp")
    model = make_model(run.sync, run)
    events = []
    decide, observe = model.decide, model.observe
    model.decide = lambda fleet: (events.append((fleet, decide(fleet))), events[-1][1])[1]
    model.observe = lambda loss: (events.append((loss, None)), observe(loss))[1]
    simulate(run, trio(jitter=0.2), Quadratic(), max_s=40, report_every_s=1, model=model)
    again = make_model(run.sync, run)
    for event, plan in events:
        if plan is None:
            again.observe(event)
        else:
            assert again.decide(event) == plan


# ---- nothing is lost ------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["adsp:4", {"adsp": {"rate": 4, "overlap": False}}])
def test_every_step_enters_the_model_once(sync):
    """Without a price on age, the model's progress is the mean of all steps whose commit arrived."""
    result = simulate(run_settings(sync), trio(commit_s=1.0), PowerLaw(0.0, a=0, b=1, s0=1, beta=1), max_s=59)
    done = sum(device.steps for device in result.devices.values()) / 3
    progress = 1 / result.evaluations[-1].loss - 1
    on_the_way = 3.0 * sum(1 / device.step_s for device in trio()) / 3
    assert done - on_the_way <= progress <= done


def test_a_barrier_enters_the_mean_of_equal_steps():
    result = simulate(
        run_settings("fixed-adacomm:5"), trio(), PowerLaw(0.0, a=0, b=1, s0=1, beta=1), max_s=60
    )
    rounds = result.devices["slow"].commits
    assert 1 / result.evaluations[-1].loss - 1 == pytest.approx(5 * rounds, abs=10)
    assert spread(result)[0] <= 1


# ---- commit counts (the acceptance of the live demo, for any fleet) ------------------------------


@st.composite
def fleets(draw):
    jitter = draw(st.sampled_from([0.0, 0.05, 0.2]))
    return [
        VirtualDevice(f"d{i}", draw(st.floats(0.1, 1.0)), draw(st.floats(0.01, 2.0)), 0.002, jitter)
        for i in range(draw(st.integers(2, 4)))
    ]


@settings(deadline=None, max_examples=25)
@given(
    fleet=fleets(),
    sync=st.sampled_from(
        [{"search": "robust"}, {"search": "formula"}, {"overlap": False}, {"rate": 1}, {"rate": 2}]
    ),
    report_every_s=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_everyone_commits_equally_often_whatever_its_speed(fleet, sync, report_every_s, seed):
    result = simulate(
        run_settings({"adsp": sync}, 10.0),
        fleet,
        PowerLaw(0.02, noise=0.01, seed=seed),
        max_s=73,
        report_every_s=report_every_s,
        control_s=0.02,
        seed=seed,
    )
    difference, most = spread(result)
    assert most > 0
    # With 20 % of jitter a step and a commit do not always fit the shortest interval, which a search may
    # choose: those are made up for.
    fits = fleet[0].jitter < 0.2 or "rate" in sync
    assert difference <= 1 + (0.05 if fits else 0.1) * most


@settings(deadline=None, max_examples=15)
@given(fleet=fleets(), joins_s=st.floats(5, 60), seed=st.integers(0, 99))
def test_a_joiner_commits_as_often_as_the_others_from_then_on_and_never_more(fleet, joins_s, seed):
    fleet = [*fleet, VirtualDevice("joiner", 0.2, 0.1, 0.002, joins_s=joins_s)]
    result = simulate(
        run_settings("adsp:2", 10.0), fleet, PowerLaw(0.02), max_s=100, control_s=0.02, seed=seed
    )
    due = (100 - joins_s) / 5
    assert due - 2 <= result.devices["joiner"].commits <= due + 1
    intervals = [plan.triggers["joiner"].interval_s for _, plan in result.plans if "joiner" in plan.triggers]
    assert min(intervals) >= 2.5  # never more than twice the others


def test_a_device_that_slows_down_is_followed_within_a_check_period():
    fleet = [*trio()[1:], VirtualDevice("slow", 0.3, 0.1, 0.003, speeds=((40.0, 1.5),))]
    result = simulate(run_settings({"adsp": {"search": "formula"}}), fleet, PowerLaw(0.02), max_s=100)
    before = [plan.interval_s for at_s, plan in result.plans if 20 < at_s < 40]
    after = [plan.interval_s for at_s, plan in result.plans if at_s > 52]
    assert max(before) < 1.0
    assert min(after) >= 1.5


# ---- nobody waits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("commit_s", [0.01, 0.1, 2.0])
def test_under_adsp_nobody_waits_for_network_or_others(commit_s):
    result = simulate(run_settings("adsp"), trio(commit_s), PowerLaw(0.02), max_s=60, report_every_s=1)
    for device in result.devices.values():
        assert device.wait_share <= 0.02
        assert device.compute_share + device.commit_share + device.wait_share == pytest.approx(1)


def test_behind_a_barrier_the_fast_ones_wait_most_of_the_time():
    result = simulate(run_settings("bsp"), trio(), PowerLaw(0.02), max_s=60)
    assert result.devices["fast-1"].wait_share > 0.6
    assert result.devices["slow"].wait_share > 0.2


def test_adsp_reaches_the_loss_well_before_any_barrier():
    """Real gradients on real data: speeds 1, 3, 3; a commit takes 0.3 of the slowest's step."""

    def seconds(sync):
        times = []
        for seed in (1, 2):
            run = run_settings(
                sync,
                evaluate={"every_s": 0.5},
                target={"loss": 0.45, "smooth": 10, "confirm": 1},
                limits={"seconds": 300},
            )
            result = simulate(
                run, trio(0.09, jitter=0.05), digits(seed), max_s=300, report_every_s=1, seed=seed
            )
            times.append(result.end_s if result.reached else math.inf)
        return float(np.mean(times))

    best_barrier = min(seconds(sync) for sync in ("bsp", "fixed-adacomm:4", "fixed-adacomm:16"))
    assert seconds("adsp") <= 0.55 * best_barrier


# ---- members come and go --------------------------------------------------------------------------


def test_a_barrier_goes_on_without_a_member_that_vanished():
    fleet = [*trio()[:2], VirtualDevice("gone", 0.1, leaves_s=10.0)]
    result = simulate(run_settings("bsp"), fleet, PowerLaw(0.02), max_s=60)
    assert result.devices["gone"].commits < 60
    assert result.devices["slow"].commits > 80
    assert set(result.plan.cohort) == {"slow", "fast-1"}


def test_the_run_goes_on_after_everybody_left_and_one_returned():
    fleet = [
        VirtualDevice("first", 0.1, leaves_s=15.0),
        VirtualDevice("second", 0.1, joins_s=60.0),
    ]
    result = simulate(run_settings("adsp"), fleet, PowerLaw(0.02, noise=0.01), max_s=120)
    assert result.devices["second"].commits > 20
    assert result.evaluations[-1].loss < result.evaluations[50].loss


def test_a_loaded_server_is_never_asked_for_more_than_half_its_time():
    fleet = [VirtualDevice(f"d{i:02}", 0.1, 0.05, 0.001) for i in range(20)]
    server_s = 0.05
    run = run_settings({"adsp": {"search": "formula"}}, 20.0)
    result = simulate(run, fleet, PowerLaw(0.02), max_s=60, server_s=server_s)
    assert len(fleet) * server_s / result.plan.interval_s <= 0.5 + 1e-9
    assert all(device.wait_share <= 0.02 for device in result.devices.values())


# ---- measuring ---------------------------------------------------------------------------------------


def test_time_to_loss_is_when_the_mean_of_the_last_evaluations_crosses():
    evaluations = tuple(Evaluation(float(i), 10.0 - i, 0.0, 0, 0) for i in range(11))
    assert time_to_loss(evaluations, 5.0, window=1) == 5.0
    assert time_to_loss(evaluations, 5.0, window=3) == 6.0
    assert time_to_loss(evaluations, -5.0, window=3) == math.inf


def test_a_run_ends_at_its_target_and_else_at_its_time():
    work = PowerLaw(0.0, a=0, b=1, s0=1, beta=1)
    reached = simulate(run_settings(target={"loss": 0.01, "confirm": 2}), trio(), work, max_s=500)
    assert reached.reached
    assert reached.end_s < 100
    assert reached.evaluations[-1].loss <= reached.evaluations[-2].loss <= 0.01
    over = simulate(run_settings(target={"loss": 1e-9}), trio(), work, max_s=20)
    assert not over.reached
    assert over.end_s == 20


# ---- who rests, rounds, batches ---------------------------------------------------------------------


class Planned(SyncModel):
    """Gives the plans of a script; keeps what it saw."""

    name = "planned"

    class Options(Settings):
        """None."""

    def __init__(self, plan):
        super().__init__(self.Options(), run_settings())
        self._plan = plan
        self.seen = []

    def decide(self, fleet):
        self.seen.append(fleet)
        return self._plan(fleet)


def planned(plan, fleet, max_s=30.0, work=None, **more):
    model = Planned(plan)
    work = work or PowerLaw(0.0, a=0, b=1, s0=1, beta=1)
    return simulate(run_settings(), fleet, work, max_s=max_s, model=model, **more), model


def test_a_device_that_rests_waits_and_goes_on_from_a_fresh_model_with_each_step_once():
    def plan(fleet):
        rests = 10 <= fleet.now_s < 20
        training = {name: Steps(2) for name in fleet.devices if not (rests and name == "slow")}
        resting = fleet.devices.keys() - training.keys()
        return Plan(
            training,
            fold=Fold(),
            resting=frozenset(resting),
            overlap=True,
            wake_at_s=10.0 * (1 + fleet.now_s // 10),
        )

    result, _ = planned(plan, trio(commit_s=0.0, hold_s=0.0))
    slow, fast = result.devices["slow"], result.devices["fast-1"]
    assert slow.wait_share == pytest.approx(1 / 3, abs=0.02)
    assert fast.wait_share == 0
    assert slow.steps == pytest.approx(20 / 0.3, abs=2)
    done = sum(device.steps for device in result.devices.values()) / 3
    assert done - 2 <= 1 / result.evaluations[-1].loss - 1 <= done


def test_in_a_round_everyone_commits_once_and_the_next_begins_when_the_gate_has_closed():
    rounds = []

    def plan(fleet):
        if not rounds or fleet.closed:
            rounds.append(fleet.now_s)
        return Plan(
            {name: Steps(1) for name in fleet.devices},
            gate=Gate(0),
            fold=Fold("at_gate"),
            cohort=tuple(fleet.devices),
            round=len(rounds),
        )

    result, _ = planned(plan, trio(commit_s=0.1, hold_s=0.0), control_s=0.05)
    assert spread(result)[0] <= 1  # the last round was cut short
    commits = result.devices["slow"].commits
    assert len(rounds) in (commits, commits + 1)
    # A step of the slowest, its commit, and the way of the directive that begins the next round.
    assert np.allclose(np.diff(rounds), 0.3 + 0.05 + max(0.05, 0.05) + 0.05, atol=0.051)


def test_a_smaller_batch_takes_less_time_and_counts_fewer_samples():
    def plan(fleet):
        return Plan({name: Steps(4) for name in fleet.devices}, batches={"fast-1": 8}, overlap=True)

    fleet = [VirtualDevice("fast-1", 0.4, fixed_s=0.1), VirtualDevice("fast-2", 0.4, fixed_s=0.1)]
    result, model = planned(plan, fleet, work=PowerLaw(0.0))
    first, second = result.devices["fast-1"], result.devices["fast-2"]
    assert first.steps / second.steps == pytest.approx(0.4 / (0.1 + 0.3 / 4), rel=0.05)
    last = model.seen[-1].devices
    assert last["fast-1"].samples == 8 * last["fast-1"].steps
    assert last["fast-2"].samples == 32 * last["fast-2"].steps


def test_groups_wait_only_for_their_own():
    def plan(fleet):
        groups = (Group(("slow",), Gate(0)), Group(("fast-1", "fast-2"), Gate(0)))
        return Plan({name: Steps(1) for name in fleet.devices}, groups=groups, fold=Fold("at_gate"))

    result, _ = planned(plan, trio(commit_s=0.02))
    assert result.devices["fast-1"].commits > 2.5 * result.devices["slow"].commits
    assert abs(result.devices["fast-1"].commits - result.devices["fast-2"].commits) <= 1


# ---- where the time goes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sync", ["bsp", "ssp:3", "asp", "fixed-adacomm:4", "adsp", {"adsp": {"overlap": False}}]
)
def test_every_moment_of_a_device_is_one_of_computing_committing_and_waiting(sync):
    result = simulate(run_settings(sync), trio(), PowerLaw(0.02), max_s=31.7)
    for device in result.devices.values():
        assert device.compute_share + device.commit_share + device.wait_share == pytest.approx(1)
        assert 0 <= device.travel_share <= device.wait_share + 1e-12


def test_standing_still_for_its_own_commit_is_no_waiting_for_others():
    result = simulate(
        run_settings({"adsp": {"rate": 6, "overlap": False}}), trio(hold_s=0.0), PowerLaw(0.0), max_s=60
    )
    for device in result.devices.values():
        assert device.wait_share == pytest.approx(device.travel_share)
        assert device.travel_share == pytest.approx(0.1, abs=0.02)  # one commit of 0.1 s each second


def test_the_jitter_of_a_device_is_the_same_under_every_model():
    def steps(sync):
        result = simulate(
            run_settings(sync), trio(commit_s=0.0, hold_s=0.0, jitter=0.3), PowerLaw(0.0), max_s=40, seed=4
        )
        return {name: device.steps for name, device in result.devices.items()}

    assert steps({"asp": {"overlap": True}}) == steps("adsp:3")


def test_bytes_are_those_of_each_commit_and_of_each_model_sent():
    result = simulate(run_settings("adsp:3"), trio(), Quadratic(elements=10), max_s=30)
    commits = sum(device.commits for device in result.devices.values())
    assert 40 * (2 * commits + 3) <= result.sent_bytes <= 40 * (2 * commits + 3 + 2 * 3)


# ---- updates that must not enter -------------------------------------------------------------------


def test_an_update_that_is_no_number_is_refused_and_its_device_shut_out():
    class Broken(Quadratic):
        def step(self, device, values, age_s, batch):
            done = super().step(device, values, age_s, batch)
            if device == 1:
                values[:] = np.nan
            return done

    result = simulate(run_settings("adsp:3"), trio(), Broken(), max_s=60)
    assert result.devices["fast-1"].commits == 0
    assert result.devices["fast-1"].refused > 0
    assert all(math.isfinite(point.loss) for point in result.evaluations)
    assert result.devices["slow"].commits > 20


def test_a_model_that_did_not_change_is_not_evaluated_again():
    class Counted(PowerLaw):
        evaluated = 0

        def evaluate(self, values):
            self.evaluated += 1
            return super().evaluate(values)

    work = Counted(0.0)
    result = simulate(
        run_settings("fixed-adacomm:50", evaluate={"every_s": 1.0}), trio(), work, max_s=60, report_every_s=1
    )
    rounds = result.devices["slow"].commits
    assert len(result.evaluations) == 60
    assert work.evaluated <= rounds + 1


# ---- a model that makes mistakes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (lambda fleet: None, "NoneType instead of a Plan"),
        (lambda fleet: Plan({}), "missing"),
        (lambda fleet: Plan(dict.fromkeys(fleet.devices, Steps(0))), "steps for"),
        (lambda fleet: Plan({**dict.fromkeys(fleet.devices, Steps(1)), "nobody": Steps(1)}), "nobody"),
        (lambda fleet: 1 / 0, "ZeroDivisionError"),
        (lambda fleet: sys.exit(0), "SystemExit"),
    ],
)
def test_a_plan_that_cannot_be_followed_ends_the_simulation_as_it_ends_a_run(plan, said):
    with pytest.raises(OffbeatError, match=said):
        planned(plan, trio())


def test_a_model_that_wants_to_be_woken_at_once_does_not_stop_time():
    def plan(fleet):
        return Plan(dict.fromkeys(fleet.devices, Steps(1)), overlap=True, wake_at_s=fleet.now_s)

    result, _ = planned(plan, trio(), max_s=2.0)
    assert result.devices["fast-1"].steps >= 19
