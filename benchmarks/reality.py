"""The simulator against reality: the same small scenario live and in virtual time, side by side.

Live: three workers as real processes with emulated step times (`offbeat demo`), real gRPC, a link that
delays each commit. Virtual: the same task, seeds, devices and times given to the simulator. Besides,
each live run's event log is fed to fresh decision objects, which must decide the very same.

Measure: seconds until the mean of the last 10 evaluations crosses a loss that falls steeply there, a ratio
of means over paired seeds (the same initial model and order of data); and the shares of the
devices' time. A commit's travel and waiting for others are one share here: a device can't tell them apart.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar
from offbeat_cli.simulator.compare import compare
from offbeat_cli.simulator.replaying import replayed
from offbeat_cli.simulator.scenario import Scenario

NAME = "reality"
ABOUT = "the same scenario live and simulated: times, shares, and decisions replayed"

SYNCS: dict[str, Any] = {"adsp": "adsp", "fixed-adacomm:4": {"fixed-adacomm": {"tau": 4}}, "asp": "asp"}
TIME_OFF = 0.15
SHARE_OFF = 0.05

TASK = "digits"
SPEEDS = (1, 3, 3)
BATCH = 32
LEARNING_RATE = 0.1
SLOW_STEP_S = 0.2
DELAY_S = 0.06
CHECK_PERIOD_S = 4.0
TARGET_LOSS = 0.5
STOP_LOSS = 0.85 * TARGET_LOSS  # a run goes on until the smoothed loss has surely crossed the target
EVERY_S = 0.2
REPORT_EVERY_S = 0.5
MAX_SECONDS = 150
REPEATS = 3


@dataclass(frozen=True)
class Seen:
    """One run, live or virtual. Shares by device, in the order of SPEEDS."""

    crossed_s: float
    computes: tuple[float, ...]
    held: tuple[float, ...]
    waits: tuple[float, ...]
    steps: int
    commits: int

    @property
    def shares(self) -> list[tuple[str, float]]:
        return [
            (f"worker-{number} {name}", value)
            for name, values in (("computes", self.computes), ("commits or waits", self.rest))
            for number, value in enumerate(values, 1)
        ]

    @property
    def rest(self) -> tuple[float, ...]:
        return tuple(held + waits for held, waits in zip(self.held, self.waits, strict=True))


def main(argv: list[str]) -> int:
    parser = harness.arguments(NAME, __doc__)
    parser.set_defaults(seeds=REPEATS)
    options = parser.parse_args(argv)
    seeds = range(1, options.seeds + 1)
    folder = harness.WORK / NAME
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    simulated = virtual_runs(seeds, folder / "runs", options.workers)
    lived: dict[str, list[Seen]] = {sync: [] for sync in SYNCS}
    decisions: dict[str, list[tuple[int, int]]] = {sync: [] for sync in SYNCS}
    # Seeds outside, models inside: a machine that slows down meanwhile slows all alike.
    for seed in seeds:
        for sync in SYNCS:
            harness.progress(f"{sync}, seed {seed}: virtual {simulated[sync][seed - 1].crossed_s:.1f} s")
            seen, out = live_run(sync, seed, folder / harness.commit())
            lived[sync].append(seen)
            decisions[sync].append(replayed(out / "events.jsonl"))
            harness.progress(f"  live {seen.crossed_s:.1f} s")
    return harness.finish(
        NAME,
        bars(lived, simulated, decisions),
        rows(lived, simulated),
        is_default=options.seeds == REPEATS,
        runs={
            sync: {
                "live_s": [seen.crossed_s for seen in lived[sync]],
                "virtual_s": [seen.crossed_s for seen in simulated[sync]],
                "shares": shares(lived[sync], simulated[sync]),
                "events_replayed": [total for total, _ in decisions[sync]],
            }
            for sync in SYNCS
        },
        setting={
            "task": TASK,
            "speeds": list(SPEEDS),
            "batch": BATCH,
            "learning_rate": LEARNING_RATE,
            "slow_step_s": SLOW_STEP_S,
            "commit_delay_s": DELAY_S,
            "check_period_s": CHECK_PERIOD_S,
            "target_loss": TARGET_LOSS,
            "smooth": 10,
            "seeds": list(seeds),
        },
    )


def bars(
    lived: Mapping[str, Sequence[Seen]],
    simulated: Mapping[str, Sequence[Seen]],
    decisions: Mapping[str, Sequence[tuple[int, int]]],
) -> list[Bar]:
    found = []
    for sync in lived:
        ratio, _, _ = ratio_of_times(lived[sync], simulated[sync])
        found.append(Bar(f"{sync}: live time over virtual time, off 1 by", abs(ratio - 1), TIME_OFF))
        widest = max(shares(lived[sync], simulated[sync]), key=lambda row: row["off"])
        found.append(
            Bar(f"{sync}: largest difference of a share ({widest['share']})", widest["off"], SHARE_OFF)
        )
    every = [pair for pairs in decisions.values() for pair in pairs]
    found.append(
        Bar("events of the live runs replayed, at least", min(total for total, _ in every), 10, at_least=True)
    )
    found.append(Bar("events after which the replay decides otherwise", sum(other for _, other in every), 0))
    return found


def ratio_of_times(lived: Sequence[Seen], simulated: Sequence[Seen]) -> tuple[float, float, float]:
    """Live over virtual, with its interval."""
    return harness.ratio_of_means([seen.crossed_s for seen in lived], [seen.crossed_s for seen in simulated])


def shares(lived: Sequence[Seen], simulated: Sequence[Seen]) -> list[dict[str, Any]]:
    """Each share of each device: means over the seeds, and how far they are apart."""
    found = []
    for row in range(len(lived[0].shares)):
        live, virtual = (
            sum(seen.shares[row][1] for seen in seen_) / len(seen_) for seen_ in (lived, simulated)
        )
        name = lived[0].shares[row][0]
        found.append({"share": name, "live": live, "virtual": virtual, "off": abs(live - virtual)})
    return found


def rows(
    lived: Mapping[str, Sequence[Seen]], simulated: Mapping[str, Sequence[Seen]]
) -> list[dict[str, Any]]:
    found = []
    for sync in lived:
        ratio, low, high = ratio_of_times(lived[sync], simulated[sync])
        for name, runs in (("live", lived[sync]), ("virtual", simulated[sync])):
            found.append(
                {
                    "sync": sync,
                    "": name,
                    "mean s": _mean([seen.crossed_s for seen in runs]),
                    "live / virtual": f"{ratio:.3f} [{low:.3f}, {high:.3f}]" if name == "live" else "",
                    "slow computes": _mean([seen.computes[0] for seen in runs]),
                    "fast compute": _mean([_mean(seen.computes[1:]) for seen in runs]),
                    "steps": round(_mean([seen.steps for seen in runs])),
                    "commits": round(_mean([seen.commits for seen in runs])),
                }
            )
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ---- live ----------------------------------------------------------------------


def live_run(sync: str, seed: int, folder: Path) -> tuple[Seen, Path]:
    """The run, and its folder; what an interrupted benchmark of the same commit had finished is kept."""
    out = folder / f"{sync.replace(':', '-')}-{seed}"
    kept = out / "result.json"
    if not kept.exists():
        shutil.rmtree(out, ignore_errors=True)  # of a run that was interrupted
        harness.demo(
            [
                *(
                    "--task",
                    TASK,
                    "--speeds",
                    ",".join(map(str, SPEEDS)),
                    "--sync",
                    sync,
                    "--seed",
                    str(seed),
                ),
                *("--step-seconds", str(SLOW_STEP_S), "--commit-delay", str(DELAY_S)),
                *("--check-period", str(CHECK_PERIOD_S)),
                *("--batch", str(BATCH), "--learning-rate", str(LEARNING_RATE)),
                *("--target-loss", str(STOP_LOSS), "--confirm", "2", "--evaluate-every", str(EVERY_S)),
                *("--max-seconds", str(MAX_SECONDS), "--out", str(out)),
            ],
            timeout_s=MAX_SECONDS + 120,
        )
    result = json.loads(kept.read_text(encoding="utf-8"))
    workers = sorted(result["workers"], key=lambda worker: str(worker["name"]))
    seen = Seen(
        crossed_s=_crossed([(row[0], row[1]) for row in result["evaluations"]], f"{sync}, seed {seed}, live"),
        computes=tuple(worker["compute_share"] + worker["paced_share"] for worker in workers),
        held=tuple(worker["commit_share"] for worker in workers),
        waits=tuple(worker["wait_share"] for worker in workers),
        steps=sum(worker["steps"] for worker in workers),
        commits=sum(worker["commits"] for worker in workers),
    )
    return seen, out


def _crossed(points: Sequence[tuple[float, float]], what: str) -> float:
    crossed = harness.crossing(points, TARGET_LOSS, every_s=EVERY_S)
    if crossed is None:
        raise SystemExit(f"{what}: the loss of {TARGET_LOSS} was not reached within {MAX_SECONDS} s")
    return crossed


# ---- virtual -------------------------------------------------------------------


def scenario(seeds: Sequence[int]) -> dict[str, Any]:
    """The live scenario, as the simulator is told it."""
    return {
        "name": NAME,
        "task": TASK,
        "devices": [
            {"name": f"worker-{number}", "step_s": SLOW_STEP_S * SPEEDS[0] / speed, "commit_s": DELAY_S}
            for number, speed in enumerate(SPEEDS, 1)
        ],
        "training": {"batch": BATCH, "lr": LEARNING_RATE},
        "check_period_s": CHECK_PERIOD_S,
        "target": {"loss": STOP_LOSS, "smooth": 2},
        "limit_s": MAX_SECONDS,
        "evaluate_every_s": EVERY_S,
        "report_every_s": REPORT_EVERY_S,
        "seeds": list(seeds),
        "overlap": False,
        "compare": [
            {"sync": sync, "label": label, **({"overlap": True} if label == "adsp" else {})}
            for label, sync in SYNCS.items()
        ],
    }


def virtual_runs(seeds: Sequence[int], folder: Path, workers: int | None) -> dict[str, list[Seen]]:
    """By model, in the order of the seeds."""
    comparison = compare(Scenario.make(scenario(seeds), NAME), folder=folder, workers=workers)
    return {
        result.label: [_virtual(result.label, run) for run in result.runs] for result in comparison.results
    }


def _virtual(sync: str, run: Mapping[str, Any]) -> Seen:
    devices = sorted(run["devices"], key=lambda device: str(device["name"]))
    points = list(zip(run["curve"]["time_s"], run["curve"]["loss"], strict=True))
    return Seen(
        crossed_s=_crossed(points, f"{sync}, seed {run['seed']}, virtual"),
        computes=tuple(device["compute_share"] for device in devices),
        held=tuple(device["commit_share"] for device in devices),
        waits=tuple(device["wait_share"] for device in devices),
        steps=run["steps"],
        commits=run["commits"],
    )
