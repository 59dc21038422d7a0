"""Every model in virtual time, on fleets that nobody chose: each plan can be followed, nobody exceeds the
gate, everybody who is there keeps committing, and what the model promises holds."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_scheduler.models import make_model, models
from offbeat_scheduler.sync import Steps
from support.virtual import Watched, run_settings

PERIOD_S = 6.0
BATCH = 32
SAMPLES = 320  # that each device holds
LEASE_S = 10.0

SYNCS = [
    "bsp",
    "ssp:2",
    "asp",
    {"asp": {"overlap": True, "weight": "per_step"}},
    "fixed-adacomm:4",
    "adacomm:12",
    "batchtune-bsp",
    "batchtune-fixed-adacomm:3",
    {"fedavg": {"fraction": 0.5, "tau": 3}},
    {"fedavg": {"fraction": 1.0, "tau": 2}},
    {"fedbuff": {"tau": 3}},
    {"fedbuff": {"k": 7, "tau": 3, "overlap": True}},
    {"fedcompass": {"min_steps": 2, "max_steps": 8}},
    "mel-async",
    "mel-sync",
    "mel-eta",
    "adsp",
]


def test_every_model_is_tried_here():
    tried = {sync if isinstance(sync, str) else next(iter(sync)) for sync in SYNCS}
    assert {name.partition(":")[0] for name in tried} == set(models())


class Simulated(Watched):
    """A model by its name, in simulations."""

    def __init__(self, sync, seed=1):
        run = run_settings(sync, PERIOD_S, training={"batch": BATCH, "seed": seed})
        super().__init__(make_model(run.sync, run))

    def simulate(self, fleet, max_s, **options):
        return simulate(
            self.run, fleet, PowerLaw(0.02, noise=0.02, samples=SAMPLES), max_s=max_s, model=self, **options
        )

    def commits_at(self, when_s):
        """The counts last seen at or before then, by name; nothing for who was not there."""
        last = [fleet for fleet, _ in self.seen if fleet.now_s <= when_s][-1]
        return {name: device.commits for name, device in last.devices.items()}


@st.composite
def fleets(draw, comings=True):
    devices = []
    for index in range(draw(st.integers(1, 5))):
        joins_s = draw(st.sampled_from([0.0, 0.0, 3.0, 17.0, 31.0])) if comings and index else 0.0
        stays_s = draw(st.sampled_from([None, None, 5.0, 21.0])) if comings and index else None
        speeds = draw(st.sampled_from([(), (), ((20.0, 0.5),), ((15.0, 0.1), (30.0, 0.8))]))
        devices.append(
            VirtualDevice(
                f"d{index}",
                step_s=draw(st.floats(0.1, 0.8)),
                commit_s=draw(st.floats(0.0, 0.6)),
                hold_s=0.002,
                jitter=draw(st.sampled_from([0.0, 0.1])),
                joins_s=joins_s,
                leaves_s=None if stays_s is None else joins_s + stays_s,
                speeds=speeds if comings else (),
                fixed_s=draw(st.sampled_from([0.0, 0.03])),
            )
        )
    return devices


@settings(deadline=None, max_examples=4)
@pytest.mark.parametrize("sync", SYNCS, ids=str)
@given(fleet=fleets(), report_every_s=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 99))
def test_everybody_who_is_there_keeps_committing(sync, fleet, report_every_s, seed):
    """Also where others vanish in the middle of a cycle, join, or change their speed."""
    watched = Simulated(sync, seed)
    watched.simulate(fleet, 110, report_every_s=report_every_s, control_s=0.02, seed=seed)
    quiet_s = 31.0 + 21.0 + LEASE_S  # from then on nothing changes any more
    before, after = watched.commits_at(quiet_s + 6), watched.commits_at(110)
    assert after
    progress = {name: count - before[name] for name, count in after.items()}
    if "fraction" in str(sync) or sync == "mel-eta":
        assert sum(progress.values()) > 0  # not everybody is in a round, nor has an update in each cycle
    else:
        assert min(progress.values()) > 0, progress


@settings(deadline=None, max_examples=5)
@pytest.mark.parametrize(
    ("sync", "ahead"), [("bsp", 1), ("ssp:2", 3), ("fixed-adacomm:3", 1), ("batchtune-bsp", 1)]
)
@given(fleet=fleets(comings=False), seed=st.integers(0, 99))
def test_nobody_is_further_ahead_than_the_gate_allows(sync, ahead, fleet, seed):
    """One commit more than the slack: the one whose answer is held."""
    watched = Simulated(sync)
    watched.simulate(fleet, 40, seed=seed)
    for seen, _ in watched.seen:
        counts = [device.commits for device in seen.devices.values()]
        assert max(counts) - min(counts) <= ahead


@settings(deadline=None, max_examples=5)
@pytest.mark.parametrize("sync", ["batchtune-bsp", "batchtune-fixed-adacomm:2"])
@given(fleet=fleets(), seed=st.integers(0, 99))
def test_batchtunes_total_is_constant_whoever_comes_and_goes(sync, fleet, seed):
    watched = Simulated(sync)
    watched.simulate(fleet, 60, report_every_s=1.0, seed=seed)
    for seen, plan in watched.seen:
        assert plan.batches.keys() == seen.devices.keys()
        assert sum(plan.batches.values()) == BATCH * len(seen.devices)
        assert all(batch >= 1 for batch in plan.batches.values())


@settings(deadline=None, max_examples=5)
@given(fleet=fleets(comings=False), seed=st.integers(0, 99))
def test_batchtune_makes_local_updates_end_together(fleet, seed):
    watched = Simulated("batchtune-bsp")
    watched.simulate(fleet, 80, report_every_s=1.0, seed=seed)
    batches = watched.seen[-1][1].batches
    times = {device.name: device.step_at(0, batches[device.name] / BATCH) for device in fleet}
    untuned = max(device.step_s for device in fleet)
    assert max(times.values()) <= untuned * (1 + 1e-9)
    granularity = max(device.step_s / BATCH for device in fleet)
    able = [seconds for name, seconds in times.items() if batches[name] > 1]  # a batch of 1 can't be less
    if len(able) == len(fleet):
        assert max(able) - min(able) <= 2 * granularity + 0.35 * max(able)


@settings(deadline=None, max_examples=5)
@given(fleet=fleets(), tau0=st.integers(1, 40), seed=st.integers(0, 99))
def test_adacomms_tau_never_rises(fleet, tau0, seed):
    watched = Simulated(f"adacomm:{tau0}")
    watched.simulate(fleet, 60, report_every_s=1.0, seed=seed)
    taus = [next(iter(plan.triggers.values())) for seen, plan in watched.seen if seen.devices]
    assert taus[0] == Steps(tau0)
    assert all(later.steps <= earlier.steps for earlier, later in pairwise(taus))
    assert taus[-1].steps <= math.ceil(tau0 / 2)


@settings(deadline=None, max_examples=6)
@given(fleet=fleets(), fraction=st.floats(0.1, 1.0), seed=st.integers(0, 99))
def test_fedavgs_rounds_follow_one_another_with_cohorts_of_the_asked_size(fleet, fraction, seed):
    watched = Simulated({"fedavg": {"fraction": fraction, "tau": 2}}, seed)
    result = watched.simulate(fleet, 80, report_every_s=0.5, control_s=0.02, seed=seed)
    began = {}
    for seen, plan in watched.seen:
        if seen.devices:
            began.setdefault(plan.round, (len(seen.devices), set(plan.cohort)))
    assert list(began) == list(range(1, len(began) + 1))
    assert len(began) > 5
    for devices, cohort in began.values():
        assert len(cohort) == max(1, round(fraction * devices))
    for name, device in result.devices.items():
        drawn = sum(name in cohort for _, cohort in began.values())
        assert device.commits <= drawn


@settings(deadline=None, max_examples=5)
@given(fleet=fleets(comings=False), seed=st.integers(0, 99))
def test_fedcompass_members_arrive_together(fleet, seed):
    """Once speeds are known, those of a group wait for one another little: for a step, and for jitter."""
    watched = Simulated({"fedcompass": {"min_steps": 4, "max_steps": 20}})
    watched.simulate(fleet, 60, report_every_s=1.0, seed=seed)
    plan = watched.seen[-1][1]
    by_name = {device.name: device for device in fleet}
    for group in plan.groups:
        arrivals = [
            plan.triggers[name].steps * by_name[name].step_s + by_name[name].commit_s
            for name in group.members
            if plan.triggers[name].steps < 20
        ]
        if arrivals:
            slowest = max(by_name[name].step_s for name in group.members)
            assert max(arrivals) - min(arrivals) <= slowest + 0.25 * max(arrivals)
            assert group.gate.deadline_s >= max(arrivals)


@pytest.mark.parametrize("sync", SYNCS, ids=str)
def test_the_same_fleets_give_the_same_plans(sync):
    """What a replay relies on."""
    fleet = [VirtualDevice(f"d{i}", 0.1 * i + 0.1, 0.1, 0.002, jitter=0.1) for i in range(3)]
    fleet.append(VirtualDevice("late", 0.2, 0.1, 0.002, joins_s=7.0, leaves_s=15.0))
    first, second = Simulated(sync), Simulated(sync)
    result = first.simulate(fleet, 40, report_every_s=1.0, seed=3)
    assert second.simulate(fleet, 40, report_every_s=1.0, seed=3) == result
    assert second.seen == first.seen
