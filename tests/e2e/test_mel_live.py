"""Mobile edge learning with real processes: cycles that all learners fill, also when one slows down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from support.data_sets import handed
from support.fleet import Fleet, Phase, of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

T = 3.0
BATCH = 8
SLOWEST_S = 0.08
SPEEDS = {"worker-1": 1, "worker-2": 1, "worker-3": 2, "worker-4": 4}
SLOWS = "worker-3"
SAMPLES = 1000
"""In the hub's data set."""
MEASURED = 3
"""Cycles until which the plan may still be learning."""


def _started(folder: Path, **server: Any) -> Iterator[Fleet]:
    with Fleet(folder, report_every_s=0.1) as fleet:
        fleet.start_scheduler()
        fleet.start_server(**server)
        for shard, (name, speed) in enumerate(SPEEDS.items()):
            path = folder / f"{name}.pace"
            path.write_text(str(SLOWEST_S / speed))
            fleet.start_worker(
                name,
                shard=shard,
                shards=len(SPEEDS),
                step_seconds=SLOWEST_S / speed,
                step_seconds_file=path,
            )
        yield fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    yield from _started(tmp_path)


@pytest.fixture
def hub_with_data(tmp_path: Path) -> Iterator[Fleet]:
    yield from _started(tmp_path, samples=handed(tmp_path, SAMPLES))


class Cycle:
    """One round, as the log shows it.

    Attributes:
        plan: its first one.
        seconds: from its plan to the next one's.
        busy: seconds of local updates by learner, as the learners reported them last before each plan.
        samples: trained on in the commits that came meanwhile, by learner.
    """

    def __init__(self, at_s: float, plan: dict[str, Any]) -> None:
        self.at_s, self.plan = at_s, plan
        self.seconds = 0.0
        self.busy: dict[str, float] = {}
        self.samples: dict[str, int] = {}

    @property
    def passes(self) -> dict[str, int]:
        return {name: trigger["Passes"]["passes"] for name, trigger in self.plan["triggers"].items()}


def _cycles(lines: list[dict[str, Any]]) -> list[Cycle]:
    """All that were followed by another."""
    cycles: list[Cycle] = []
    trained: dict[str, float] = {}
    committed: dict[str, int] = {}
    before: tuple[dict[str, float], dict[str, int]] = ({}, {})
    for line in lines:
        report = line.get("report", {})
        if line.get("event") == "WorkerReported" and (time := report.get("time")):
            trained[line["name"]] = time.get("compute_s", 0.0) + time.get("paced_s", 0.0)
        elif line.get("event") == "ServerReported":
            for count in report.get("counts", ()):
                committed[count["worker"]] = count.get("samples", 0)
        elif line.get("decision") == "PlanMade":
            if cycles and cycles[-1].plan["round"] == line["plan"]["round"]:
                continue
            if cycles:
                last = cycles[-1]
                last.seconds = line["t"] - last.at_s
                last.busy = {name: s - before[0].get(name, 0.0) for name, s in trained.items()}
                last.samples = {name: n - before[1].get(name, 0) for name, n in committed.items()}
            before = (dict(trained), dict(committed))
            cycles.append(Cycle(line["t"], line["plan"]))
    return cycles[:-1]


def _log(fleet: Fleet, run_id: str) -> list[dict[str, Any]]:
    path = fleet.folder / "scheduler" / run_id / "events.jsonl"
    with path.open(encoding="utf-8") as lines:
        for step in replay(lines, partial(make_model)):
            assert step.recorded == step.replayed, step.event
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_learners_fill_the_cycle_and_the_plan_follows_one_that_slows_down(fleet: Fleet) -> None:
    run_id = fleet.submit(
        workers=len(SPEEDS),
        task="digits",
        sync={"mel-async": {"cycle_s": T}},
        training={"batch": BATCH, "learning_rate": 0.05},
        limits={"seconds": 13 * T},
    )
    fleet.until(lambda s: s.run_id == run_id and s.elapsed_s > 7.5 * T, "half the run", 120)
    (fleet.folder / f"{SLOWS}.pace").write_text(str(2 * SLOWEST_S / SPEEDS[SLOWS]))
    status = fleet.until(lambda s: s.run_id == run_id and s.phase == Phase.IDLE, "the run ends", 120)
    assert status.outcome == pb.Status.LIMIT, status.message
    lines = _log(fleet, run_id)
    cycles = _cycles(lines)
    solved_s = [line["solve_s"] for line in lines if "solve_s" in line]
    assert len(solved_s) >= len(cycles) - 1, "each allotted cycle says how long its allocation took"
    assert max(solved_s) == pytest.approx(status.allotment.max_solve_s)
    assert all(worker.local_updates >= 1 for worker in status.workers)
    slowed = next(k for k, cycle in enumerate(cycles) if cycle.at_s - cycles[0].at_s > 7.5 * T) - 1

    settled = cycles[MEASURED:slowed]
    assert len(settled) >= 3
    for name in SPEEDS:
        # Over some cycles: a report is a tenth of a second old.
        busy_s = sum(cycle.busy[name] for cycle in settled) / len(settled)
        assert busy_s == pytest.approx(T, rel=0.1), (name, [cycle.busy[name] for cycle in settled])
    for cycle in settled:
        tau = cycle.passes.values()
        assert cycle.plan["allotment"]["max_staleness"] == max(tau) - min(tau)
        planned = {name: cycle.passes[name] * d for name, d in cycle.plan["samples"].items()}
        assert cycle.samples == planned, "each committed the passes that it was given, on time"
        assert cycle.seconds < 1.2 * T

    for cycle in cycles[slowed + 3 :]:
        work = cycle.passes[SLOWS] * cycle.plan["samples"][SLOWS]
        assert work * 2 * SLOWEST_S / SPEEDS[SLOWS] / BATCH == pytest.approx(T, rel=0.15)
    assert len(cycles) > slowed + 3


def test_learners_without_data_fill_the_cycle_on_what_they_are_dealt(hub_with_data: Fleet) -> None:
    fleet = hub_with_data
    run_id = fleet.submit(
        workers=len(SPEEDS),
        task="handed",
        sync={"mel-async": {"cycle_s": T, "mode": "parallelized"}},
        training={"batch": BATCH, "learning_rate": 0.1},
        limits={"seconds": 9 * T},
    )
    fleet.until(lambda s: s.run_id == run_id and s.elapsed_s > 6 * T, "most of the run", 120)
    status = fleet.status()
    for name in SPEEDS:
        report = of(status, name).report
        assert report.shard_samples > 0, "those that it was dealt last"
        assert report.fetched_samples > report.shard_samples
        assert report.fetch_s > 0
        assert fleet.log(name).count("Traceback") == 0
    status = fleet.until(lambda s: s.run_id == run_id and s.phase == Phase.IDLE, "the run ends", 120)
    assert status.outcome == pb.Status.LIMIT, status.message
    cycles = _cycles(_log(fleet, run_id))

    settled = cycles[MEASURED:]
    assert len(settled) >= 3
    for cycle in settled:
        assert sum(cycle.plan["samples"].values()) == SAMPLES, "the whole data set is dealt"
        assert cycle.plan["shares"] == cycle.plan["samples"]
        planned = {name: cycle.passes[name] * d for name, d in cycle.plan["samples"].items()}
        assert cycle.samples == planned, "each committed the passes over what it was dealt, on time"
        assert cycle.seconds < 1.2 * T
    for name in SPEEDS:
        busy_s = sum(cycle.busy[name] for cycle in settled) / len(settled)
        assert busy_s == pytest.approx(T, rel=0.1), (name, [cycle.busy[name] for cycle in settled])
    assert not (fleet.folder / "data" / "points.npy").exists()
