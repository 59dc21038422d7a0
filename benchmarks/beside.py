"""Does a fast device keep its own speed beside slow ones?

One unpaced worker trains under ADSP, alone and beside two workers four times slower, in
turn: the slow ones join and leave one and the same run. Its steps are counted from
outside, by a clock of the benchmark's, through a counter that the task keeps in a shared
file. The fast worker is pinned to one core, everything else to another.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Bar
from offbeat_cli.processes import Child, Children

NAME = "beside"
ABOUT = "steps per second of the fastest device, alone and beside slower ones"
LIMIT = 0.9

RUN = """\
name: beside
task: {{name: counting_task, options: {{counter_folder: "{folder}"}}}}
workers: 1
sync: adsp
check_period_s: 4
training: {{batch: 64, learning_rate: 0.01}}
evaluate: {{required: false}}
limits: {{seconds: 3600}}
"""


def measure(
    rounds: int = 3,
    window_s: float = 8.0,
    say: Callable[[str], None] = harness.progress,
    at_most: int | None = None,
) -> dict[str, float]:
    """Steps per second alone and beside, and their ratio: medians over `rounds` windows of each in turn.

    Windows of a machine that others use too differ by a quarter. While the ratio of all so far
    is below `LIMIT` more are taken, up to `at_most`: the more there are, the less chance decides.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the fast worker, one for all else")
    alone: list[float] = []
    beside: list[float] = []
    with tempfile.TemporaryDirectory(prefix="offbeat-beside-") as name:
        folder = Path(name)
        with Children(folder / "logs") as children:
            fleet = _Fleet(children, folder, fast_core=cores[0], other_core=cores[1])
            fleet.start_hub()
            fleet.start_fast()
            fleet.rate(window_s)  # the first window warms up, and tells how slow the slow ones are
            slow_step_s = 4 / fleet.rate(window_s)
            alone.append(fleet.rate(window_s))
            while len(beside) < rounds or (_ratio(alone, beside) < LIMIT and len(beside) < (at_most or 0)):
                fleet.start_slow(slow_step_s)
                beside.append(fleet.rate(window_s))
                fleet.stop_slow()
                alone.append(fleet.rate(window_s))
                say(f"round {len(beside)}: alone {alone[-1]:.1f}, beside {beside[-1]:.1f} steps/s")
    return {
        "alone": statistics.median(alone),
        "beside": statistics.median(beside),
        "ratio": _ratio(alone, beside),
    }


def _ratio(alone: list[float], beside: list[float]) -> float:
    """Each window beside against those alone before and after it, and the median of that: a machine that
    drifts, or is disturbed in one round, does not decide."""
    pairs = zip(alone, beside, alone[1:], strict=False)
    return statistics.median(2 * rate / (before + after) for before, rate, after in pairs)


class _Fleet:
    """Hub, one fast worker and, now and then, two slow ones, each pinned to its core."""

    def __init__(self, children: Children, folder: Path, *, fast_core: int, other_core: int) -> None:
        self._children = children
        self._folder = folder
        self._fast_core = fast_core
        self._other_core = other_core
        self._slow: list[Child] = []

    def _start(self, core: int, child: str, module: str, **options: object) -> Child:
        """Children inherit the affinity of the thread that starts them."""
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            return self._children.start_module(child, module, options)
        finally:
            os.sched_setaffinity(0, mine)

    def start_hub(self) -> None:
        run = self._folder / "run.yaml"
        run.write_text(RUN.format(folder=self._folder), encoding="utf-8")
        scheduler = self._start(
            self._other_core,
            "scheduler",
            "offbeat_scheduler.main",
            listen="127.0.0.1:0",
            metrics_listen="",
            folder=self._folder / "scheduler",
            run=run,
            lease_s=4,
        )
        self._scheduler = f"127.0.0.1:{self._children.wait_ready(scheduler)['port']}"
        server = self._start(
            self._other_core,
            "parameter-server",
            "offbeat_ps.main",
            listen="127.0.0.1:0",
            metrics_listen="",
            folder=self._folder / "ps",
            scheduler=self._scheduler,
        )
        self._server = f"127.0.0.1:{self._children.wait_ready(server)['port']}"

    def _worker(self, core: int, name: str, shard: int, step_seconds: float) -> Child:
        return self._start(
            core,
            name,
            "offbeat_worker.main",
            name=name,
            scheduler=self._scheduler,
            parameter_server=self._server,
            shard=shard,
            shards=3,
            tasks=[Path(__file__).with_name("counting_task.py")],
            device="cpu",
            step_seconds=step_seconds,
        )

    def start_fast(self) -> None:
        self._worker(self._fast_core, "fast", 0, 0.0)
        self._wait_until_counting([0])

    def start_slow(self, step_seconds: float) -> None:
        for path in (self._counter(1), self._counter(2)):
            path.unlink(missing_ok=True)
        self._slow = [
            self._worker(self._other_core, f"slow-{shard}", shard, step_seconds) for shard in (1, 2)
        ]
        self._wait_until_counting([1, 2])

    def stop_slow(self) -> None:
        for child in self._slow:
            child.may_end = True
            child.process.send_signal(signal.SIGTERM)
        for child in self._slow:
            child.process.wait(20)

    def _counter(self, shard: int) -> Path:
        return self._folder / f"shard-{shard}"

    def _count(self, shard: int) -> int:
        content = self._counter(shard).read_bytes() if self._counter(shard).exists() else b""
        return int(struct.unpack("<q", content)[0]) if len(content) == 8 else 0

    def _wait_until_counting(self, shards: list[int], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not all(self._count(shard) > 3 for shard in shards):
            self._children.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no steps of shards {shards} within {timeout_s:g} s")
            time.sleep(0.05)

    def rate(self, window_s: float) -> float:
        """Steps per wall second of the fast worker, over one window."""
        began, first = time.monotonic(), self._count(0)
        time.sleep(window_s)
        self._children.check()
        return (self._count(0) - first) / (time.monotonic() - began)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=beside", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--window", type=float, default=10.0, help="seconds")
    options = parser.parse_args(argv)
    found = measure(options.rounds, options.window)
    return harness.finish(
        NAME,
        [Bar("steps per second beside slow devices, of those alone", found["ratio"], LIMIT, at_least=True)],
        [{"alone, steps/s": found["alone"], "beside, steps/s": found["beside"], "ratio": found["ratio"]}],
    )
