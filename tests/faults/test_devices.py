"""Devices that compute wrongly, or another model: they are named, and the others train on."""

from __future__ import annotations

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, Phase, of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_worker_whose_model_differs_is_named_and_the_others_reach_the_target(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"HIDDEN": "24"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="uneven", workers=3, target={"loss": 0.6}, training={"learning_rate": 0.3})
    status = fleet.until(lambda s: s.reached, "the others reach the target")
    worker = of(status, "worker-9")
    assert "0.weight" in worker.error
    assert "[24, 2]" in worker.error
    assert "[16, 2]" in worker.error
    assert worker.commits == 0
    assert any("worker-9 failed" in warning for warning in status.warnings)
    assert fleet.runs("worker-9"), "it stays for the next run"


def test_updates_with_nan_are_refused_by_tensor_and_their_worker_is_quarantined(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"SICK_AFTER": "40"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(
        task="sick",
        workers=4,
        target={"accuracy": 0.85},
        training={"learning_rate": 0.1},
        sync={"adsp": {"rate": 8}},
        check_period_s=2,
    )
    status = fleet.until(
        lambda s: of(s, "worker-9").report.phase == pb.WorkerReport.FAILED, "it is quarantined"
    )
    worker = of(status, "worker-9")
    assert "quarantined" in worker.error
    assert "'0.weight'" in worker.error
    assert "NaN" in worker.error
    assert worker.commits >= 1, "its good updates count"
    metrics = fleet.metrics("parameter-server")
    assert metrics['offbeat_ps_refused_commits_total{worker="worker-9"}'] == 3
    assert metrics['offbeat_ps_quarantined{worker="worker-9"}'] == 1
    assert metrics['offbeat_ps_refused_commits_total{worker="worker-1"}'] == 0
    status = fleet.until(lambda s: s.reached, "the others reach the target")
    assert of(status, "worker-9").commits == worker.commits
    assert all(of(status, f"worker-{n}").commits > worker.commits for n in (1, 2, 3))


def test_a_model_that_is_too_large_for_the_server_ends_the_run_and_says_what_to_raise(fleet: Fleet) -> None:
    fleet.end("parameter-server")
    fleet.start_server(commit_memory_mb=1)
    fleet.submit(task={"name": "steps", "options": {"numbers": 1_000_000}}, workers=3)
    status = fleet.until(lambda s: s.phase == Phase.IDLE, "the run ends")
    assert status.outcome == pb.Status.FAILED
    assert "the model takes 4 MiB; commit_memory_mb is 1: raise it" in status.message


def test_a_task_that_fails_in_training_is_named_and_holds_nobody_at_the_barrier(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"RAISE_AFTER": "20"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="sick", workers=4, sync="bsp", check_period_s=2)
    status = fleet.until(lambda s: of(s, "worker-9").error, "it fails")
    assert "sick.py:" in of(status, "worker-9").error
    assert "the sensor is gone" in of(status, "worker-9").error
    status = fleet.until_commits(20, "worker-1", "worker-2", "worker-3")
    assert status.phase == Phase.TRAINING
    assert of(status, "worker-9").attached


@pytest.mark.parametrize("sync", ["bsp", "batchtune-bsp"])
def test_a_device_whose_memory_runs_out_trains_on_with_fewer_samples(fleet: Fleet, sync: str) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"SHRINK_AFTER": "20"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="sick", workers=4, sync=sync, check_period_s=2)
    fleet.until(lambda s: of(s, "worker-9").report.max_batch == 4, "its memory has run out")
    status = fleet.until_commits(20, "worker-1", "worker-9")
    assert of(status, "worker-9").batch == 4
    assert not of(status, "worker-9").error
    # BatchTune gives it no more than that; under BSP the run's batch stays planned.
    fleet.until(
        lambda s: any("worker-9 makes local updates of 4" in text for text in s.warnings) == (sync == "bsp"),
        "the hub says so where more is planned",
    )
    assert fleet.log("worker-9").count("memory ran out") == 1


def test_a_training_thread_that_hangs_holds_nobody_at_the_barrier_and_comes_back(fleet: Fleet) -> None:
    fleet.start_worker(
        "worker-9", shard=1, shards=4, module="support.impatient", environment={"HANG_AFTER": "20"}
    )
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="sick", workers=4, sync="bsp", check_period_s=1)
    fleet.until_trains(4)
    fleet.until_log("worker-9", "a local update has been under way for")
    before = fleet.until_commits(20, "worker-1", "worker-2", "worker-3")
    after = fleet.until_commits(10, "worker-9")
    assert of(before, "worker-9").report.steps < 20
    assert after.active_trainers == 4
    assert fleet.log("worker-9").count("keeps no lease") == 1


def test_a_device_whose_update_takes_longer_than_its_lease_stays_a_member(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"BUSY_S": "4"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="sick", workers=4, check_period_s=1)
    fleet.until_trains(3)
    fleet.until(lambda s: of(s, "worker-9").report.step_s > fleet.lease_s, "it made an update")
    status = fleet.until(lambda s: of(s, "worker-9").commits >= 1, "it commits")
    assert status.active_trainers == 4
    assert "worker-9 was silent" not in fleet.log("scheduler")
    assert fleet.metrics("parameter-server")["offbeat_ps_leases_ended_total"] == 0


def test_a_task_may_load_its_data_by_forks(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.submit(task="forks", workers=3, evaluate={"every_s": 0.2, "required": True})
        fleet.until_trains(3)
        assert not [worker.error for worker in fleet.stop_run().workers if worker.error]
    assert "fork" not in fleet.log("worker-1").replace("task forks", "")
