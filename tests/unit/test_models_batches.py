"""ADSP with allocation: what batches it finds for a fleet that answers as its step times say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_core.config import RunSettings, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.batches import Batches, noise_scale
from offbeat_scheduler.sync import Device, Fleet, SyncModel

BASE = 32
PERIOD_S = 20.0


@dataclass
class World:
    """Devices with step times alpha + beta b; time goes on second by second."""

    curves: dict[str, tuple[float, float]]
    batches: Batches
    noise: float = 60.0
    measures: bool = True
    now_s: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    max_batch: dict[str, int] = field(default_factory=dict)
    interval_s: float = 2.0
    joined: dict[str, float] = field(default_factory=dict)

    def batch(self, name: str) -> int:
        return self.batches.batches().get(name, BASE)

    def step_s(self, name: str) -> float:
        alpha, beta = self.curves[name]
        return alpha + beta * self.batch(name)

    def fleet(self) -> Fleet:
        devices = {
            name: Device(
                name,
                steps=int(self.steps.get(name, 0)),
                step_s=self.step_s(name) if self.steps.get(name, 0) >= 1 else 0.0,
                shard_samples=1000,
                gradient_square=1.0,
                gradient_variance=self.noise,
                gradient_pairs=int(self.steps.get(name, 0) // 10) if self.measures else 0,
                max_batch=self.max_batch.get(name, 0),
            )
            for name in self.curves
        }
        return Fleet(self.now_s, devices)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.batches.see(self.fleet(), self.interval_s)
            self.now_s += 0.5
            for name in self.curves:
                self.steps[name] = self.steps.get(name, 0) + 0.5 / self.step_s(name)


def world(curves: dict[str, tuple[float, float]], *, cap: float = 3.0, **options: int) -> World:
    return World(curves, Batches(BASE, PERIOD_S, cap=cap, **options))


def test_a_device_like_a_pi_gets_a_small_batch_and_one_like_a_jetson_a_large_one() -> None:
    fleet = world({"pi": (0.0, 0.01), "jetson": (0.05, 0.0001)})
    fleet.run(60)
    assert fleet.batches.settled
    assert fleet.batch("pi") == BASE // 4
    assert fleet.batch("jetson") > 2 * BASE
    rates = fleet.batches.rates()
    assert rates["pi"] < 1 < rates["jetson"] <= 3.0


def test_before_the_noise_scale_is_known_no_batch_is_chosen() -> None:
    fleet = world({"jetson": (0.05, 0.0001)})
    fleet.measures = False
    fleet.run(60)
    assert fleet.batches.settled
    assert fleet.batch("jetson") == BASE
    fleet.measures = True
    fleet.run(30)
    assert fleet.batch("jetson") > BASE


def test_a_few_pairs_say_nothing_of_the_noise_scale() -> None:
    devices = {"a": Device("a", gradient_pairs=3, gradient_square=1.0, gradient_variance=50.0)}
    assert noise_scale(devices) is None
    assert noise_scale({"a": replace(devices["a"], gradient_pairs=4)}) == 50.0


def test_a_mean_gradient_that_is_lost_in_noise_is_a_large_noise_scale_and_no_error() -> None:
    lost = Device("a", gradient_pairs=9, gradient_square=-0.1, gradient_variance=50.0)
    found = noise_scale({"a": lost})
    assert found is not None
    assert found > 1e6
    fleet = world({"jetson": (0.05, 0.0001)})
    fleet.noise = 1e12
    fleet.run(60)
    assert fleet.batch("jetson") == pytest.approx(3 * BASE, abs=2)


def test_no_batch_is_larger_than_what_fits_the_device() -> None:
    fleet = world({"jetson": (0.05, 0.0001)})
    fleet.max_batch["jetson"] = 48
    fleet.run(60)
    assert fleet.batch("jetson") == 48
    fleet.max_batch["jetson"] = 20  # it ran out of memory
    fleet.run(2)
    assert fleet.batch("jetson") == 20


def test_a_device_that_gets_slower_keeps_its_place_and_is_measured_anew() -> None:
    fleet = world({"a": (0.1, 0.01), "b": (0.1, 0.01)})
    fleet.run(150)
    before = fleet.batch("a")
    fleet.curves["a"] = (2.0, 0.01)  # now it is all overhead
    fleet.run(400)
    assert fleet.batch("a") > before
    assert fleet.batch("b") == before


def test_measured_times_that_jitter_change_no_batch() -> None:
    fleet = world({"a": (0.1, 0.01)})
    fleet.run(100)
    batch = fleet.batch("a")
    for scale in (1.02, 0.98, 1.03, 0.97, 1.0):
        fleet.curves["a"] = (0.1 * scale, 0.01 * scale)
        fleet.run(30)
        assert fleet.batch("a") == batch


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.floats(0.001, 0.03)), min_size=2, max_size=5), st.integers(1, 4)
)
def test_under_a_bound_the_planned_spread_keeps_to_it_where_batches_can(
    curves: list[tuple[float, float]], bound: int
) -> None:
    fleet = world({f"w{i}": curve for i, curve in enumerate(curves)}, max_staleness=bound)
    fleet.run(150)
    tau = {name: fleet.interval_s / fleet.step_s(name) for name in fleet.curves}
    promised = fleet.batches.allotment(fleet.fleet(), fleet.interval_s)
    assert promised is not None
    assert promised.max_staleness == pytest.approx(
        max(tau.values()) - min(tau.values()), abs=0.05 + 0.02 * max(tau.values())
    )
    ends = {  # what the least and the largest batch allow each device
        name: (fleet.interval_s / (a + 256 * b), fleet.interval_s / (a + 8 * b))
        for name, (a, b) in fleet.curves.items()
    }
    if max(low for low, _ in ends.values()) - min(high for _, high in ends.values()) <= 0:
        assert max(tau.values()) - min(tau.values()) <= bound + 1.5


def test_who_leaves_is_forgotten_and_who_joins_is_measured() -> None:
    fleet = world({"a": (0.1, 0.01), "b": (0.1, 0.01)})
    fleet.run(60)
    del fleet.curves["b"]
    fleet.run(1)
    assert set(fleet.batches.gains(fleet.fleet())) == {"a"}
    fleet.curves["c"] = (0.05, 0.0001)
    fleet.run(60)
    assert fleet.batches.settled
    assert fleet.batch("c") > BASE


# ---- in a run's file ---------------------------------------------------------------------


def model_of(**run: object) -> SyncModel:
    settings_ = validate(RunSettings, {"task": "digits", **run}, "run")
    return make_model(settings_.sync, settings_)


@pytest.mark.parametrize(
    "run",
    [
        {"sync": {"adsp": {"allocation": True}}},
        {"sync": "adsp", "allocation": True},
        {"allocation": True},
        {"sync": {"model": "adsp", "options": {"allocation": True}}, "allocation": False},
    ],
)
def test_allocation_is_switched_on_in_sync_or_beside_it(run: dict[str, object]) -> None:
    plan = model_of(**run).decide(Fleet(0.0, {"a": Device("a")}))
    assert plan.gradient_noise


def test_without_allocation_nothing_is_measured_for_it() -> None:
    for run in ({"sync": "adsp"}, {"sync": "adsp", "allocation": False}):
        plan = model_of(**run).decide(Fleet(0.0, {"a": Device("a")}))
        assert not plan.gradient_noise
        assert not plan.batches


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"sync": "bsp", "allocation": True}, ("allocation", "bsp", "adsp")),
        ({"allocation": "maybe"}, ("allocation", "maybe")),
        ({"sync": {"adsp": {"max_staleness": 3}}}, ("max_staleness", "allocation")),
        ({"sync": {"adsp": {"allocation": True, "max_staleness": -1}}}, ("max_staleness", "-1")),
        ({"sync": {"adsp": {"allocation": True, "min_batch": 64, "max_batch": 48}}}, ("crossed", "64", "48")),
        ({"sync": {"adsp": {"allocation": True, "min_batch": 64}}}, ("min_batch", "64", "32")),
        ({"sync": {"adsp": {"allocation": True, "max_batch": 8}}}, ("max_batch", "8", "32")),
        ({"sync": {"adsp": {"allocation": True, "rate_cap": 0.5}}}, ("rate_cap", "0.5")),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_it(
    run: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(OffbeatError) as caught:
        model_of(**run)
    for word in words:
        assert word in str(caught.value)
