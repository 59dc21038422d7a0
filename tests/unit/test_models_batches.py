"""ADSP with allocation: what batches it finds for a fleet that answers as its step times say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_core.config import RunSettings, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation.goodput import Costs, Rule, goodput
from offbeat_scheduler.models import make_model
from offbeat_scheduler.models.batches import MEASURED, NOISE_STEP, WORTH, Batches, noise_scale
from offbeat_scheduler.sync import Device, Fleet, SyncModel
from offbeat_worker.noise import LEAST

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
    base: int = BASE

    def batch(self, name: str) -> int:
        return self.batches.batches().get(name, self.base)

    def step_s(self, name: str) -> float:
        alpha, beta = self.curves[name]
        return alpha + beta * min(self.batch(name), self.max_batch.get(name) or self.batch(name))

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


@pytest.mark.parametrize(
    ("noise", "moves"),
    [
        (5.0, False),  # 13 samples: 1.19 of the goodput, and 0.91 once the noise scale has grown
        (1.0, True),  # 8: 1.47, and then 1.20
        (150.0, False),  # 69: 1.13
        (400.0, True),  # 113: 1.31
    ],
)
def test_a_batch_moves_away_from_the_runs_only_where_that_is_sure_to_be_worth_it_and_back_for_a_tenth(
    noise: float, moves: bool
) -> None:
    fleet = world({"half fixed": (0.32, 0.01)})
    fleet.noise = noise
    fleet.run(100)
    assert (fleet.batch("half fixed") != BASE) is moves
    fleet.noise = 30.0  # 31 samples are best
    fleet.run(100)
    assert BASE - 2 <= fleet.batch("half fixed") <= BASE


@pytest.mark.parametrize(
    "noises",
    [
        [1, 150],  # once small, once large, and neither is sure any more
        [400, 5],
        [1e12, 5],
        [2**k for k in range(31)],  # gradually
        [2**k for k in range(30, -1, -1)],
    ],
)
@pytest.mark.parametrize("fixed", [2, 8, 32, 128])
def test_a_device_never_stays_with_a_batch_that_the_noise_scale_has_left_behind(
    fixed: int, noises: list[float]
) -> None:
    fleet = world({"a": (0.01 * fixed, 0.01)})
    for noise in noises:
        fleet.noise = noise
        fleet.run(60)
        rule = Rule(BASE, min(noise, 1e9), 1.0)
        costs = Costs(np.array([fixed]), np.array([0.01]), np.array([8]), np.array([256]))
        has, usual = (goodput(costs, rule, np.array([batch])) for batch in (fleet.batch("a"), BASE))
        assert has * WORTH * NOISE_STEP >= usual


def test_where_the_runs_batch_does_not_fit_what_does_takes_its_place() -> None:
    fleet = world({"a": (0.32, 0.01)})
    fleet.max_batch["a"] = 20
    fleet.noise = 2.0  # 8 samples: 1.21 of the goodput of 20, and 0.91 once the noise scale has grown
    fleet.run(100)
    assert fleet.batch("a") == 20


def test_a_batch_without_bounds_stays_one_in_which_noise_is_measured() -> None:
    assert MEASURED == LEAST
    fleet = World({"a": (0.0, 0.01)}, Batches(8, PERIOD_S, cap=1.0), noise=2.0, base=8)
    fleet.run(60)
    assert fleet.batch("a") == MEASURED
    below = World({"a": (0.0, 0.01)}, Batches(8, PERIOD_S, cap=1.0, least=2), noise=2.0, base=8)
    below.run(60)
    assert below.batch("a") == 2
    assert "no device measures any more" in notes(below)


@pytest.mark.parametrize("noise", [1.0, 60.0, 200.0])
def test_without_a_fixed_part_a_small_batch_is_sound_at_any_noise_scale(noise: float) -> None:
    fleet = world({"pi": (0.0, 0.01)})
    fleet.noise = noise
    fleet.run(60)
    assert fleet.batch("pi") == BASE // 4


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
    devices = {"a": Device("a", gradient_pairs=7, gradient_square=1.0, gradient_variance=50.0)}
    assert noise_scale(devices) is None
    assert noise_scale({"a": replace(devices["a"], gradient_pairs=8)}) == 50.0


def test_a_mean_gradient_that_is_lost_in_noise_is_a_large_noise_scale_and_no_error() -> None:
    lost = Device("a", gradient_pairs=9, gradient_square=-0.1, gradient_variance=50.0)
    found = noise_scale({"a": lost})
    assert found is not None
    assert found > 1e6
    huge = Device("a", gradient_pairs=9, gradient_square=1e308, gradient_variance=1e308)
    assert noise_scale({"a": huge, "b": huge}) == found
    fleet = world({"jetson": (0.05, 0.0001)})
    fleet.noise = 1e12
    fleet.run(60)
    assert fleet.batch("jetson") == 8 * BASE
    assert fleet.batches.rates()["jetson"] == 3.0


def test_no_batch_is_larger_than_what_fits_the_device() -> None:
    fleet = world({"jetson": (0.05, 0.0001)})
    fleet.max_batch["jetson"] = 64
    fleet.run(60)
    assert fleet.batch("jetson") == 64
    fleet.max_batch["jetson"] = 20  # it ran out of memory
    fleet.run(2)
    assert fleet.batch("jetson") == 20


@pytest.mark.parametrize("after_s", [0.5 * halves for halves in range(1, 12)])
def test_a_step_time_with_fewer_samples_than_planned_is_not_taken_for_one_with_all(after_s: float) -> None:
    fleet = world({"pi": (0.0, 0.01)})
    fleet.run(after_s)
    fleet.max_batch["pi"] = BASE // 2  # it ran out of memory, and says so with the next step time
    fleet.run(60)
    assert fleet.batch("pi") == BASE // 4


def test_what_a_device_says_when_it_comes_back_may_be_of_another_batch() -> None:
    fleet = world({"pi": (0.0, 0.01)})
    fleet.run(60)
    assert fleet.batch("pi") == BASE // 4
    del fleet.curves["pi"]
    fleet.run(1)
    fleet.curves["pi"] = (BASE // 4 * 0.01, 0.0)
    fleet.run(1.5)
    fleet.curves["pi"] = (0.0, 0.01)
    fleet.run(60)
    assert fleet.batch("pi") == BASE // 4


@pytest.mark.parametrize(
    ("base", "bounds"), [(BASE, {"least": BASE}), (BASE, {"least": 24}), (3, {}), (2, {}), (1, {})]
)
def test_a_trial_keeps_to_the_bounds_and_to_two_samples(base: int, bounds: dict[str, int]) -> None:
    batches = Batches(base, PERIOD_S, cap=3.0, **bounds)
    seen = set()
    for half in range(240):
        batch = batches.batches().get("a", base)
        seen.add(batch)
        step_s = 0.05 + 0.0001 * batch
        device = Device("a", steps=10 * half, step_s=step_s, gradient_variance=60.0, gradient_square=1.0)
        batches.see(Fleet(half / 2, {"a": replace(device, gradient_pairs=half)}), 2.0)
    assert batches.settled
    assert min(seen) >= bounds.get("least", min(base, 2))
    assert batches.batches()["a"] > base


def test_while_a_device_is_measured_anew_its_speed_counts_as_it_was() -> None:
    fleet = world({"a": (0.05, 0.0001), "b": (0.0, 0.01)})
    fleet.run(150)
    batches = {name: fleet.batch(name) for name in fleet.curves}
    fleet.curves = {"a": (0.1, 0.0002), "b": (0.0, 0.02)}
    tried = set()
    for _ in range(200):
        fleet.run(0.5)
        gains = fleet.batches.gains(fleet.fleet())
        for name in fleet.curves:
            if fleet.batch(name) != batches[name]:
                tried.add(name)
                alpha, beta = fleet.curves[name]
                speed = gains[name] / fleet.step_s(name)
                usual = batches[name] / BASE * (60 + BASE) / (60 + batches[name])
                assert speed == pytest.approx(usual / (alpha + beta * batches[name]), rel=0.02)
    assert tried == {"a", "b"}


@pytest.mark.parametrize("settled_s", [60, 150])
def test_a_device_that_gets_slower_keeps_its_place_and_is_measured_anew(settled_s: float) -> None:
    fleet = world({"a": (0.1, 0.01), "b": (0.1, 0.01)})
    fleet.run(settled_s)
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


def test_jitter_changes_no_batch_where_none_keep_to_the_bound() -> None:
    curves = {"a": (0.02, 0.011), "b": (0.05, 0.017), "c": (0.3, 0.005)}
    fleet = world(curves, max_staleness=0)
    fleet.run(100)
    assert fleet.batches.settled
    found = fleet.batches.batches()
    for scale in (1.03, 0.96, 1.04, 0.98, 1.0, 1.02):
        for number, (name, curve) in enumerate(curves.items()):
            factor = scale if number % 2 else 1 / scale
            fleet.curves[name] = (curve[0] * factor, curve[1] * factor)
        fleet.run(PERIOD_S)
        assert fleet.batches.batches() == found
    fleet.curves["a"] = (0.01, 0.005)
    fleet.run(3 * PERIOD_S)
    assert fleet.batches.batches() != found


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


def test_a_device_that_hangs_keeps_nobody_from_a_batch_under_a_bound() -> None:
    fleet = world({"a": (0.1, 0.01), "b": (0.1, 0.02), "hung": (1e6, 0.01)}, max_staleness=1)
    fleet.run(50)
    assert not fleet.batches.settled
    assert fleet.batch("a") == fleet.batch("b") == BASE
    fleet.run(60)
    assert fleet.batches.settled
    tau = [fleet.interval_s / fleet.step_s(name) for name in ("a", "b")]
    assert fleet.batch("a") != fleet.batch("b")
    assert abs(tau[0] - tau[1]) <= 1.5


def notes(fleet: World) -> str:
    return " ".join(
        fleet.batches.notes(fleet.batches.allotment(fleet.fleet(), fleet.interval_s), fleet.now_s)
    )


def test_a_bound_that_batches_cannot_keep_is_said_with_the_two_devices_that_are_apart() -> None:
    fleet = world({"pi": (1.0, 0.01), "mid": (0.0, 0.002), "quick": (0.0, 0.0005)}, max_staleness=1)
    fleet.run(100)
    for word in ("max_staleness: 1", "pi makes the fewest", "the most"):
        assert word in notes(fleet)
    kept = world({"a": (0.0, 0.01), "b": (0.0, 0.005)}, max_staleness=4)
    kept.run(100)
    assert notes(kept) == ""


def test_a_noise_scale_that_cannot_be_measured_is_said() -> None:
    fleet = world({"a": (0.0, 0.01)})
    fleet.measures = False
    fleet.run(100)
    assert "too little is known of how noisy gradients are" in notes(fleet)


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
        {"sync": {"model": "adsp", "options": {"allocation": True}}, "allocation": True},
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
        ({"sync": {"adsp": {"allocation": True}}, "allocation": False}, ("allocation", "off", "contradicts")),
        ({"sync": {"adsp": {"allocation": False}}, "allocation": True}, ("allocation", "on", "contradicts")),
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
