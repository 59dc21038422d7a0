"""The one form of all benchmarks: bars, a table, what it was measured on, a JSON file, an exit code.

Timings are compared as ratios within one run of a benchmark, because machines differ
and are noisy. Learning curves are compared over paired seeds: a ratio of means with a
bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORK = HERE / "work"
SEEDS = 5
console = Console(width=None if sys.stdout.isatty() else 110)


@dataclass(frozen=True)
class Bar:
    """Something that must hold: `value` at most (or, with `at_least`, at least) `limit`."""

    name: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def ok(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def progress(text: str) -> None:
    """One line, with the time, so that a log of a long run can be read."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def arguments(name: str, about: str | None) -> argparse.ArgumentParser:
    """What the benchmarks in virtual time have in common on their command line."""
    parser = argparse.ArgumentParser(prog=f"make bench NAME={name}", description=about)
    parser.add_argument("--seeds", type=_whole, default=SEEDS, help="paired seeds to measure with")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted benchmark left")
    parser.add_argument("--workers", type=_whole, help="processes; default: this machine's cores")
    return parser


def _whole(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def measured_on() -> dict[str, Any]:
    """The machine and the versions behind the figures."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return {
        "date": date.today().isoformat(),
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("offbeat", "torch", "grpcio", "protobuf", "numpy")},
        "commit": commit(),
    }


def commit() -> str:
    """What is measured: the commit, and whether anything but results and documents was changed since."""
    name, kept = _git("rev-parse", "--short", "HEAD"), RESULTS.relative_to(HERE.parent)
    changed = _git("status", "-uno", "--porcelain", "--", ":/", ":!/docs", ":!/*.md", f":!/{kept}")
    return f"{name}-dirty" if name and changed else name or "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def ratio_of_means(
    ours: Sequence[float], theirs: Sequence[float], *, draws: int = 4000, level: float = 0.95
) -> tuple[float, float, float]:
    """mean(ours) / mean(theirs) over paired seeds, with its bootstrap interval (low, high)."""
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    if a.shape != b.shape:
        raise ValueError(f"paired seeds: {a.size} against {b.size} values")
    picks = np.random.default_rng(0).integers(0, a.size, (draws, a.size))
    ratios = a[picks].mean(axis=1) / b[picks].mean(axis=1)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(a.mean() / b.mean()), float(low), float(high)


def geometric_mean(values: Sequence[float]) -> float:
    """Of values above 0: the mean that treats 1/2 and 2 alike."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def crossing(
    points: Sequence[tuple[float, float]], target: float, *, every_s: float, smooth: int = 10
) -> float | None:
    """When the mean of the last `smooth` evaluations, one each `every_s`, first is at most `target`.

    A model that did not change is not evaluated again, so between two points (seconds, loss) the
    earlier loss holds: without this, ten evaluations of a model that changes every 3 s would
    reach back 30 s. None if it was never crossed.
    """
    times = np.array([time for time, _ in points])
    losses = np.array([loss for _, loss in points])
    ticks = np.arange(times[0], times[-1] + every_s, every_s)
    values = losses[np.searchsorted(times, ticks, side="right") - 1]
    for end in range(smooth, len(values) + 1):
        if values[end - smooth : end].mean() <= target:
            return float(ticks[end - 1])
    return None


def finish(
    name: str, bars: Sequence[Bar], rows: Sequence[dict[str, Any]], *, is_default: bool = True, **more: Any
) -> int:
    """Print the table and the bars, write benchmarks/results/NAME.json, and return the exit code.

    A form of the benchmark that is not the default one (fewer seeds, quicker) is written to
    benchmarks/work instead: it must not pass for the result.
    """
    where = measured_on()
    if rows:
        table = Table(title=name)
        for column in rows[0]:
            table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
        for row in rows:
            table.add_row(
                *(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values())
            )
        console.print(table)
    for bar in bars:
        sign = "≥" if bar.at_least else "≤"
        console.print(f"{'ok    ' if bar.ok else 'MISSED'} {bar.name}: {bar.value:.3f} {sign} {bar.limit:g}")
    console.print(
        f"measured on {where['processor']}, {where['cores']} cores, {where['system']}, "
        f"Python {where['python']}, torch {where['torch']}, grpcio {where['grpcio']}, at {where['commit']}",
        highlight=False,
    )
    folder = RESULTS if is_default else WORK
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    content = {
        "bars": [{**asdict(bar), "ok": bar.ok} for bar in bars],
        "rows": list(rows),
        **more,
        "measured_on": where,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(f"written to {path.relative_to(HERE.parent)}")
    return 0 if all(bar.ok for bar in bars) else 1


def demo(arguments: Sequence[str], *, timeout_s: float) -> dict[str, Any]:
    """Run `offbeat demo ... --json` and return its JSON; whatever it says goes to a log on failure."""
    command = [sys.executable, "-m", "offbeat_cli.main", "demo", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result: dict[str, Any] = json.loads(lines[-1])
    return result
