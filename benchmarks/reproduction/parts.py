"""What many scenarios share: fleets, entries with their learning rates, and the whole of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.reproduction.contenders import CONTENDERS, rate
from benchmarks.reproduction.workloads import Workload

H = 29 / 9
"""Heterogeneity of the source's main experiment, about 3.2: speeds 1, 3 and 5."""
COMMIT_S = 0.3
JITTER = 0.1
PERIOD_S = 20.0
SHARES = (5 / 18, 6 / 18, 7 / 18)
"""Of the fleet: slow, middle and fast devices."""
DIRICHLET = {"partition": {"dirichlet": 0.3}}

Entries = list[dict[str, Any]]
Scenarios = dict[str, dict[str, Any]]


def speeds(heterogeneity: float) -> tuple[float, float, float]:
    """1, 1 + x, 1 + 2x, so that mean(v)/min(v) over the three classes is `heterogeneity`."""
    x = (heterogeneity - 1) / (SHARES[1] + 2 * SHARES[2])
    return 1.0, 1 + x, 1 + 2 * x


def counts(size: int) -> tuple[int, int, int]:
    """Slow, middle and fast devices of a fleet."""
    slow, middle = round(size * SHARES[0]), round(size * SHARES[1])
    return slow, middle, size - slow - middle


def fleet(heterogeneity: float = H, size: int = 18, commit_s: float = COMMIT_S) -> list[dict[str, Any]]:
    """Three classes; the slowest device makes one local update a second."""
    return [
        {
            "name": name,
            "count": count,
            "step_s": round(1 / speed, 4),
            "commit_s": commit_s,
            "jitter": JITTER,
        }
        for name, count, speed in zip(
            ("slow", "middle", "fast"), counts(size), speeds(heterogeneity), strict=True
        )
    ]


def contenders(keys: Iterable[str], workload: Workload, choices: Mapping[str, Any], **more: Any) -> Entries:
    """Entries of `compare`, each with its own learning rate."""
    return [
        {
            "label": CONTENDERS[key].label,
            "sync": CONTENDERS[key].sync,
            "training": {"lr": rate(dict(choices), workload.key, key, workload.usual_rate)},
            **more,
        }
        for key in keys
    ]


def variants(
    key: str, workload: Workload, choices: Mapping[str, Any], options: Iterable[tuple[str, dict[str, Any]]]
) -> Entries:
    """One model with further options, each at the model's learning rate."""
    model = CONTENDERS[key].model
    base = CONTENDERS[key].sync
    known = dict(base[model]) if isinstance(base, dict) else {}
    lr = rate(dict(choices), workload.key, key, workload.usual_rate)
    return [
        {
            "label": label,
            "sync": {model: {**known, **extra}} if known or extra else model,
            "training": {"lr": lr},
        }
        for label, extra in options
    ]


def scenario(
    workload: Workload, devices: list[dict[str, Any]], compare: Entries, **more: Any
) -> dict[str, Any]:
    """The whole of a file. `more` goes in as it is."""
    training: dict[str, Any] = {"batch": workload.batch}
    if workload.weight_decay:
        training["weight_decay"] = workload.weight_decay
    training.update(more.pop("training", {}))
    return {
        "task": workload.task,
        **({"tasks": [workload.file]} if workload.file else {}),
        "devices": devices,
        "training": training,
        "check_period_s": PERIOD_S,
        "target": {"loss": workload.target_loss, "smooth": workload.smooth},
        "limit_s": workload.limit_s,
        "evaluate_every_s": 1.0,
        "seeds": 5,
        "overlap": False,
        **more,
        "compare": compare,
    }
