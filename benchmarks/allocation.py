"""What solving an allocation costs: thousands of learners by the exact rules, on one core.

By the command, `offbeat plan INSTANCE.json --json`, whose `solve_s` is the time without reading the file. Of
several runs of the command the quickest counts: whatever else a machine does only adds to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Bar
from offbeat_core.errors import ExitCode

NAME = "allocation"
ABOUT = "solving for 10,000 and 100,000 learners, and for 1,000 by the full-cycle rule, on one core"

RUNS = 3
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


@dataclass(frozen=True)
class Load:
    """Learners of one fleet, a cycle, a rule, and the seconds that solving may take."""

    learners: int
    fleet: str
    cycle_s: float
    integer: str
    limit_s: float


@dataclass(frozen=True)
class Fleet:
    """Samples for each learner on average, and bounds in shares of that; two speeds, or each has its own."""

    samples_each: int
    at_least: float
    at_most: float
    two_kinds: bool = False


FLEETS = {
    "mixed": Fleet(3000, 0.2, 3.0),
    "narrow bounds": Fleet(3000, 0.5, 1.5),
    "few samples": Fleet(30, 0.2, 3.0),
    "two kinds": Fleet(3000, 0.2, 3.0, two_kinds=True),
}
LOADS = tuple(
    Load(learners, fleet, cycle_s, integer, limit_s)
    for learners, integer, limit_s, fleets in (
        (10_000, "maximal", 0.1, tuple(FLEETS)),
        (100_000, "maximal", 1.0, tuple(FLEETS)),
        (1000, "full-cycle", 3.0, ("mixed", "two kinds")),
    )
    for fleet in fleets
    for cycle_s in (7.5, 30.0)
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"make bench NAME={NAME}", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the learners, once")
    options = parser.parse_args(argv)
    rows, bars = [], []
    for load in LOADS:
        learners = load.learners // 100 if options.quick else load.learners
        answer = solve(
            instance(learners, FLEETS[load.fleet], load.cycle_s), load.integer, 1 if options.quick else RUNS
        )
        rows.append(row(load, learners, answer))
        harness.progress(f"{load.integer}, {learners} learners: z = {answer['max_staleness']}")
        name = f"{load.integer}, {learners:,} learners, {load.fleet}, T = {load.cycle_s:g} s"
        bars.append(Bar(f"{name}, z = {answer['max_staleness']}: seconds", answer["solve_s"], load.limit_s))
    return harness.finish(NAME, bars, rows, is_default=not options.quick)


def instance(learners: int, fleet: Fleet, cycle_s: float) -> dict[str, Any]:
    """As a user's file. Each learner has its own speed and link; or half of them are at 2.4 GHz and half
    at 700 MHz, as in the published setting. Samples take the longer the fewer there are."""
    share = fleet.samples_each
    bounds = {"min_samples": round(share * fleet.at_least), "max_samples": round(share * fleet.at_most)}
    if fleet.two_kinds:
        members = [
            {
                "name": name,
                "count": learners // 2,
                "compute_s_per_sample_update": seconds * 3000 / share,
                "transfer_s_per_sample": 3.1615e-5,
                "fixed_s": 0.09047,
                **bounds,
            }
            for name, seconds in (("fast", 4.682233e-4), ("slow", 1.605337e-3))
        ]
    else:
        rng = np.random.default_rng(0)
        members = [
            {
                "name": f"learner-{k}",
                "compute_s_per_sample_update": float(2e-4 * 20 ** rng.random()) * 3000 / share,
                "transfer_s_per_sample": float(rng.uniform(1e-5, 5e-5)),
                "fixed_s": float(rng.uniform(0.05, 0.1)),
                **bounds,
            }
            for k in range(learners)
        ]
    return {"mode": "parallelized", "cycle_s": cycle_s, "samples": share * learners, "learners": members}


def solve(content: dict[str, Any], integer: str, runs: int) -> dict[str, Any]:
    """What the quickest of several runs of the command answers. Raises RuntimeError if one fails."""
    with tempfile.TemporaryDirectory(prefix="offbeat-allocation-") as folder:
        path = Path(folder) / "instance.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "offbeat_cli.main",
            "plan",
            str(path),
            "--integer",
            integer,
            "--json",
        ]
        answers = []
        for _ in range(runs):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, **ONE_THREAD}
            )
            if done.returncode != ExitCode.DONE:
                raise RuntimeError(
                    f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
                )
            answers.append(json.loads(done.stdout))
    return min(answers, key=lambda answer: float(answer["solve_s"]))


def row(load: Load, learners: int, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "rule": load.integer,
        "learners": learners,
        "fleet": load.fleet,
        "T s": load.cycle_s,
        "z": answer["max_staleness"],
        "least tau": min(answer["tau"]),
        "updates": answer["updates_total"],
        "idle": answer["idle_share"],
        "solve s": answer["solve_s"],
    }
