"""Comparisons in virtual time, for the benchmarks: the fleets, and runs that are kept and shared."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import harness
from benchmarks.tuning import Setting
from offbeat_cli.simulator import devices as step_times
from offbeat_cli.simulator.compare import EntryResult, Progress, compare
from offbeat_cli.simulator.scenario import Scenario

SAY_EVERY_S = 20.0
WORST_LOSS = 10.0
"""What a loss that is no number counts as, where runs are ranked."""


def fleet(commit_s: float) -> list[dict[str, Any]]:
    """18 devices of speeds 1, 3 and 5: H = mean / min = 3.22. The fleet of the source's experiments, as
    reproduced."""
    return _groups((5, 6, 7), commit_s)


def small_fleet(commit_s: float) -> list[dict[str, Any]]:
    """7 devices, the same speeds and about the same mix: H = 3.29."""
    return _groups((2, 2, 3), commit_s)


def _groups(counts: tuple[int, int, int], commit_s: float) -> list[dict[str, Any]]:
    return [
        {"count": count, "step_s": step_s, "commit_s": commit_s, "jitter": 0.1}
        for count, step_s in zip(counts, (1.0, 0.3333, 0.2), strict=True)
    ]


def heterogeneity(devices: Iterable[Mapping[str, Any]]) -> float:
    """H = mean(v) / min(v)."""
    return step_times.heterogeneity([group["step_s"] for group in devices for _ in range(group["count"])])


@dataclass(frozen=True)
class Run:
    """One seed. `time_s`: the limit where the target was not reached. `loss`: the last, smoothed; `lowest`:
    the lowest on the way, so that a target of as much is reached at this run's end or before it."""

    time_s: float
    reached: bool
    loss: float
    lowest: float = math.inf


@dataclass(frozen=True)
class Result:
    """One setting over some seeds; shares are means over seeds and devices."""

    runs: tuple[Run, ...]
    wait_share: float
    commit_share: float
    compute_share: float

    @property
    def times_s(self) -> list[float]:
        return [run.time_s for run in self.runs]

    @property
    def mean_s(self) -> float:
        return sum(self.times_s) / len(self.runs)

    @property
    def reached(self) -> int:
        """So many of the seeds reached the target."""
        return sum(run.reached for run in self.runs)


class Bench:
    """Runs settings under a scenario; what a benchmark that was interrupted had finished is not run again.

    A kept run is found again by everything that determines it, the simulator's code included.

    Args:
        name: of the benchmark.
        fresh: forget what is kept.
        workers: processes; None: one per core.
    """

    def __init__(self, name: str, *, fresh: bool = False, workers: int | None = None) -> None:
        self._folder = harness.WORK / name / "runs"
        self._workers = workers
        if fresh:
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self, values: Mapping[str, Any], settings: Sequence[Setting], seeds: Sequence[int]
    ) -> dict[Setting, Result]:
        """Each setting over the seeds, paired. Raises OffbeatError for a scenario that makes no sense."""
        by_label = {setting.label: setting for setting in dict.fromkeys(settings)}
        scenario = Scenario.make(
            {
                **values,
                "seeds": list(seeds),
                "overlap": False,
                "compare": [_entry(setting) for setting in by_label.values()],
            },
            str(values["name"]),
        )
        comparison = compare(scenario, folder=self._folder, workers=self._workers, progress=_Progress())
        return {by_label[entry.label]: _result(entry, scenario.target.smooth) for entry in comparison.results}

    def scores(
        self, values: Mapping[str, Any], settings: Sequence[Setting], seeds: Sequence[int]
    ) -> dict[Setting, list[float]]:
        """Per seed, less is better: the time; without the target more than the limit, by the last loss."""
        limit_s = float(values["limit_s"])
        return {
            setting: [
                run.time_s if run.reached else limit_s * (1 + min(run.loss, WORST_LOSS))
                for run in result.runs
            ]
            for setting, result in self.run(values, settings, seeds).items()
        }


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._made = 0

    def __call__(self, at: Progress) -> None:
        now = time.monotonic()
        self._made += at.note is not None and at.note.figures is not None
        if self._made and (at.finished == at.total or now - self._said >= SAY_EVERY_S):
            self._said = now
            harness.progress(
                f"  {at.finished} of {at.total} runs, {now - self._began:.0f} s for {self._made}"
            )


def _entry(setting: Setting) -> dict[str, Any]:
    entry = {"sync": json.loads(setting.sync), "label": setting.label, "training": {"lr": setting.lr}}
    return {**entry, "overlap": True} if setting.overlap else entry


def _result(entry: EntryResult, smooth: int) -> Result:
    runs = [
        Run(
            run["time_s"],
            run["reached"],
            math.inf if run["loss"] is None else run["loss"],
            _lowest(run["curve"]["loss"], smooth),
        )
        for run in entry.runs
    ]
    return Result(tuple(runs), *(entry.mean(f"{share}_share") for share in ("wait", "commit", "compute")))


def _lowest(losses: Sequence[float | None], smooth: int) -> float:
    """The lowest mean of `smooth` losses in a row; infinite where there is none."""
    windows = (losses[end - smooth : end] for end in range(smooth, len(losses) + 1))
    means = [math.fsum(window) / smooth for window in windows if None not in window]  # type: ignore[arg-type]
    return min(means, default=math.inf)
