"""Links that break: each update counts once, and the training thread notices nothing."""

from __future__ import annotations

import json
import random
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, Phase, of, wait_share
from support.link import Link

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEP = 1 / 1024
"""What a local update adds to each number of the model: exact in float32, and so is each sum."""
NUMBERS = 250_000
SERVICES = ("scheduler", "parameter-server")


def _train(fleet: Fleet, links: tuple[Link, Link], folder: Path, *names: str, **values: object) -> str:
    """A run of these workers alone, far away: nobody else has its task."""
    fleet.start_lonely(links, folder, *names)
    given = {
        "task": {"name": "lonely", "options": {"numbers": NUMBERS}},
        "workers": len(names),
        "check_period_s": 2,
        "training": {"learning_rate": STEP, "max_lone_steps": 1_000_000},
        **values,
    }
    run = fleet.submit(**given)
    fleet.until_trains(len(names))
    return run


def _model(fleet: Fleet, run: str) -> tuple[float, int, dict[str, dict[str, int]]]:
    """How many updates are in each number of the final model, its version, and who committed what."""
    with safe_open(fleet.folder / "ps" / run / "model.safetensors", "np") as file:
        counts = np.unique(file.get_tensor("count") / STEP)
        metadata = file.metadata()
    assert len(counts) == 1, "all numbers of the model count the same"
    return float(counts[0]), int(metadata["version"]), json.loads(metadata["counts"])


def _each_counts_once(account: dict[str, int], worker: pb.WorkerStatus) -> None:
    assert account["commits"] == account["sequence"], "no number was left out or counted twice"
    assert worker.commits == account["commits"]
    assert account["commits"] - worker.report.commits in (0, 1), "the last answer may not have come"
    assert account["steps"] <= worker.report.steps


def _cut(links: tuple[Link, ...], times: int, chance: random.Random) -> None:
    for _ in range(times):
        time.sleep(0.1 + 0.5 * chance.random())
        chance.choice(links).cut()


def test_commits_whose_connection_is_cut_again_and_again_count_once_and_nobody_waits(
    fleet: Fleet, links: tuple[Link, Link], tmp_path: Path
) -> None:
    run = _train(fleet, links, tmp_path, "far")
    before = fleet.until_commits(2)
    _cut(links[1:], 14, random.Random(3))
    status = fleet.until_commits(4)
    assert of(status, "far").report.retries > of(before, "far").report.retries
    worker = of(fleet.stop_run(), "far")
    count, _, accounts = _model(fleet, run)
    assert count == accounts["far"]["steps"]
    _each_counts_once(accounts["far"], worker)
    assert wait_share(worker.report) < 0.02


def test_at_a_barrier_commits_whose_connection_is_cut_count_once_and_nothing_leaks(
    fleet: Fleet, links: tuple[Link, Link], tmp_path: Path
) -> None:
    names = ("far", "farther")
    run = _train(fleet, links, tmp_path, *names, sync="bsp")
    _cut(links, 6, random.Random(5))
    fleet.until_commits(4, *names)
    processes = [fleet.process(name) for name in (*SERVICES, *names)]
    before = [(process.num_fds(), process.num_threads()) for process in processes]
    _cut(links, 20, random.Random(7))
    status = fleet.until_commits(8, *names)
    assert status.active_trainers == 2
    after = [(process.num_fds(), process.num_threads()) for process in processes]
    for (fds, threads), (fds_before, threads_before) in zip(after, before, strict=True):
        assert fds <= fds_before + 4
        assert threads <= threads_before + 4
    status = fleet.stop_run()
    count, version, accounts = _model(fleet, run)
    assert count == version, "each barrier adds the mean of those that came: one update"
    for name in names:
        _each_counts_once(accounts[name], of(status, name))
    assert abs(accounts["far"]["commits"] - accounts["farther"]["commits"]) <= 1


def test_a_link_that_is_silent_for_longer_than_keepalive_and_lease_comes_back(
    fleet: Fleet, links: tuple[Link, Link], tmp_path: Path
) -> None:
    run = _train(fleet, links, tmp_path, "far")
    before = fleet.until_commits(4)
    control, bulk = links
    bulk.hold()
    fleet.until(
        lambda s: of(s, "far").report.steps > of(before, "far").report.steps + 60, "it trains on meanwhile"
    )
    control.hold()
    status = fleet.until(lambda s: not of(s, "far").attached, "its lease ends")
    fleet.eventually(
        lambda: fleet.metrics("parameter-server")["offbeat_ps_leases"] == 0, "the server's lease ends too"
    )
    assert status.phase == Phase.WAITING
    fleet.until_log("far", f"scheduler {control.address} cannot be reached")
    fleet.until_log("far", f"parameter server {bulk.address} cannot be reached")
    for link in links:
        link.let_go()
    fleet.until(lambda s: s.phase == Phase.TRAINING, "it is back")
    fleet.until_commits(6)
    worker = of(fleet.stop_run(), "far")
    count, _, accounts = _model(fleet, run)
    assert count == accounts["far"]["steps"]
    _each_counts_once(accounts["far"], worker)
    assert worker.commits > of(before, "far").commits
    assert wait_share(worker.report) < 0.02


@pytest.mark.parametrize("seed", [1])
def test_whatever_breaks_in_whatever_order_all_come_back_and_each_update_counts_once(
    fleet: Fleet, links: tuple[Link, Link], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    names = ("far", "farther")
    run = _train(fleet, links, tmp_path, *names, sync="bsp", check_period_s=1)
    for _ in range(6):
        held = [link for link in links if chance.random() < 0.4]
        frozen = [name for name in (*SERVICES, *names) if chance.random() < 0.25]
        with ExitStack() as mended:
            for link in held:
                link.hold()
                mended.callback(link.let_go)
            for name in frozen:
                mended.enter_context(fleet.suspended(name))
            if chance.random() < 0.5:
                chance.choice(links).cut()
            time.sleep(chance.choice([0.2, 0.7, 1.5 * fleet.lease_s]))
    fleet.until(
        lambda s: s.active_trainers == 2 and all(of(s, name).attached for name in names), "all come back"
    )
    fleet.until_commits(8, *names)
    status = fleet.stop_run()
    count, version, accounts = _model(fleet, run)
    assert count == version, "each barrier adds the mean of those that came: one update"
    for name in names:
        _each_counts_once(accounts[name], of(status, name))
        assert fleet.runs(name)
        assert "Traceback" not in fleet.log(name)
