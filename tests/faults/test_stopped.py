"""Processes that are frozen, told to end, or started twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, Phase, of, training

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_worker_frozen_for_longer_than_its_lease_comes_back_without_a_burst(fleet: Fleet) -> None:
    fleet.submit(workers=3, check_period_s=1)
    fleet.until_trains(3)
    with fleet.suspended("worker-3"):
        fleet.until(lambda s: not of(s, "worker-3").attached, "its lease ends")
        fleet.until(lambda s: s.active_trainers == 2, "M falls")
        fleet.until_commits(8, "worker-1")
    before = fleet.until_commits(1, "worker-3")
    after = fleet.until_commits(16, "worker-1")
    assert after.active_trainers == 3
    frozen, other = (of(after, n).commits - of(before, n).commits for n in ("worker-3", "worker-1"))
    assert other / 2 - 2 <= frozen <= other + 3
    assert of(after, "worker-3").report.phase == pb.WorkerReport.TRAINING
    assert not of(after, "worker-3").error


def test_a_frozen_device_that_was_to_give_the_model_is_replaced_by_another(fleet: Fleet) -> None:
    with fleet.suspended("worker-1"):  # the first by name
        fleet.submit(workers=2)
        assert training(fleet.until_trains(2)) == ["worker-2", "worker-3"]
    fleet.until_trains(3)
    stopped = fleet.status()
    with fleet.suspended("worker-1"):  # nor does it keep a run from ending, or the next one from beginning
        assert fleet.stop_run().model_path
        fleet.submit(workers=2)
        fleet.until_trains(2)
    assert fleet.until_trains(3).run_id != stopped.run_id


@pytest.mark.parametrize("frozen", ["scheduler", "parameter-server"])
def test_a_hub_that_was_frozen_itself_does_not_take_the_others_for_dead(fleet: Fleet, frozen: str) -> None:
    fleet.submit(workers=3, sync="bsp")
    fleet.until_trains(3)
    with fleet.suspended(frozen):
        time.sleep(1.5 * fleet.lease_s)
    status = fleet.until_commits(20)
    assert status.active_trainers == 3
    if frozen == "scheduler":
        assert "silent" not in fleet.log("scheduler")
        assert "lease has ended" not in fleet.log("worker-1")
    else:
        assert fleet.metrics("parameter-server")["offbeat_ps_leases_ended_total"] == 0
    assert "did not run for" in fleet.log(frozen)


def test_each_service_that_is_told_to_end_does_so_with_0_and_in_order(fleet: Fleet) -> None:
    run = fleet.submit(workers=2, checkpoint_every_s=1000)
    fleet.until_trains(2)
    fleet.until_commits(6)

    assert fleet.end("worker-3", 15) == 0
    status = fleet.until(lambda s: not of(s, "worker-3").attached, "it said goodbye")
    assert status.phase == Phase.TRAINING
    assert fleet.end("evaluator", 15) == 0
    fleet.until(lambda s: not s.evaluator_attached, "it said goodbye")
    fleet.until_commits(6)

    assert fleet.end("parameter-server", 15) == 0
    status = fleet.until(lambda s: s.phase == Phase.IDLE, "the run ends")
    assert status.outcome == pb.Status.FAILED
    assert "parameter server" in status.message
    counts = _accounts(fleet.folder / "ps" / run / "checkpoint.safetensors")
    assert {name: count["commits"] for name, count in counts.items()} == {
        worker.name: worker.commits for worker in status.workers if worker.commits
    }

    assert fleet.end("scheduler", 15) == 0
    assert fleet.end("worker-1", 15) == 0
    assert "Traceback" not in fleet.log("worker-1")


def test_a_new_process_of_a_name_takes_its_place_and_the_old_one_says_why_it_ends(fleet: Fleet) -> None:
    fleet.submit(workers=3)
    before = fleet.until_trains(3)
    fleet.start_worker("worker-3", key="another", shard=2, shards=3)
    assert fleet.exit_code("worker-3") == 1
    assert "error: name: a newer process called 'worker-3'" in fleet.log("worker-3")
    status = fleet.until(
        lambda s: of(s, "worker-3").commits > of(before, "worker-3").commits + 4, "the newer one trains"
    )
    assert fleet.runs("another")
    assert status.active_trainers == 3
    assert of(status, "worker-3").report.steps >= of(before, "worker-3").report.steps


def _accounts(checkpoint: Path) -> dict[str, dict[str, int]]:
    with safe_open(checkpoint, "np") as file:
        metadata = file.metadata()
    return json.loads(metadata[next(key for key in metadata if "count" in key)])
