"""The searched commit rate against the best fixed one in hindsight, over a suite of regimes.

Regimes: {IID, Dirichlet(0.3)} x {lr, 3 lr} x {momentum 0, 0.9} x commit delay {0.1, 1, 3} slow
steps x overlap {on, off}; by default a subset in which each pair of settings occurs, with FULL=1
all 48. Each regime has its own target, such that runs take about 20 check periods whatever the regime:
the lowest loss that a pilot run (`search: formula`) reaches in so many, the median of three seeds that
are not measured with. The fleet is one of 7 with the headline's speeds and mix (H 3.29 instead of 3.22,
of 18), which costs 2/5 of the time.

Then: overlap against no overlap in each regime, paired; and at delays of 5 and 10 slow steps.
Measure: virtual seconds until the mean of the last 10 evaluations crosses the target.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks import harness, virtual
from benchmarks.harness import Bar
from benchmarks.tuning import Setting

NAME = "search"
ABOUT = (
    "the searched commit rate against the best fixed one in hindsight, over many regimes; overlap on and off"
)

LEARNING_RATE = 0.03
RATES = (1, 2, 4, 8, 16)
"""Commits per check period. 16 is the most that a step and a commit of 0.1 s leave room for."""
SEARCHES = ("robust", "formula", "source")
CHECK_PERIOD_S = 20.0
PILOT_PERIODS = 20
PILOT_SEEDS = (100, 101, 102)
LIMIT_PERIODS = 50
LONG_DELAYS = (5.0, 10.0)
TRIES = 200


@dataclass(frozen=True)
class Regime:
    """What a search has to cope with. The delay is in steps of the slowest device, which take 1 s."""

    partition: str
    lr_times: int
    momentum: float
    delay: float
    overlap: bool

    @property
    def label(self) -> str:
        return (
            f"{self.partition}, {'3 ' if self.lr_times == 3 else ''}lr, momentum {self.momentum:g}, "
            f"delay {self.delay:g}, overlap {'on' if self.overlap else 'off'}"
        )


SETTINGS: tuple[tuple[Any, ...], ...] = (
    ("iid", "dirichlet:0.3"),
    (1, 3),
    (0.0, 0.9),
    (0.1, 1.0, 3.0),
    (True, False),
)


def covering(settings: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Few rows, one value of each setting, in which each pair of values of two settings occurs.

    Greedy: always the row with most pairs that are new, the first of these in an order that is drawn
    anew `TRIES` times, from a fixed seed; the first of the smallest sets found.
    """
    rows = list(itertools.product(*settings))
    chance = random.Random(0)
    return min((_greedy(chance.sample(rows, len(rows))) for _ in range(TRIES)), key=len)


def _greedy(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen = []
    while missing:
        row = max(rows, key=lambda row: len(_pairs(row) & missing))
        chosen.append(row)
        missing -= _pairs(row)
    return chosen


def _pairs(row: Sequence[Any]) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    return set(itertools.combinations(enumerate(row), 2))


def regimes(*, full: bool) -> list[Regime]:
    chosen = set(covering(SETTINGS))
    return [Regime(*row) for row in itertools.product(*SETTINGS) if full or row in chosen]


def scenario(regime: Regime, target_loss: float, limit_s: float) -> dict[str, Any]:
    return {
        "name": NAME,
        "task": {"name": "fashion-mnist", "options": {"held_out": 1000}},
        "devices": virtual.small_fleet(commit_s=regime.delay),
        "training": {"batch": 32, "momentum": regime.momentum, "partition": regime.partition},
        "check_period_s": CHECK_PERIOD_S,
        "target": {"loss": target_loss, "smooth": 10},
        "limit_s": limit_s,
        "evaluate_every_s": 1,
    }


def rates(regime: Regime) -> list[int]:
    """Those that the slowest device can keep: a step and a commit fit the interval."""
    return [rate for rate in RATES if CHECK_PERIOD_S / rate >= 1.0 + regime.delay]


def setting(regime: Regime, **options: Any) -> Setting:
    sync = {"adsp": options} if options else "adsp"
    return Setting.of(sync, regime.lr_times * LEARNING_RATE, overlap=regime.overlap)


@dataclass(frozen=True)
class Found:
    """A regime's times, by setting; each over the same seeds."""

    regime: Regime
    target_loss: float
    searches: Mapping[str, virtual.Result]
    fixed: Mapping[int, virtual.Result]
    flipped: virtual.Result  # search: robust, with overlap where the regime has none and the other way round

    @property
    def best_rate(self) -> int:
        return min(self.fixed, key=lambda rate: self.fixed[rate].mean_s)

    def ratio(self, search: str) -> tuple[float, float, float]:
        """Over the best fixed rate: (ratio of means, low, high)."""
        return harness.ratio_of_means(self.searches[search].times_s, self.fixed[self.best_rate].times_s)

    @property
    def overlap_ratio(self) -> tuple[float, float, float]:
        """With overlap over without."""
        with_, without = self.searches["robust"], self.flipped
        if not self.regime.overlap:
            with_, without = without, with_
        return harness.ratio_of_means(with_.times_s, without.times_s)


def main(argv: list[str]) -> int:
    parser = harness.arguments(NAME, __doc__)
    parser.add_argument("--quick", action="store_true", help="two regimes, one seed, a few check periods")
    options = parser.parse_args(argv)
    full = os.environ.get("FULL", "") not in ("", "0")
    bench = virtual.Bench(NAME, fresh=options.fresh, workers=options.workers)
    seeds = (1,) if options.quick else tuple(range(1, options.seeds + 1))
    periods = 6 if options.quick else PILOT_PERIODS
    suite = regimes(full=full)[: 2 if options.quick else None]
    found = []
    for number, regime in enumerate(suite, 1):
        harness.progress(f"regime {number} of {len(suite)}: {regime.label}")
        found.append(_measure(bench, regime, seeds, periods))
    far = {}
    for delay in LONG_DELAYS[: 1 if options.quick else None]:
        harness.progress(f"overlap at a delay of {delay:g} slow steps")
        far[delay] = _overlap_at(bench, delay, seeds, periods)
    return harness.finish(
        NAME,
        bars(found, far),
        rows(found),
        is_default=not options.quick and not full and options.seeds == harness.SEEDS,
        full=full,
        regimes=[_details(item) for item in found],
        long_delays={
            str(delay): {"with_over_without": ratio, "interval_95": [low, high]}
            for delay, (ratio, low, high) in far.items()
        },
        setting={
            **scenario(suite[0], 0.0, 0.0),
            "devices": virtual.small_fleet(commit_s=0.0),
            "heterogeneity": virtual.heterogeneity(virtual.small_fleet(commit_s=0.0)),
            "learning_rate": LEARNING_RATE,
            "rates": list(RATES),
            "target": f"per regime: the lowest mean of 10 losses of a pilot (search: formula) in {periods} "
            f"check periods, the median of the seeds {', '.join(map(str, PILOT_SEEDS))}",
            "limit_s": LIMIT_PERIODS / PILOT_PERIODS * periods * CHECK_PERIOD_S,
            "seeds": list(seeds),
        },
    )


def _target(bench: virtual.Bench, regime: Regime, periods: int) -> float:
    """What a pilot reaches in so many check periods. The last loss would not do: it may have been far lower
    before, where momentum makes it swing, and runs would cross it after half of the time."""
    length_s = periods * CHECK_PERIOD_S
    pilot = setting(regime, search="formula")
    runs = bench.run(scenario(regime, 1e-9, length_s), [pilot], PILOT_SEEDS)[pilot].runs
    return median(run.lowest for run in runs)


def _measure(bench: virtual.Bench, regime: Regime, seeds: Sequence[int], periods: int) -> Found:
    target = _target(bench, regime, periods)
    limit_s = LIMIT_PERIODS / PILOT_PERIODS * periods * CHECK_PERIOD_S
    fixed = {rate: setting(regime, rate=rate) for rate in rates(regime)}
    searches = {name: setting(regime, search=name) for name in SEARCHES}
    flipped = replace(searches["robust"], overlap=not regime.overlap)
    found = bench.run(
        scenario(regime, target, limit_s), [*fixed.values(), *searches.values(), flipped], seeds
    )
    return Found(
        regime,
        target,
        {name: found[item] for name, item in searches.items()},
        {rate: found[item] for rate, item in fixed.items()},
        found[flipped],
    )


def _overlap_at(
    bench: virtual.Bench, delay: float, seeds: Sequence[int], periods: int
) -> tuple[float, float, float]:
    """Time with overlap over that without: (ratio of means, low, high)."""
    regime = Regime("iid", 3, 0.0, delay, True)
    with_ = setting(regime, search="robust")
    without = replace(with_, overlap=False)
    limit_s = LIMIT_PERIODS / PILOT_PERIODS * periods * CHECK_PERIOD_S
    found = bench.run(scenario(regime, _target(bench, regime, periods), limit_s), [with_, without], seeds)
    return harness.ratio_of_means(found[with_].times_s, found[without].times_s)


def bars(found: Sequence[Found], far: Mapping[float, tuple[float, float, float]]) -> list[Bar]:
    """The claims. A search must have reached the target; what did not counts with the limit's time."""
    robust_over_formula = harness.geometric_mean(
        [item.searches["robust"].mean_s / item.searches["formula"].mean_s for item in found]
    )
    missed = sum(len(item.searches["robust"].runs) - item.searches["robust"].reached for item in found)
    overlap = max(found, key=lambda item: item.overlap_ratio[1])
    return [
        Bar("runs of the robust search that did not reach the target", missed, 0),
        *(
            Bar(f"robust over the best fixed rate ({item.regime.label})", item.ratio("robust")[0], 1.1)
            for item in found
        ),
        Bar("robust over formula, geometric mean over the regimes", robust_over_formula, 1.0),
        Bar(
            "with overlap over without, the lower end of the interval where it is highest "
            f"({overlap.regime.label})",
            overlap.overlap_ratio[1],
            1.0,
        ),
        *(
            Bar(
                f"with overlap over without at a delay of {delay:g}, the upper end of the interval",
                high,
                0.95,
            )
            for delay, (_, _, high) in far.items()
        ),
    ]


def rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    return [
        {
            "regime": item.regime.label,
            "best rate": item.best_rate,
            "its mean s": item.fixed[item.best_rate].mean_s,
            **{f"{name}, of that": item.ratio(name)[0] for name in SEARCHES},
            "robust, interval": "{1:.3f} to {2:.3f}".format(*item.ratio("robust")),
            "overlap on / off": item.overlap_ratio[0],
        }
        for item in found
    ] + [
        {
            "regime": "geometric mean",
            "best rate": "",
            "its mean s": "",
            **{
                f"{name}, of that": harness.geometric_mean([item.ratio(name)[0] for item in found])
                for name in SEARCHES
            },
            "robust, interval": "",
            "overlap on / off": harness.geometric_mean([item.overlap_ratio[0] for item in found]),
        }
    ]


def _details(item: Found) -> dict[str, Any]:
    return {
        "regime": item.regime.label,
        "target_loss": round(item.target_loss, 5),
        "times_s": {
            **{f"rate {rate}": list(result.times_s) for rate, result in item.fixed.items()},
            **{name: list(result.times_s) for name, result in item.searches.items()},
            f"robust, overlap {'off' if item.regime.overlap else 'on'}": list(item.flipped.times_s),
        },
        "reached": {
            **{f"rate {rate}": result.reached for rate, result in item.fixed.items()},
            **{name: result.reached for name, result in item.searches.items()},
        },
        "over_best_fixed": {
            name: dict(zip(("mean", "low", "high"), item.ratio(name), strict=True)) for name in SEARCHES
        },
        "overlap_over_none": dict(zip(("mean", "low", "high"), item.overlap_ratio, strict=True)),
    }
