"""Scheduler and parameter server together: whatever comes and goes, training goes on."""

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import Settings
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from offbeat_scheduler.sync import SyncModel
from support.scheduler_whole import Whole
from support.scheduler_world import run_settings

SPEEDS = {"w1": 0.31, "w2": 0.17, "w3": 0.1, "w4": 0.1}

MODELS = [
    "bsp",
    "ssp:2",
    "asp",
    "fixed-adacomm:3",
    "adacomm:4",
    "batchtune-bsp",
    "batchtune-fixed-adacomm:3",
    {"fedavg": {"fraction": 0.5, "tau": 3}},
    {"fedavg": {"fraction": 1.0, "passes": 1}},
    "fedavg:0.2",
    {"fedbuff": {"k": 2, "tau": 3}},
    "fedcompass:6",
    {"adsp": {"rate": 3}},
    {"adsp": {"rate": 3, "overlap": False}},
    "adsp",
    {"adsp": {"rate": 3, "allocation": True}},
    {"adsp": {"allocation": True, "max_staleness": 2, "weight": "samples"}},
]


def begin(sync, folder=None, make=make_model, fixed=(), fits=()):
    whole = Whole(folder, make_model=make)
    whole.fixed.update(fixed)
    whole.fits.update(fits)
    for name, step_s in SPEEDS.items():
        whole.device(name, step_s)
    whole.submit(workers=4, sync=sync, check_period_s=5)
    whole.wait(3)
    assert whole.status().phase in (pb.Status.TRAINING, pb.Status.SEARCHING), whole.status().message
    return whole


def goes_on(whole, seconds=30.0):
    """Everybody attends and has its links: each device commits, or (where some are drawn) the fleet does."""
    before = whole.commits()
    whole.wait(seconds)
    after = whole.commits()
    done = {name: after.get(name, 0) - before.get(name, 0) for name in SPEEDS}
    state = {n: (d.phase, d.rested, d.resuming, d.flight, d.directive) for n, d in whole.devices.items()}
    assert sum(done.values()) >= 0.2 * seconds, (done, state, whole.status().message)
    return done


@pytest.mark.parametrize("sync", MODELS, ids=str)
def test_every_device_commits_under_every_model(sync):
    whole = begin(sync)
    whole.wait(10)
    done = goes_on(whole, 60.0)
    assert sum(done.values()) >= 35
    assert min(done.values()) >= 5, done
    total = sum(device.steps for device in whole.devices.values())
    counted = sum(entry.steps for entry in whole.server.run.ledger.entries.values())
    held = sum(d.pending + (d.flight["steps"] if d.flight else 0) for d in whole.devices.values())
    assert counted <= total <= counted + held, "each step counts once"


operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["leave", "die", "restart", "cut", "dial", "unlink", "link", "slow", "server cut", "server dial"]
        ),
        st.sampled_from(sorted(SPEEDS)),
        st.floats(0.0, 6.0),
    ),
    max_size=20,
)


def disturb(whole, what, name):
    device = whole.devices[name]
    if what in ("leave", "die", "cut", "unlink"):
        getattr(device, what)()
    elif what == "restart":
        device.die()
        whole.device(name, device.step_s)
    elif what == "dial":
        device.attend()
    elif what == "link":
        device.linked = True
    elif what == "slow":
        device.step_s = 0.5 - device.step_s / 2
    elif what == "server cut":
        whole.server.cut()
    elif what == "server dial":
        whole.server.attend()


def mend(whole):
    whole.server.attend()
    for name, device in list(whole.devices.items()):
        device.linked = True
        if device.alive:
            device.attend()
        else:
            whole.device(name, SPEEDS[name])
    whole.wait(15)


def check_replay(whole, make):
    whole.stop()
    whole.wait(70)
    assert whole.status().phase == pb.Status.IDLE
    steps = list(replay(whole.log_lines(), make))
    assert [step.event for step in steps if not step.is_same] == []


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("sync", MODELS, ids=str)
@given(operations=operations)
def test_whatever_comes_and_goes_training_goes_on_and_replays(tmp_path_factory, sync, operations):
    whole = begin(sync, tmp_path_factory.mktemp("log"))
    for what, name, wait in operations:
        disturb(whole, what, name)
        whole.wait(wait)
    mend(whole)
    goes_on(whole)
    check_replay(whole, make_model)


PARTS = {"w1": 0.0, "w2": 0.3, "w3": 0.95, "w4": 0.0}
"""What of a local update does not grow with the batch."""


def batches(whole):
    """As devices were told."""
    return {name: device.directive.batch for name, device in whole.devices.items()}


def test_under_allocation_each_device_finds_the_batch_that_suits_it():
    whole = begin({"adsp": {"rate": 3, "allocation": True}}, fixed=PARTS, fits={"w4": 20})
    whole.wait(60)
    found = batches(whole)
    assert found["w1"] < found["w2"] < found["w3"]
    assert found["w1"] < 32 < found["w3"]
    assert found["w4"] <= 20
    shown = {worker.name: worker for worker in whole.status().workers}
    assert {name: worker.batch for name, worker in shown.items()} == found
    for name, device in whole.devices.items():
        made = whole.status().allotment.cycle_s / device.batch_s
        assert shown[name].allotted_updates == pytest.approx(made, rel=0.03)
        assert shown[name].local_updates == pytest.approx(made, abs=1.2)


def check_weights(weights):
    """While the same workers are active, one commit of each weighs at most 1."""
    last, before = {}, None
    for name, weight, active in weights:
        last = last if active == before else {}
        before = active
        last[name] = weight
        assert sum(last.values()) <= 1 + 1e-9, (last, active)


ALLOCATED = [
    {"rate": 3},
    {"rate": 3, "max_staleness": 2},
    {"rate": 3, "weight": "data"},
    {"search": "formula", "min_batch": 1, "max_batch": 1000, "rate_cap": 4},
]


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("options", ALLOCATED, ids=str)
@given(
    operations=operations,
    fixed=st.fixed_dictionaries({name: st.sampled_from([0.0, 0.4, 0.95, 1.0]) for name in SPEEDS}),
    fits=st.dictionaries(st.sampled_from(sorted(SPEEDS)), st.integers(1, 60)),
)
def test_whatever_comes_and_goes_under_allocation_all_commit_equally_often(
    tmp_path_factory, options, operations, fixed, fits
):
    folder = tmp_path_factory.mktemp("log")
    whole = begin({"adsp": {"allocation": True, **options}}, folder, fixed=fixed, fits=fits)
    for what, name, wait in operations:
        disturb(whole, what, name)
        whole.wait(wait)
    mend(whole)
    whole.wait(30)  # whoever lacks commits has made them
    first = whole.commits()
    for _ in range(6):
        whole.wait(5)
        made = {name: whole.commits()[name] - first[name] for name in SPEEDS}
        # 1 that was on its way when this began, and 1 that is now; it does not grow with the periods.
        assert max(made.values()) - min(made.values()) <= 2, made
    assert min(made.values()) >= 6
    assert all(batch <= fits.get(name, batch) for name, batch in batches(whole).items())
    check_weights(whole.server.weights)
    check_replay(whole, make_model)


class Changing(SyncModel):
    """One model after the other, each for a while."""

    name = "changing"
    Options = Settings

    def __init__(self, run, order, each_s):
        super().__init__(Settings(), run)
        self._models = [make_model(run_settings(sync=sync).sync, run) for sync in order]
        self._each_s = each_s

    def decide(self, fleet):
        model = self._models[int(fleet.now_s / self._each_s) % len(self._models)]
        plan = model.decide(fleet)
        change_s = (int(fleet.now_s / self._each_s) + 1) * self._each_s
        wake_s = change_s if plan.wake_at_s is None else min(plan.wake_at_s, change_s)
        return plan.__class__(**{**vars(plan), "wake_at_s": wake_s})

    def observe(self, loss):
        for model in self._models:
            model.observe(loss)


def make_changing(order, each_s, spec, run):
    return Changing(run, order, each_s)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    order=st.lists(st.sampled_from(MODELS), min_size=2, max_size=4),
    each_s=st.floats(0.7, 8.0),
    operations=operations,
)
def test_a_model_that_changes_in_the_middle_stalls_nobody(tmp_path_factory, order, each_s, operations):
    make = partial(make_changing, order, each_s)
    whole = begin("changing", tmp_path_factory.mktemp("log"), make)
    for what, name, wait in operations:
        disturb(whole, what, name)
        whole.wait(wait)
    mend(whole)
    goes_on(whole)
    check_replay(whole, make)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=operations)
def test_in_a_round_no_device_counts_twice(tmp_path_factory, operations):
    whole = begin({"fedavg": {"fraction": 0.75, "tau": 2}}, tmp_path_factory.mktemp("log"))
    for what, name, wait in operations:
        disturb(whole, what, name)
        whole.wait(wait)
    mend(whole)
    on_time = whole.server.ons
    assert len(set(on_time)) == len(on_time)
