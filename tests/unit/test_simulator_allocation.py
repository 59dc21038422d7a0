"""ADSP with allocation in virtual time: what is planned is what devices do, and nobody waits."""

from typing import ClassVar

import pytest

from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
from offbeat_cli.simulator.workloads import Noise
from offbeat_scheduler.models.adsp import ADSP
from support.virtual import run_settings

BATCH = 32


class Noisy(PowerLaw):
    """Its gradients' noise scale is 60 samples, as measured."""

    def noise(self, device):
        return Noise(1.0, 60.0, 100)


def fleet(fixed_share=0.0):
    """Two Pis, one twice as fast; two devices whose step has a fixed part."""
    return [
        VirtualDevice("pi-1", 1.0, 0.2, 0.003, jitter=0.05),
        VirtualDevice("pi-2", 0.5, 0.2, 0.003, jitter=0.05),
        VirtualDevice("jetson-1", 0.2, 0.2, 0.003, jitter=0.05, fixed_s=0.2 * fixed_share),
        VirtualDevice("jetson-2", 0.25, 0.2, 0.003, jitter=0.05, fixed_s=0.25 * fixed_share),
    ]


def after(seconds, devices, **options):
    run = run_settings({"adsp": {"allocation": True, "rate": 5, **options}}, period_s=20.0)
    return simulate(run, devices, Noisy(kappa=0.01, samples=1000), max_s=seconds, report_every_s=1, seed=1)


def observed(devices, **options):
    """Local updates per commit by device in the last 100 of 200 s, and the plan in force then."""
    early, late = after(100, devices, **options), after(200, devices, **options)
    found = {}
    for name in late.devices:
        commits = late.devices[name].commits - early.devices[name].commits
        found[name] = (late.devices[name].steps - early.devices[name].steps) / commits
    return found, late.plans[-1][1], late


@pytest.mark.parametrize("fixed_share", [0.0, 0.9])
@pytest.mark.parametrize("bound", [2, 6])
def test_planned_and_observed_spread_of_updates_agree_and_keep_to_the_bound(bound, fixed_share):
    tau, plan, result = observed(fleet(fixed_share), max_staleness=bound)
    assert plan.allotment is not None
    spread = max(tau.values()) - min(tau.values())
    assert spread == pytest.approx(plan.allotment.max_staleness, abs=1.0)
    assert spread <= bound + 1.0
    for name, updates in plan.allotment.updates.items():
        assert tau[name] == pytest.approx(updates, abs=1.0)
    assert max(device.wait_share for device in result.devices.values()) == 0


def test_without_a_bound_the_spread_is_larger_and_batches_go_with_the_curve():
    tau, plan, result = observed(fleet(0.9))
    assert max(tau.values()) - min(tau.values()) > 6
    assert plan.batches["pi-1"] == plan.batches["pi-2"] == BATCH // 4
    assert plan.batches["jetson-1"] > BATCH < plan.batches["jetson-2"]
    assert plan.rates["pi-1"] < 1
    assert "jetson-1" not in plan.rates  # the run's rate: it was tuned
    counts = [device.commits for device in result.devices.values()]
    assert max(counts) - min(counts) <= 1


def test_a_device_whose_memory_is_small_gets_no_larger_batch():
    small = [*fleet(0.9)[:3], VirtualDevice("jetson-2", 0.25, 0.2, fixed_s=0.22, max_batch=80)]
    _, plan, _ = observed(small)
    assert plan.batches["jetson-2"] == 80 < plan.batches["jetson-1"]


@pytest.mark.parametrize("sync", ["adsp", "bsp"])
def test_under_any_model_a_device_trains_with_no_more_samples_than_fit_it(sync):
    made = set()

    class Seen(PowerLaw):
        def step(self, device, values, age_s, batch):
            made.add((device, batch))
            return super().step(device, values, age_s, batch)

    devices = [VirtualDevice("a", 0.2, max_batch=20), VirtualDevice("b", 0.2)]
    simulate(run_settings(sync, period_s=20.0), devices, Seen(kappa=0.01), max_s=20, seed=1)
    assert made == {(0, 20), (1, BATCH)}


class Halving(Noisy):
    """Every second update goes through its batch in two halves."""

    made = 0

    def halves(self, device, batch):
        self.made += 1
        return self.made % 2 == 0


class Watching(ADSP):
    """Keeps the step times that it was told."""

    seen: ClassVar[set[float]] = set()

    def decide(self, fleet):
        self.seen |= {round(device.step_s, 6) for device in fleet.devices.values()}
        return super().decide(fleet)


def test_an_update_in_two_halves_takes_its_fixed_part_twice_and_says_nothing_of_the_others():
    device = VirtualDevice("jetson", 0.2, 0.0, 0.0, fixed_s=0.1)
    run = run_settings({"adsp": {"rate": 2}}, period_s=20.0)
    model = Watching(ADSP.Options(rate=2), run)
    workload = Halving(kappa=0.01, samples=1000)
    result = simulate(run, [device], workload, max_s=100, seed=1, model=model)
    assert result.devices["jetson"].steps == pytest.approx(100 / 0.25, rel=0.02)
    assert model.seen == {0.0, 0.2}
