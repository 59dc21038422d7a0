"""The scenarios about allocation: (j) allotted cycles, and (k) batches by goodput under ADSP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.reproduction.contenders import rate
from benchmarks.reproduction.parts import DIRICHLET, JITTER, Scenarios, contenders, fleet, scenario
from benchmarks.reproduction.workloads import WORKLOADS

# ---- (j) ------------------------------------------------------------------------------------

CYCLE_S = 20.0
CYCLES = 20
CLOSES = 1.1
"""A cycle is over after so many T at the latest."""

BENCHMARK_S = 10.0
"""For the first cycle, in which each learner is measured over a few batches."""

COMMIT_S = 0.3
FAST_S = 0.2
SLOW_S = FAST_S * 2.4 / 0.7
"""Seconds of a local update on 32 samples: the ratio of the source's two kinds, 2.4 GHz and 700 MHz."""

SCHEMES = {"Optimised": "mel-async", "Synchronous": "mel-sync", "Equal": "mel-eta"}
"""Label -> model."""

LIKE = "fixed-adacomm-16"
"""Whose learning rate all three have: it too averages models after some dozen local steps."""


@dataclass(frozen=True)
class Cycled:
    """A fleet whose learners are half fast and half slow, with a d such that they could make `updates` each.

    Args:
        learners: K. updates: c, local updates each if they need not be whole.
    """

    learners: int
    updates: float

    @property
    def counts(self) -> tuple[int, int]:
        """Fast and slow ones."""
        return self.learners - self.learners // 2, self.learners // 2

    @property
    def samples(self) -> int:
        """d of which all learners make c passes in T: the sum of D_k(c), with C1 = 0."""
        batch = WORKLOADS["mlp"].batch
        per_s = sum(
            count * batch / step_s for count, step_s in zip(self.counts, (FAST_S, SLOW_S), strict=True)
        )
        return round((CYCLE_S - COMMIT_S) * per_s / self.updates)


CYCLED = {
    "j-10-learners": Cycled(10, 1.65),
    "j-20-learners": Cycled(20, 2.75),
    "j-no-gain": Cycled(10, 6.09),
}
"""In the last one c is so little above a whole number that the part behind the point can't be put to use."""


def cycles(choices: Mapping[str, Any]) -> Scenarios:
    """(j). A target that nobody reaches: every run goes on for the same time, at least `CYCLES` cycles."""
    mlp = WORKLOADS["mlp"]
    lr = rate(dict(choices), mlp.key, LIKE, mlp.usual_rate)
    made: Scenarios = {}
    for name, what in CYCLED.items():
        options = {"cycle_s": CYCLE_S, "samples": what.samples}
        made[name] = scenario(
            replace(mlp, task={"name": "fashion-mnist"}),
            [
                {
                    "name": kind,
                    "count": count,
                    "step_s": round(step_s, 4),
                    "commit_s": COMMIT_S,
                    "jitter": JITTER,
                }
                for kind, count, step_s in zip(("fast", "slow"), what.counts, (FAST_S, SLOW_S), strict=True)
            ],
            [
                {"label": label, "sync": {model: options}, "training": {"lr": lr}}
                for label, model in SCHEMES.items()
            ],
            target={"accuracy": 1.0, "smooth": mlp.smooth},
            limit_s=BENCHMARK_S + CYCLES * CLOSES * CYCLE_S,
        )
    return made


# ---- (k) ------------------------------------------------------------------------------------

FIXED_SHARE = 0.5
"""Of a step's time on the fast half of the devices, where there is a fixed part: alpha = beta · batch."""

HETEROGENEITY = {"1.45": 1.45, "2.00": 2.0, "3.20": 29 / 9}
DIVISIONS = {"iid": "mlp", "dirichlet": "mlp-dirichlet"}
"""Division of the data -> the place where learning rates were tuned for it."""

COSTS = ("proportional", "fixed-part")
OWN = "ADSP, batches by goodput"


def batches(choices: Mapping[str, Any]) -> Scenarios:
    """(k). ADSP's learning rate for both: with own batches each device's rate is scaled from it."""
    made: Scenarios = {}
    for h, heterogeneity in HETEROGENEITY.items():
        for division, place in DIVISIONS.items():
            workload = replace(WORKLOADS["mlp"], key=place)
            for cost in COSTS:
                devices = fleet(heterogeneity)
                compare = contenders(("adsp", "adsp"), workload, choices)
                compare[1] |= {"label": OWN, "sync": {"adsp": {"allocation": True}}}
                made[f"k-{h}-{division}-{cost}"] = scenario(
                    workload,
                    with_fixed_part(devices) if cost == "fixed-part" else devices,
                    compare,
                    **({"training": DIRICHLET} if division == "dirichlet" else {}),
                )
    return made


def with_fixed_part(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same fleet, of slow, middle and fast ones: on the faster half a step has a part that does not grow
    with the batch."""
    slow, middle, fast = devices
    half = sum(group["count"] for group in devices) // 2

    def fixed(group: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**group, **more, "fixed_s": round(FIXED_SHARE * group["step_s"], 4)}

    of_middle = half - fast["count"]
    return [
        slow,
        {**middle, "count": middle["count"] - of_middle},
        fixed(middle, name="middle-fixed", count=of_middle),
        fixed(fast),
    ]
