"""ADSP with allocation against ADSP with batches fixed beforehand, in virtual time, paired seeds.

Regimes: heterogeneity 1.45, 2 and 3.2, each with step times in proportion to the batch (alpha = 0) and with a
fixed part of as much again on the fast half of the devices (alpha = beta b0). Beyond what the bars ask: H 3.2
with a fixed part of nine tenths there, as where a kernel's launch is most of a step (alpha = 9 beta b0).

The learning rate is tuned for ADSP without allocation, at each H with alpha = 0, seeds of its own; all others
take it, scaled by their rule. Fixed batches: 2 and 4 times the run's on the fast half, with the learning
rate scaled by the gain (at most 1.5), linearly (at most 3), or not at all; and a
quarter of the run's on all devices. The two best of them, by seeds of their own (the best of many by the same
seeds would be the luckiest), are compared with the allocation, and so is ADSP without. Measure: virtual
seconds until the mean of the last 10 losses is 0.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import harness, virtual
from benchmarks.harness import Bar
from benchmarks.tuning import Setting, tune

NAME = "goodput"
ABOUT = "ADSP with allocation against fixed batches at three heterogeneities: virtual time to a loss"

HETEROGENEITIES = (1.45, 2.0, 3.2)
PARTS = {"0": 0.0, "βb": 0.5, "9βb": 0.9}
"""alpha -> its share of the step time on the fast half, at the run's batch."""
TUNING_SEEDS = (101, 102)
SEEDS = 10
"""A time has a standard deviation of a tenth: with 5 seeds a ratio is as unsure as the bars are wide."""
COMPARED = 2
"""Of the fixed batches."""
RATES = (0.2, 0.4)
EACH = 4  # devices in each half

FIXED_BATCH = f"{Path(__file__).parent / 'fixed_batch.py'}:FixedBatch"
WITHOUT, WITH = "ADSP", "ADSP, allocation"
FAST = "fast"


def _fixed(**options: Any) -> dict[str, Any]:
    return {FIXED_BATCH: options}


CONTENDERS: dict[str, Any] = {
    WITHOUT: "adsp",
    WITH: {"adsp": {"allocation": True}},
    **{
        f"{times} b on the fast half, {label}": _fixed(devices=FAST, times=times, **options)
        for times in (2, 4)
        for label, options in (
            ("rate by gain", {"scaling": "gain"}),
            ("rate linear, at most 3", {"scaling": "linear", "cap": 3.0}),
            ("same rate", {"scaling": "none"}),
        )
    },
    "b/4 on all, rate by gain": _fixed(times=0.25),
}


@dataclass(frozen=True)
class Regime:
    heterogeneity: float
    part: str

    @property
    def label(self) -> str:
        return f"H {self.heterogeneity:g}, α = {self.part}"

    @property
    def asked(self) -> bool:
        return PARTS[self.part] <= 0.5


REGIMES = [
    *(Regime(h, part) for h, part in itertools.product(HETEROGENEITIES, ("0", "βb"))),
    Regime(3.2, "9βb"),
]


def fleet(regime: Regime) -> list[dict[str, Any]]:
    """Half of the devices make a step a second, the others as many as H = mean(v) / min(v) asks for."""
    fast_s = round(1 / (2 * regime.heterogeneity - 1), 4)
    shared = {"count": EACH, "commit_s": 0.3, "jitter": 0.1}
    return [
        {"name": "slow", "step_s": 1.0, **shared},
        {"name": FAST, "step_s": fast_s, "fixed_s": round(fast_s * PARTS[regime.part], 4), **shared},
    ]


def scenario(regime: Regime) -> dict[str, Any]:
    return {
        "name": NAME,
        "task": {"name": "fashion-mnist", "options": {"held_out": 1000}},
        "devices": fleet(regime),
        "training": {"batch": 32},
        "check_period_s": 20,
        "target": {"loss": 0.5, "smooth": 10},
        "limit_s": 900,
        "evaluate_every_s": 1,
    }


@dataclass(frozen=True)
class Found:
    """A regime's times by contender, over the same seeds. `screened`: of the fixed batches, by others."""

    regime: Regime
    lr: float
    results: Mapping[str, virtual.Result]
    screened: Mapping[str, float]

    @property
    def best_fixed(self) -> str:
        others = [name for name in self.results if name != WITH]
        return min(others, key=lambda name: self.results[name].mean_s)

    def ratio(self, other: str) -> tuple[float, float, float]:
        """The allocation's time over that of another: (ratio of means, low, high)."""
        return harness.ratio_of_means(self.results[WITH].times_s, self.results[other].times_s)


def main(argv: list[str]) -> int:
    parser = harness.arguments(NAME, __doc__)
    parser.add_argument("--quick", action="store_true", help="two regimes, one seed, no rate tuned")
    parser.set_defaults(seeds=SEEDS)
    options = parser.parse_args(argv)
    bench = virtual.Bench(NAME, fresh=options.fresh, workers=options.workers)
    seeds = (1,) if options.quick else tuple(range(1, options.seeds + 1))
    rates: dict[float, float] = {}
    found = []
    for regime in REGIMES[:2] if options.quick else REGIMES:
        harness.progress(regime.label)
        if regime.heterogeneity not in rates:
            rates[regime.heterogeneity] = 0.2 if options.quick else _tuned(bench, regime)
        lr = rates[regime.heterogeneity]
        found.append(_compare(bench, regime, lr, seeds, TUNING_SEEDS[: len(seeds)]))
    return harness.finish(
        NAME,
        bars(found),
        rows(found),
        is_default=not options.quick and options.seeds == SEEDS,
        regimes=[_details(item) for item in found],
        setting={**scenario(REGIMES[0]), "devices": "per regime: fleet() in benchmarks/goodput.py"},
    )


def _compare(
    bench: virtual.Bench, regime: Regime, lr: float, seeds: Sequence[int], screening: Sequence[int]
) -> Found:
    settings = {name: Setting.of(sync, lr) for name, sync in CONTENDERS.items()}
    fixed = [setting for name, setting in settings.items() if name not in (WITHOUT, WITH)]
    scores = bench.scores(scenario(regime), fixed, screening)
    screened = {
        name: sum(scores[setting]) / len(screening) for name, setting in settings.items() if setting in scores
    }
    compared = [WITHOUT, WITH, *sorted(screened, key=screened.__getitem__)[:COMPARED]]
    results = bench.run(scenario(regime), [settings[name] for name in compared], seeds)
    return Found(regime, lr, {name: results[settings[name]] for name in compared}, screened)


def _tuned(bench: virtual.Bench, regime: Regime) -> float:
    """The learning rate of ADSP without allocation."""
    plain = replace(regime, part="0")
    tuned = tune(
        {WITHOUT: [Setting.of("adsp", 0)]},
        lambda settings, seeds: bench.scores(scenario(plain), settings, seeds),
        TUNING_SEEDS,
        RATES,
        finer=True,
    )
    return tuned[WITHOUT].best.lr


def bars(found: Sequence[Found]) -> list[Bar]:
    """The claims. A run that did not reach the loss counts as if it had at the limit."""
    asked = [item for item in found if item.regime.asked]
    missed = sum(len(item.results[WITH].runs) - item.results[WITH].reached for item in found)
    return [
        Bar("runs with allocation that did not reach the loss", missed, 0),
        *(
            Bar(
                f"allocation over the best fixed batch, {item.best_fixed} ({item.regime.label})",
                item.ratio(item.best_fixed)[0],
                1.1,
            )
            for item in asked
        ),
        *(Bar(f"allocation over none ({item.regime.label})", item.ratio(WITHOUT)[0], 1.05) for item in found),
    ]


def rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    return [
        {
            "regime": item.regime.label,
            "lr": f"{item.lr:.2g}",
            "allocation, mean s": item.results[WITH].mean_s,
            "over none": "{:.3f} [{:.3f}, {:.3f}]".format(*item.ratio(WITHOUT)),
            "best fixed batch": item.best_fixed,
            "over that": "{:.3f} [{:.3f}, {:.3f}]".format(*item.ratio(item.best_fixed)),
        }
        for item in found
    ]


def _details(item: Found) -> dict[str, Any]:
    return {
        "regime": item.regime.label,
        "lr": item.lr,
        "times_s": {name: list(result.times_s) for name, result in item.results.items()},
        "reached": {name: result.reached for name, result in item.results.items()},
        "screened_s": dict(item.screened),
        "allocation_over": {
            name: dict(zip(("mean", "low", "high"), item.ratio(name), strict=True))
            for name in item.results
            if name != WITH
        },
    }
