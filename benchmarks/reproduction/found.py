"""What a scenario's runs gave: the compact result file, and the comparisons made from it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.reproduction.contenders import RESULTS
from offbeat_cli.simulator.compare import Comparison

POINTS = 40
"""Of a curve that is kept for the plots."""
ROUNDED = 4
SHARES = ("compute_share", "commit_share", "wait_share")


@dataclass(frozen=True)
class Ratio:
    """A ratio of means over paired seeds, with its 95 % interval.

    Args:
        open_above: the one above the line did not reach the target with every seed: the true ratio is larger.
        open_below: nor did the one below: it is smaller.
    """

    mean: float
    low: float
    high: float
    open_above: bool = False
    open_below: bool = False

    @property
    def text(self) -> str:
        if self.open_above and self.open_below:
            return "not known"
        sign = "> " if self.open_above else "< " if self.open_below else ""
        return f"{sign}{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Found:
    """One scenario's results; `content` is the file's."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, name: str, folder: Path = RESULTS) -> Found | None:
        """None if the scenario was not run yet."""
        path = folder / f"{name}.json"
        return cls(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    @property
    def labels(self) -> list[str]:
        return [entry["label"] for entry in self.content["results"]]

    @property
    def seeds(self) -> int:
        return len(self.content["seeds"])

    def __getitem__(self, label: str) -> Mapping[str, Any]:
        return next(entry for entry in self.content["results"] if entry["label"] == label)

    def has(self, *labels: str) -> bool:
        return all(label in self.labels for label in labels)

    def best(self, labels: Iterable[str]) -> str | None:
        """Of these entries the one with the least mean time; None of none."""
        return min(labels, key=lambda label: (self[label]["time_s"], -self[label]["reached"]), default=None)

    def reached_all(self, label: str) -> bool:
        return bool(self[label]["reached"] == self.seeds)

    def ratio(self, above: str, below: str) -> Ratio:
        """Of the times to the target."""
        mean, low, high = harness.ratio_of_means(self[above]["times_s"], self[below]["times_s"])
        return Ratio(mean, low, high, not self.reached_all(above), not self.reached_all(below))

    def lead(self, ours: str, theirs: str) -> Ratio:
        """How much less time ours took, as a share of theirs."""
        ratio = self.ratio(ours, theirs)
        return Ratio(1 - ratio.mean, 1 - ratio.high, 1 - ratio.low, ratio.open_below, ratio.open_above)

    def time(self, label: str) -> str:
        """Mean seconds; `>` where a seed did not get there within the limit."""
        return f"{'' if self.reached_all(label) else '> '}{self[label]['time_s']:.0f}"


def compact(comparison: Comparison, *, quick: bool, per_model: bool = False) -> dict[str, Any]:
    """What is committed of a comparison: means over seeds, times per seed, thinned curves.

    `per_model`: also each seed's accuracy of each model that its server has had.
    """
    scenario = comparison.scenario
    where = harness.measured_on()
    return {
        "scenario": scenario.name,
        "quick": quick,
        "seeds": list(scenario.seeds),
        "heterogeneity": round(scenario.heterogeneity, 3),
        "target": scenario.target.model_dump(exclude_none=True),
        "limit_s": scenario.limit_s,
        "results": [
            {
                **{
                    key: _rounded(value)
                    for key, value in result.to_json().items()
                    if key not in ("reached", "interval_s")
                },
                "reached": sum(run["reached"] for run in result.runs),
                "lr": scenario.run_settings(result.entry, scenario.seeds[0]).training.learning_rate,
                "intervals_s": [_rounded(_last_interval(run)) for run in result.runs],
                "curve": mean_curve([run["curve"] for run in result.runs]),
                **({"models": [models(run["curve"]) for run in result.runs]} if per_model else {}),
            }
            for result in comparison.results
        ],
        "made_with": {key: where[key] for key in ("date", "commit", "offbeat", "torch", "numpy", "python")},
    }


def write(content: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{content['scenario']}.json"
    lines = [f" {json.dumps(entry)}" for entry in content["results"]]
    rest = {key: value for key, value in content.items() if key != "results"}
    head = json.dumps(rest, indent=1)[:-2]
    text = head + ',\n "results": [\n' + ",\n".join(lines) + "\n ]\n}\n"
    path.write_text(text, encoding="utf-8")
    return path


def mean_curve(curves: Sequence[Mapping[str, Sequence[float | None]]]) -> list[list[float]]:
    """Mean loss over seeds at up to `POINTS` times, until the first seed ended: [[s, loss], ...].

    A seed whose loss was no number (it diverged) ends the curve there.
    """
    length = min(len(curve["time_s"]) for curve in curves)
    for curve in curves:
        losses = curve["loss"][:length]
        length = losses.index(None) if None in losses else length
    chosen = sorted({round(index) for index in _spread(length)})
    return [
        [
            _rounded(curves[0]["time_s"][index]),
            _rounded(math.fsum(curve["loss"][index] or 0.0 for curve in curves) / len(curves)),
        ]
        for index in chosen
    ]


def models(curve: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Each model that a run's server has had, by when it was first evaluated: of (j) one per cycle.

    A model that does not change is not evaluated again: where the loss is the same, so is the model.
    """
    rows = zip(curve["loss"], curve["time_s"], curve["value"], strict=True)
    first = [next(group) for _, group in itertools.groupby(rows, key=lambda row: row[0])]
    return {"time_s": [row[1] for row in first], "value": [_rounded(row[2]) for row in first]}


def _spread(length: int) -> Iterable[float]:
    if length <= POINTS:
        return range(length)
    return (index * (length - 1) / (POINTS - 1) for index in range(POINTS))


def _last_interval(run: Mapping[str, Any]) -> float | None:
    """Seconds between commits that a model with a rate ended with."""
    return run["rates"][-1]["interval_s"] if run["rates"] else None


def _rounded(value: Any) -> Any:
    """To a few significant digits: files stay small, and no figure is better than that."""
    if isinstance(value, bool) or not isinstance(value, (int, float, list, tuple)):
        return value
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if isinstance(value, int) or not value:
        return value
    return float(f"{value:.{ROUNDED}g}")
