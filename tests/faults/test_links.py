"""Links that break: each update counts once, and the training thread notices nothing."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import TASKS, Fleet, Phase, of, wait_share
from support.link import Link

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEP = 1 / 1024
"""What a local update adds to each number of the model: exact in float32, and so is each sum."""
NUMBERS = 250_000


@pytest.fixture
def links(fleet: Fleet) -> Iterator[tuple[Link, Link]]:
    """To the scheduler and to the parameter server."""
    with Link(fleet.scheduler) as control, Link(fleet.server, delay_s=0.03) as bulk:
        yield control, bulk


@pytest.fixture
def far(fleet: Fleet, links: tuple[Link, Link], tmp_path: Path) -> str:
    """A run that worker 'far' trains alone: nobody else has its task."""
    control, bulk = links
    task = shutil.copy(TASKS / "steps.py", tmp_path / "lonely.py")
    fleet.start_worker(
        "far",
        module="support.impatient",
        tasks=[task],
        scheduler=control.address,
        parameter_server=bulk.address,
    )
    fleet.until(lambda s: of(s, "far").attached, "it attends")
    run = fleet.submit(
        task={"name": "lonely", "options": {"numbers": NUMBERS}},
        workers=1,
        check_period_s=2,
        training={"learning_rate": STEP, "max_lone_steps": 1_000_000},
    )
    fleet.until_trains(1)
    return run


def _each_counts_once(fleet: Fleet, run: str, worker: pb.WorkerStatus) -> None:
    """What the server counted, what the worker was told, and what is in the model agree."""
    with safe_open(fleet.folder / "ps" / run / "model.safetensors", "np") as file:
        count = file.get_tensor("count")
        account = json.loads(file.metadata()["counts"])["far"]
    assert account["commits"] == account["sequence"], "no number was left out or counted twice"
    assert worker.commits == account["commits"]
    assert account["commits"] - worker.report.commits in (0, 1), "the last answer may not have come"
    assert set((count / STEP).tolist()) == {float(account["steps"])}
    assert account["steps"] <= worker.report.steps


def test_commits_whose_connection_is_cut_again_and_again_count_once(
    fleet: Fleet, far: str, links: tuple[Link, Link]
) -> None:
    chance = random.Random(3)
    before = fleet.status()
    for _ in range(12):
        time.sleep(0.2 + 0.5 * chance.random())
        links[1].cut()
    status = fleet.until_commits(6)
    assert of(status, "far").report.retries > of(before, "far").report.retries
    worker = of(fleet.stop_run(), "far")
    _each_counts_once(fleet, far, worker)
    assert wait_share(worker.report) < 0.02
    assert fleet.log("far").count("parameter server") < 60


def test_a_link_that_goes_silent_for_longer_than_keepalive_and_lease_comes_back(
    fleet: Fleet, far: str, links: tuple[Link, Link]
) -> None:
    before = fleet.until_commits(4)
    for link in links:
        link.hold()
    status = fleet.until(lambda s: not of(s, "far").attached, "its lease ends")
    fleet.eventually(
        lambda: fleet.metrics("parameter-server")["offbeat_ps_leases"] == 0, "the server's lease ends too"
    )
    assert status.phase == Phase.WAITING
    for name in ("scheduler", "parameter server"):
        fleet.until_log("far", f"{name} 127.0.0.1")
    for link in links:
        link.let_go()
    status = fleet.until(lambda s: s.phase == Phase.TRAINING, "it is back")
    fleet.until_commits(6)
    worker = of(fleet.stop_run(), "far")
    _each_counts_once(fleet, far, worker)
    assert worker.commits > of(before, "far").commits
    assert wait_share(worker.report) < 0.02
