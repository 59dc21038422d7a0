"""Rounds, in which most devices rest, while processes freeze and die and links break."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, of
from support.link import Link

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEP = 1 / 1024
"""What a local update adds to each number of the model: exact in float32, and so is each sum."""
TAU = 2
ONE_OF_ALL = {"fedavg": {"fraction": 0.01, "tau": TAU}}
RESTING = pb.WorkerReport.RESTING


def _resting(status: pb.Status) -> list[str]:
    return [worker.name for worker in status.workers if worker.report.phase == RESTING]


def _rounds(fleet: Fleet, more: int) -> pb.Status:
    """Wait until so many more were closed."""
    version = fleet.status().version
    return fleet.until(lambda s: s.version >= version + more, f"{more} more rounds")


@pytest.mark.parametrize("frozen", ["scheduler", "parameter-server"])
def test_rounds_go_on_after_a_hub_that_was_frozen(fleet: Fleet, frozen: str) -> None:
    # Rounds of a second or so: who rests for less than the time between two reports may never say it.
    fleet.submit(workers=3, sync={"fedavg": {"fraction": 0.01, "tau": 40}})
    fleet.until_trains(3)
    _rounds(fleet, 1)
    fleet.until(lambda s: len(_resting(s)) == 2, "two rest")
    with fleet.suspended(frozen):
        time.sleep(1.5 * fleet.lease_s)
    status = _rounds(fleet, 3)
    assert status.active_trainers == 3, "who rests keeps its lease"
    assert of(status, "worker-1").report.time.wait_s > 0


def test_a_device_that_dies_at_rest_or_in_its_round_stalls_nobody(fleet: Fleet) -> None:
    fleet.submit(workers=3, sync=ONE_OF_ALL)
    fleet.until_trains(3)
    _rounds(fleet, 1)
    for _ in range(2):  # one that rests, then, as likely, the one that trains
        fleet.kill("worker-3")
        _rounds(fleet, 4)
        fleet.start_worker("worker-3", shard=2, shards=3)
        before = of(fleet.status(), "worker-3").commits
        fleet.until(lambda s, n=before: of(s, "worker-3").commits > n, "it is drawn again")


def test_a_scheduler_that_is_started_anew_finds_resting_devices_idle(fleet: Fleet) -> None:
    run = fleet.submit(workers=3, sync=ONE_OF_ALL)
    fleet.until_trains(3)
    _rounds(fleet, 1)
    fleet.kill("scheduler")
    fleet.start_scheduler()
    for name in ("worker-1", "worker-2", "worker-3"):
        fleet.until_log(name, f"run {run} is over here")
    fleet.submit(workers=3, sync=ONE_OF_ALL)
    _rounds(fleet, 3)


def test_in_rounds_whose_links_are_cut_each_update_counts_once(
    fleet: Fleet, links: tuple[Link, Link], tmp_path: Path
) -> None:
    """One device trains in each round, so that each fold adds exactly its updates."""
    fleet.start_lonely(links, tmp_path, "far", "farther")
    run = fleet.submit(
        task={"name": "lonely", "options": {"numbers": 50_000}},
        workers=2,
        sync=ONE_OF_ALL,
        training={"learning_rate": STEP, "max_lone_steps": 1_000_000},
    )
    fleet.until_trains(2)
    _rounds(fleet, 1)
    chance = random.Random(11)
    for _ in range(16):
        time.sleep(0.1 + 0.4 * chance.random())
        chance.choice(links).cut()
    _rounds(fleet, 4)
    fleet.stop_run()
    with safe_open(fleet.folder / "ps" / run / "model.safetensors", "np") as file:
        counts = np.unique(file.get_tensor("count") / STEP)
        metadata = file.metadata()
    accounts = json.loads(metadata["counts"])
    assert len(counts) == 1
    assert counts[0] == sum(account["steps"] for account in accounts.values())
    assert int(metadata["version"]) == sum(account["commits"] for account in accounts.values())
    for account in accounts.values():
        assert account["commits"] == account["sequence"]
        assert account["steps"] >= TAU * account["commits"]
