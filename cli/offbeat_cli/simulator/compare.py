"""A comparison: every model of a scenario with every seed, on all cores, resumable.

    comparison = compare(Scenario.read(path), folder=Path("out/runs"))
    comparison.to_json()

Runs are independent of each other, so neither the number of processes nor the order in
which they end changes a figure. With a folder each finished run is one file named by what
determines it (`job.key`): an interrupted comparison goes on where it was, and a run that two
scenarios share is made once.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat_cli.simulator import job
from offbeat_cli.simulator.entries import prepare
from offbeat_cli.simulator.pool import Note, run_all
from offbeat_cli.simulator.scenario import Entry, Scenario
from offbeat_core.errors import OffbeatError

DRAWS = 4000
LEVEL = 0.95
MEANS = ("value", "loss", "steps", "commits", "wait_share", "commit_share", "compute_share", "bytes")
KEPT = {*MEANS, "reached", "time_s", "curve", "rates", "devices"}
"""What a kept run must have."""


@dataclass(frozen=True)
class Progress:
    """How far a comparison is. `note`: of the run that has just moved; None: one was found finished."""

    label: str
    seed: int
    finished: int
    total: int
    note: Note | None = None


@dataclass(frozen=True)
class EntryResult:
    """One model of the comparison.

    Args:
        runs: the figures of each seed (`job.figures`), in the order of the scenario's seeds.
    """

    entry: Entry
    model: str
    runs: tuple[dict[str, Any], ...]

    @property
    def label(self) -> str:
        return self.entry.shown

    @property
    def reached(self) -> bool:
        """Did every seed reach the target?"""
        return all(run["reached"] for run in self.runs)

    @property
    def times_s(self) -> list[float]:
        """Per seed; the limit where it was not reached."""
        return [run["time_s"] for run in self.runs]

    @property
    def time_s(self) -> float:
        return self.mean("time_s")

    @property
    def interval_s(self) -> tuple[float, float]:
        """Of the mean time over seeds: 95 %, by bootstrap."""
        times = np.asarray(self.times_s)
        picks = np.random.default_rng(0).integers(0, times.size, (DRAWS, times.size))
        low, high = np.quantile(times[picks].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def mean(self, name: str) -> float:
        """Of one figure over the seeds; nan where it is no number in one of them."""
        values = [run[name] for run in self.runs]
        return math.nan if None in values else math.fsum(values) / len(values)

    def to_json(self) -> dict[str, Any]:
        means = {name: self.mean(name) for name in MEANS}
        return {
            "model": self.model,
            "label": self.label,
            "reached": self.reached,
            "time_s": self.time_s,
            "times_s": self.times_s,
            "interval_s": list(self.interval_s),
            **{name: value if math.isfinite(value) else None for name, value in means.items()},
        }


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
        peak_bytes: the most memory that a process took; 0 if nothing had to be run.
    """

    scenario: Scenario
    results: tuple[EntryResult, ...]
    peak_bytes: int = 0

    @property
    def reached(self) -> bool:
        return all(result.reached for result in self.results)

    def __getitem__(self, label: str) -> EntryResult:
        for result in self.results:
            if result.label == label:
                return result
        raise KeyError(f"{label}; there are: {', '.join(result.label for result in self.results)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "heterogeneity": self.scenario.heterogeneity,
            "results": [result.to_json() for result in self.results],
        }


def compare(
    scenario: Scenario,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Run every entry with every seed.

    Args:
        folder: where finished runs are kept and found again; None: nowhere.
        workers: processes; None: one per core that this process may use. 1: in this process.
        progress: called from this thread as runs go on and end.

    Raises:
        OffbeatError: for what is wrong with models, task, data or folder.
        KeyboardInterrupt: what was finished is kept.
    """
    jobs = [(entry, seed) for seed in scenario.seeds for entry in scenario.compare]
    names = {
        entry.shown: prepare(scenario, entry, scenario.seeds[0]).run.sync.model for entry in scenario.compare
    }
    done: dict[tuple[str, int], dict[str, Any]] = {}
    keys = {(entry.shown, seed): job.key(scenario, entry, seed) for entry, seed in jobs}

    def say(entry: Entry, seed: int, note: Note | None) -> None:
        if progress:
            progress(Progress(entry.shown, seed, len(done), len(jobs), note))

    waiting = []
    if folder is not None:
        _make(folder)
    for entry, seed in jobs:
        at = (entry.shown, seed)
        if folder is not None:
            kept = _read(job.file_of(folder, keys[at]))
            if kept is not None:
                done[at] = kept
                say(entry, seed, None)
                continue
        waiting.append((entry, seed))
    peak = 0

    def take(number: int, note: Note) -> None:
        nonlocal peak
        entry, seed = waiting[number]
        at = (entry.shown, seed)
        if note.figures is not None:
            if job.key(scenario, entry, seed) != keys[at]:
                raise OffbeatError(
                    f"{entry.shown}: the file of its model or of the task was edited meanwhile",
                    "run it again: figures of two versions are no comparison",
                )
            done[at] = note.figures
            peak = max(peak, note.peak_bytes)
            if folder is not None:
                _write(job.file_of(folder, keys[at]), note.figures)
        say(entry, seed, note)

    run_all(scenario, waiting, workers or _cores(), take)
    return Comparison(
        scenario,
        tuple(
            EntryResult(entry, names[entry.shown], tuple(done[entry.shown, seed] for seed in scenario.seeds))
            for entry in scenario.compare
        ),
        peak,
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- kept runs ---------------------------------------------------------------------------


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # said now, and not when the first run has ended
    except OSError as error:
        raise OffbeatError(f"{folder}: {error.strerror}", "name a folder that you may write to") from error


def _read(path: Path) -> dict[str, Any] | None:
    """None if the run was not finished; a file that is broken is as none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.keys() >= KEPT else None


def _write(path: Path, figures: dict[str, Any]) -> None:
    """Under its name only once it is whole."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(dumps(figures) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise OffbeatError(f"{path}: {error.strerror}", "make room there, or name another folder") from error


def dumps(content: Any) -> str:
    """JSON without what is no number."""
    return json.dumps(content, allow_nan=False)
