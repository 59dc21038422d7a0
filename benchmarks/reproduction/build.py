"""What the scenario files say; `files.py` writes them.

The files are what counts, and what `offbeat simulate` reads. They are made by a program because the same
fleet, rates and options stand in many of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.reproduction import build_allocation
from benchmarks.reproduction.contenders import ALL, tuned
from benchmarks.reproduction.parts import DIRICHLET, JITTER, Scenarios, contenders, fleet, scenario, variants
from benchmarks.reproduction.workloads import WORKLOADS, Workload

COMPARED = ("bsp", "asp", "fixed-adacomm-8", "fixed-adacomm-16", "adacomm", "adsp")
"""In the experiments that vary one thing."""


def build(choices: Mapping[str, Any] | None = None) -> Scenarios:
    """Every scenario by name, with the tuned learning rates (default: the committed ones)."""
    choices = tuned() if choices is None else choices
    mlp = WORKLOADS["mlp"]
    made: Scenarios = {}

    made["a-models"] = scenario(mlp, fleet(), contenders(ALL, mlp, choices))
    made["a-three-workers"] = _three_workers(mlp, choices)
    for h in (1.0, 1.45, 2.0, 2.6):
        made[f"b-heterogeneity-{h:.2f}"] = scenario(mlp, fleet(h), contenders(COMPARED, mlp, choices))
    for size in (18, 36, 100, 500):
        # Work grows with the fleet: a nearer target in all of them, and fewer models in the largest.
        keys = ("fixed-adacomm-8", "fixed-adacomm-16", "adsp") if size == 500 else SIZE_MODELS
        nearer = {"loss": 0.6, "smooth": mlp.smooth}
        made[f"c-workers-{size}"] = scenario(
            mlp, fleet(size=size), contenders(keys, mlp, choices), target=nearer
        )
    for delay in (0, 2, 5, 10):
        made[f"d-delay-{delay}"] = _delay(mlp, choices, float(delay))
    for name, commit_s, overlap in (("0.3", 0.3, False), ("3", 3.0, False), ("3-overlapped", 3.0, True)):
        made[f"e-rates-{name}"] = _rates(mlp, choices, commit_s, overlap)
    for key in ("cnn", "lstm", "svm"):
        work = WORKLOADS[key]
        made[f"f-{key}"] = scenario(work, fleet(), contenders(WORKLOAD_MODELS, work, choices))
    made["g-iid"] = _weights("mlp", choices, fleet())
    made["g-dirichlet"] = _weights("mlp-dirichlet", choices, fleet(), training=DIRICHLET)
    made["g-labels-by-speed"] = _weights("mlp-labels-by-speed", choices, labels_by_speed())
    made["h-speed-changes"] = scenario(mlp, _speed_changes(), contenders(CHANGE_MODELS, mlp, choices))
    made["h-devices-leave"] = scenario(mlp, _leaving(), contenders(CHANGE_MODELS, mlp, choices))
    made |= build_allocation.cycles(choices)
    made |= build_allocation.batches(choices)
    return made


WORKLOAD_MODELS = (
    "bsp",
    "ssp-3",
    "asp",
    "fixed-adacomm-8",
    "fixed-adacomm-16",
    "adacomm",
    "fedbuff-2",
    "adsp",
)
WEIGHT_MODELS = ("fixed-adacomm-8", "asp", "adsp", "adsp-per-step")
SIZE_MODELS = ("bsp", "asp", "fixed-adacomm-8", "fixed-adacomm-16", "adsp")
CHANGE_MODELS = ("bsp", "asp", "fixed-adacomm-8", "fixed-adacomm-16", "adacomm", "fedcompass-8", "adsp")
CHANGE_AT_S = 30.0


def _three_workers(workload: Workload, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Step times 1 : 1 : 3. A commit of 10 slow steps is what the source's shares imply: with it BSP computes
    (1/3 + 1/3 + 1)/3 s of each 11 s, 5 %, and Fixed ADACOMM(40) 40 times that of each 50 s, 44 %."""
    devices = [
        {"name": "fast", "count": 2, "step_s": 0.3333, "commit_s": 10.0, "jitter": JITTER},
        {"name": "slow", "count": 1, "step_s": 1.0, "commit_s": 10.0, "jitter": JITTER},
    ]
    compare = [
        *contenders(("bsp", "ssp-40", "adacomm", "fixed-adacomm-40", "adsp"), workload, choices),
        *contenders(("adsp",), workload, choices, overlap=True),
    ]
    compare[-1]["label"] = "ADSP overlapped"
    return scenario(
        workload, devices, compare, check_period_s=120.0, limit_s=4000, target={"loss": 0.6, "smooth": 10}
    )


def _delay(workload: Workload, choices: Mapping[str, Any], delay_s: float) -> dict[str, Any]:
    keys = ("bsp", "asp", "fixed-adacomm-8", "fixed-adacomm-16", "fixed-adacomm-40", "adacomm", "adsp")
    overlapped = contenders(("asp", "adsp"), workload, choices, overlap=True)
    for entry in overlapped:
        entry["label"] += " overlapped"
    return scenario(
        workload,
        fleet(commit_s=delay_s),
        [*contenders(keys, workload, choices), *overlapped],
        check_period_s=60.0,
        limit_s=workload.limit_s * (2 if delay_s >= 5 else 1),
    )


def _rates(workload: Workload, choices: Mapping[str, Any], commit_s: float, overlap: bool) -> dict[str, Any]:
    rates = (1, 2, 4, 8, 16) if commit_s < 1 or overlap else (1, 2, 3, 4, 6)
    options: list[tuple[str, dict[str, Any]]] = [(f"ADSP rate {r}", {"rate": r}) for r in rates]
    options += [(f"ADSP search: {name}", {"search": name}) for name in ("robust", "formula", "source")]
    return scenario(
        workload, fleet(commit_s=commit_s), variants("adsp", workload, choices, options), overlap=overlap
    )


def _weights(
    place: str, choices: Mapping[str, Any], devices: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """Weight rules; each at a learning rate of its own in each division of the data, for a rule
    changes the size of a commit."""
    workload = replace(WORKLOADS["mlp"], key=place)
    return scenario(workload, devices, contenders(WEIGHT_MODELS, workload, choices), **more)


def labels_by_speed() -> list[dict[str, Any]]:
    """Slow, middle and fast devices each hold classes that the others don't have."""
    classes = ([0, 1, 2], [3, 4, 5], [6, 7, 8, 9])
    return [{**group, "labels": labels} for group, labels in zip(fleet(), classes, strict=True)]


def _speed_changes() -> list[dict[str, Any]]:
    """Some of the fast devices become slow (they got hot), the slow ones become middling."""
    slow, middle, fast = fleet()
    return [
        {**slow, "speeds": [[CHANGE_AT_S, middle["step_s"]]]},
        middle,
        {**fast, "count": fast["count"] - 3},
        {**fast, "name": "hot", "count": 3, "speeds": [[CHANGE_AT_S, 1.5]]},
    ]


def _leaving() -> list[dict[str, Any]]:
    """A slow device and a fast one vanish without a word."""
    slow, middle, fast = fleet()
    return [
        {**slow, "count": slow["count"] - 1},
        {**slow, "name": "slow-leaver", "count": 1, "leaves_at": CHANGE_AT_S},
        middle,
        {**fast, "count": fast["count"] - 1},
        {**fast, "name": "fast-leaver", "count": 1, "leaves_at": CHANGE_AT_S + 15},
    ]
