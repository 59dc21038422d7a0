"""ADSP against the barrier: time to a loss, on real processes with emulated speeds and a real link delay.

Three workers of speeds 1, 3, 3, a commit delay of 0.3 of the slowest step. The barrier
mechanism (local SGD: everyone makes tau local updates, then waits for the slowest) gets
the best tau of {1, 4, 8, 16}, chosen in hindsight on the means. All variants share task,
learning rate, batch and, per seed, the initial model and the order of data.

Measure: seconds until the mean of the last 10 evaluations crosses a loss, over 5 paired seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar

NAME = "barrier"
ABOUT = "ADSP against a barrier with its best tau: time to a loss, 3 unequal workers, 5 paired seeds"
LIMIT = 0.55

TASK = "digits"
BATCH = 32
LEARNING_RATE = 0.1
SLOW_STEP_S = 0.2
TARGET_LOSS = 0.5
STOP_LOSS = 0.85 * TARGET_LOSS  # a run goes on until the smoothed loss has surely crossed the target
EVERY_S = 0.2
TAUS = (1, 4, 8, 16)
MAX_SECONDS = 150


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench NAME=barrier", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted benchmark left")
    options = parser.parse_args(argv)

    syncs = ["adsp", *(f"local-sgd:{tau}" for tau in TAUS)]
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    # Seeds outside, variants inside: a machine that slows down meanwhile slows all alike.
    for number, (seed, sync) in enumerate(itertools.product(range(1, options.seeds + 1), syncs), 1):
        harness.progress(f"run {number} of {options.seeds * len(syncs)}: {sync}, seed {seed}")
        result = _run(sync, seed, fresh=options.fresh)
        runs[sync, seed] = result
        harness.progress(f"  {_time(result):.1f} s")

    times = {sync: [_time(runs[sync, seed]) for seed in range(1, options.seeds + 1)] for sync in syncs}
    best = min(syncs[1:], key=lambda sync: sum(times[sync]))
    ratio, low, high = harness.ratio_of_means(times["adsp"], times[best])
    rows = []
    for sync in syncs:
        to_this, _, _ = harness.ratio_of_means(times[sync], times["adsp"])
        waits = [
            worker["wait_share"]
            for seed in range(1, options.seeds + 1)
            for worker in runs[sync, seed]["workers"]
        ]
        rows.append(
            {
                "sync": sync,
                "mean s": sum(times[sync]) / len(times[sync]),
                "times s": " ".join(f"{value:.1f}" for value in times[sync]),
                "of ADSP's time": to_this,
                "largest wait share": max(waits),
            }
        )
    return harness.finish(
        NAME,
        [Bar(f"ADSP's time over that of the best barrier ({best})", ratio, LIMIT)],
        rows,
        ratio={"mean": ratio, "interval_95": [low, high]},
        setting={
            "task": TASK,
            "speeds": [1, 3, 3],
            "batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "slow_step_s": SLOW_STEP_S,
            "commit_delay_s": 0.3 * SLOW_STEP_S,
            "target_loss": TARGET_LOSS,
            "smooth": 10,
            "seeds": options.seeds,
        },
    )


def _run(sync: str, seed: int, *, fresh: bool) -> dict[str, Any]:
    """One run's result; an interrupted benchmark of the same commit goes on where it was."""
    folder = harness.WORK / NAME / harness.commit()
    kept = folder / f"{sync.replace(':', '-')}-{seed}.json"
    if kept.exists() and not fresh:
        result: dict[str, Any] = json.loads(kept.read_text())
        return result
    out = folder / f"{sync.replace(':', '-')}-{seed}"
    shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted
    result = harness.demo(
        [
            *("--task", TASK, "--speeds", "1,3,3", "--sync", sync, "--seed", str(seed)),
            *("--step-seconds", str(SLOW_STEP_S), "--commit-delay", str(0.3 * SLOW_STEP_S)),
            *("--batch", str(BATCH), "--learning-rate", str(LEARNING_RATE)),
            *("--target-loss", str(STOP_LOSS), "--confirm", "2", "--evaluate-every", str(EVERY_S)),
            *("--max-seconds", str(MAX_SECONDS), "--out", str(out)),
        ],
        timeout_s=MAX_SECONDS + 120,
    )
    points = [(float(row[0]), float(row[1])) for row in result["evaluations"]]
    crossed = harness.crossing(points, TARGET_LOSS, every_s=EVERY_S)
    if crossed is None:
        raise SystemExit(f"{sync}, seed {seed}: the loss was not reached within {MAX_SECONDS} s; see {out}")
    result["crossed_s"] = crossed
    kept.write_text(json.dumps(result))
    return result


def _time(result: dict[str, Any]) -> float:
    return float(result["crossed_s"])
