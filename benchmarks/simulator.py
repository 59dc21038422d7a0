"""What a simulation costs: the time of the 18-device comparison, and the memory of 500 devices.

Both by the command, `offbeat simulate SCENARIO --json`, as a user runs it: wall seconds from its start to its
end, and the largest sum of its processes' memory. Shared pages count once (PSS) where the system tells.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks import harness, virtual
from benchmarks.harness import Bar

NAME = "simulator"
ABOUT = "the simulator's cost: 18 devices under 5 models in minutes, 500 devices in gigabytes"

LIMIT_S = 180.0
LIMIT_GIB = 4.0
LOOK_EVERY_S = 0.5

COMPARISON: dict[str, Any] = {
    "name": "18-devices",
    "task": "fashion-mnist",
    "devices": virtual.fleet(commit_s=0.3),
    "training": {"batch": 32, "lr": 0.05},
    "check_period_s": 20,
    "target": {"loss": 0.45, "smooth": 10},
    "limit_s": 1500,
    "evaluate_every_s": 1,
    "seeds": 1,
    "overlap": True,
    "compare": ["bsp", {"ssp": {"staleness": 3}}, "asp", {"fixed-adacomm": {"tau": 8}}, "adsp"],
}
"""The issue's example: nothing is left out to make it cheap."""

CROWD: dict[str, Any] = {
    "name": "500-devices",
    # 784 x 126 + 126 + 126 x 10 + 10 = 100,180 parameters
    "task": {"name": "fashion-mnist", "options": {"hidden": 126}},
    "devices": [
        {**group, "count": count} for group, count in zip(virtual.fleet(0.3), (139, 167, 194), strict=True)
    ],
    "training": {"batch": 32, "lr": 0.05, "momentum": 0.9},
    "check_period_s": 20,
    "target": {"loss": 0.01, "smooth": 10},
    "limit_s": 40,
    "evaluate_every_s": 2,
    "seeds": 1,
    "overlap": True,
    "compare": ["adsp", {"fixed-adacomm": {"tau": 8}}],
}
"""Momentum, overlap and two models at a time: each device has its own vectors, twice."""


@dataclass(frozen=True)
class Cost:
    """Of one command."""

    seconds: float
    gib: float
    results: list[dict[str, Any]]


def main(argv: list[str]) -> int:
    parser = harness.arguments(NAME, __doc__)
    parser.add_argument("--quick", action="store_true", help="the same devices for a few virtual seconds")
    options = parser.parse_args(argv)
    shorter = {"limit_s": 12} if options.quick else {}
    harness.progress("18 devices, 5 models")
    comparison = measure({**COMPARISON, **shorter})
    harness.progress(f"  {comparison.seconds:.0f} s; 500 devices")
    crowd = measure(
        {**CROWD, **shorter, **({"target": {"loss": 0.01, "smooth": 5}} if options.quick else {})}
    )
    return harness.finish(
        NAME,
        [
            Bar("18 devices under 5 models, seconds", comparison.seconds, LIMIT_S),
            Bar("500 devices of a model of 100,180 parameters, GiB", crowd.gib, LIMIT_GIB),
        ],
        [_row(COMPARISON, comparison), _row(CROWD, crowd)],
        is_default=not options.quick,
        scenarios=[COMPARISON, CROWD],
    )


def measure(scenario: Mapping[str, Any]) -> Cost:
    """Run a scenario by the command. Raises RuntimeError with its last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="offbeat-simulator-") as name:
        folder = Path(name)
        path = folder / f"{scenario['name']}.yaml"
        path.write_text(yaml.safe_dump(dict(scenario), sort_keys=False), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "offbeat_cli.main",
            "simulate",
            str(path),
            "--json",
            "--out",
            str(folder / "out"),
        ]
        began = time.monotonic()
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            child = subprocess.Popen(command, stdout=out, stderr=errors)
            with Peak(child.pid) as peak:
                code = child.wait()
        seconds = time.monotonic() - began
        if code not in (0, 3):
            raise RuntimeError(
                f"{' '.join(command)} ended with {code}:\n{(folder / 'stderr').read_text()[-3000:]}"
            )
        last = (folder / "stdout").read_text().strip().splitlines()[-1]
        return Cost(seconds, peak.bytes / 2**30, json.loads(last)["results"])


class Peak:
    """The largest sum of the memory of a process and all its children, looked at all the time."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [self._process, *self._process.children(recursive=True)]
                self.bytes = max(self.bytes, sum(map(memory, family)))
            if self._stop.wait(LOOK_EVERY_S):
                return


def memory(process: psutil.Process) -> int:
    """Bytes: what is shared with others counts in part, where the system tells (Linux); 0 if it has ended."""
    try:
        if hasattr(full := process.memory_full_info(), "pss"):
            return int(full.pss)
        return int(full.rss)
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        return int(process.memory_info().rss)


def _row(scenario: Mapping[str, Any], cost: Cost) -> dict[str, Any]:
    steps = sum(result["steps"] for result in cost.results)
    return {
        "scenario": str(scenario["name"]),
        "models": len(cost.results),
        "wall s": cost.seconds,
        "peak GiB": cost.gib,
        "local updates": round(steps),
        "updates per s": round(steps / cost.seconds),
    }
