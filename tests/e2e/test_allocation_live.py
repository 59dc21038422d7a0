"""ADSP with allocation and real processes: each device finds the batch that suits it, and nobody waits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import history
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from support.fleet import Fleet, of, wait_share

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

BATCH = 16
PACES = {  # seconds of a local update with the run's batch, and of these the fixed part
    "pi": (0.16, 0.0),
    "middle": (0.1, 0.03),
    "jetson": (0.08, 0.075),
}
FITS = 32  # samples at a time, on the jetson
BOUND = 3
MEASURED = 6
"""Commits of each device that are looked at once batches are found."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("allocation"), report_every_s=0.1) as fleet:
        fleet.start_scheduler()
        fleet.start_server()
        for shard, (name, (step_s, fixed_s)) in enumerate(PACES.items()):
            fleet.start_worker(
                name,
                shard=shard,
                shards=len(PACES),
                step_seconds=step_s,
                step_fixed_seconds=fixed_s,
                max_batch=FITS if name == "jetson" else 0,
            )
        yield fleet


def _train(fleet: Fleet, **options: Any) -> tuple[pb.Status, str]:
    """Until batches are found and have stood for some commits. Returns the status before the end, and the
    run."""
    run_id = fleet.submit(
        workers=len(PACES),
        task="digits",
        sync={"adsp": {"rate": 2, "allocation": True, **options}},
        check_period_s=2,
        training={"batch": BATCH, "learning_rate": 0.1},
    )
    status = fleet.until(lambda s: of(s, "jetson").batch > BATCH, "batches are found")
    for _ in range(5):
        before = _batches(status)
        fleet.until_commits(MEASURED, *PACES)
        status = fleet.status()
        if _batches(status) == before:
            break
    assert fleet.stop_run().outcome == pb.Status.STOPPED
    return status, run_id


def _batches(status: pb.Status) -> dict[str, int]:
    return {name: of(status, name).batch for name in PACES}


def _events(fleet: Fleet, run_id: str) -> list[dict[str, Any]]:
    """The run's log, which replays to the same decisions."""
    path = fleet.folder / "scheduler" / run_id / "events.jsonl"
    with path.open(encoding="utf-8") as lines:
        for step in replay(lines, make_model):
            assert step.recorded == step.replayed, step.event
    return [json.loads(line) for line in path.read_text().splitlines()]


def _spreads(events: list[dict[str, Any]]) -> list[int]:
    """How far the commits of one device were ahead of another's, after each report of the server."""
    counts: dict[str, int] = {}
    found = []
    for line in events:
        if line.get("event") == "ServerReported":
            for count in line["report"].get("counts", ()):
                counts[count["worker"]] = count.get("commits", 0)
            if len(counts) == len(PACES):
                found.append(max(counts.values()) - min(counts.values()))
    return found


def test_each_device_has_the_batch_that_suits_it_and_nobody_waits(fleet: Fleet) -> None:
    status, run_id = _train(fleet)
    events = _events(fleet, run_id)
    batch = _batches(status)
    assert batch["pi"] <= BATCH < batch["jetson"] <= FITS
    assert batch["pi"] <= batch["middle"] <= batch["jetson"]
    rates = [line["plan"] for line in events if line.get("decision") == "PlanMade"][-1]["rates"]
    assert rates["pi"] < 1
    assert "jetson" not in rates, "a rate that was tuned does not grow by itself"
    assert max(wait_share(of(status, name).report) for name in PACES) < 0.05
    assert max(_spreads(events)) <= 2
    assert status.allotment.cycle_s == pytest.approx(status.interval_s)
    assert all(of(status, name).allotted_updates > 1 for name in PACES)


def test_under_a_bound_the_local_updates_of_an_interval_differ_as_planned(fleet: Fleet) -> None:
    status, run_id = _train(fleet, max_staleness=BOUND)
    events = _events(fleet, run_id)
    found = history.read(fleet.folder / "scheduler" / run_id / "events.jsonl")
    planned = found.plans[-1].updates
    changed_s = max(b.at_s for a, b in itertools.pairwise(found.plans) if a.batches != b.batches)
    made = {name: found.device(name).local_updates(changed_s + status.interval_s) for name in PACES}
    free = {name: status.interval_s / step_s for name, (step_s, _) in PACES.items()}
    assert max(free.values()) - min(free.values()) > BOUND + 2, "with the run's batch they would differ more"
    assert max(planned.values()) - min(planned.values()) <= BOUND + 0.5
    for name in PACES:
        assert made[name] == pytest.approx(planned[name], abs=1)
    observed = [value for value in made.values() if value is not None]
    spread = max(planned.values()) - min(planned.values())
    assert max(observed) - min(observed) == pytest.approx(spread, abs=1)
    assert max(wait_share(of(status, name).report) for name in PACES) < 0.05
    assert max(_spreads(events)) <= 2
