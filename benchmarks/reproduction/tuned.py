"""Finds each model's learning rate, alike for all: `python -m benchmarks.reproduction tune [PLACE ...]`.

The search is the benchmarks' own (`benchmarks/tuning.py`), with each option of a model (each tau, say) tuned
for itself. Its seeds are in no comparison. What was finished is kept, so it can be interrupted; what it chose
is written to benchmarks/results/reproduction/tuning.json, and from there into the scenarios.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import harness
from benchmarks.reproduction import build, files, parts
from benchmarks.reproduction.contenders import ALL, CONTENDERS, RESULTS, TUNING, tuned
from benchmarks.reproduction.workloads import WORKLOADS
from benchmarks.tuning import Setting, Tuned, tune
from benchmarks.virtual import Bench

SEEDS = (101, 102)


@dataclass(frozen=True)
class Place:
    """Where rates are tuned: a workload on a fleet and a division of its data.

    Args:
        limit_s: shorter than a comparison's: a rate that takes longer is not the best.
    """

    workload: str
    keys: Sequence[str]
    limit_s: float
    devices: list[dict[str, Any]] = field(default_factory=parts.fleet)
    training: dict[str, Any] = field(default_factory=dict)


PLACES = {
    "mlp": Place("mlp", (*ALL, "adsp-per-step"), 600),
    "mlp-dirichlet": Place("mlp", build.WEIGHT_MODELS, 600, training=parts.DIRICHLET),
    "mlp-labels-by-speed": Place("mlp", build.WEIGHT_MODELS, 600, build.labels_by_speed()),
    "cnn": Place("cnn", build.WORKLOAD_MODELS, 300),
    "lstm": Place("lstm", build.WORKLOAD_MODELS, 300),
    "svm": Place("svm", build.WORKLOAD_MODELS, 400),
}


def run(names: Sequence[str] = (), *, fresh: bool = False, workers: int | None = None) -> None:
    """Tune in these places (default: all), one after the other; each is written as soon as it is done."""
    bench = Bench("reproduction-tuning", fresh=fresh, workers=workers)
    for name in names or PLACES:
        place = PLACES[name]
        harness.progress(f"tuning in {name}: {len(place.keys)} models")
        workload = replace(WORKLOADS[place.workload], limit_s=place.limit_s)
        values = parts.scenario(workload, place.devices, [], training=place.training)
        values |= {
            "name": f"tuning-{name}",
            "tasks": [str(files.FOLDER / path) for path in values.get("tasks", ())],
        }
        settings = {key: [Setting.of(CONTENDERS[key].sync, 0)] for key in place.keys}
        found = tune(
            settings,
            lambda wanted, seeds, values=values: bench.scores(values, wanted, seeds),  # type: ignore[misc]
            SEEDS,
            workload.rates,
        )
        choices = {**tuned(), name: {key: _choice(found[key], place.limit_s) for key in place.keys}}
        _write({name: choices[name] for name in PLACES if name in choices}, name)


def _choice(found: Tuned, limit_s: float) -> dict[str, Any]:
    """The rate, and all that were tried: [rate, mean seconds, seeds, did all reach the target]."""
    tried = sorted((setting.lr, score, seeds) for setting, score, seeds in found.tried)
    return {
        "lr": found.best.lr,
        "at_end": found.at_end,
        "tried": [[lr, round(min(score, limit_s), 1), seeds, score <= limit_s] for lr, score, seeds in tried],
    }


def _write(choices: dict[str, Any], place: str) -> None:
    """All choices; `place` is the one that was tuned now, with the versions of now."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    before = json.loads(TUNING.read_text(encoding="utf-8"))["made_with"] if TUNING.exists() else {}
    where = harness.measured_on()
    now = {key: where[key] for key in ("date", "commit", "offbeat", "torch", "numpy")}
    content = {
        "seeds": list(SEEDS),
        "workloads": choices,
        "made_with": {**before, place: now},
    }
    lines = json.dumps(content, indent=1)
    # One line per model: the tables of tried rates are short.
    TUNING.write_text(_shortened(lines) + "\n", encoding="utf-8")


def _shortened(text: str) -> str:
    """JSON whose lines deeper than four levels are joined to the one that opened them."""
    joined: list[str] = []
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip(" "))
        if depth > 3 or (depth == 3 and line.lstrip().startswith(("}", "]"))):
            joined[-1] += (" " if joined[-1].endswith(",") else "") + line.strip()
        else:
            joined.append(line)
    return "\n".join(joined)
