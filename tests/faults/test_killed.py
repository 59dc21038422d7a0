"""kill -9, of anybody, in the middle of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli.simulator.replaying import replayed
from support.fleet import Fleet, Phase, of, training

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("sync", ["bsp", {"adsp": {"rate": 8}}], ids=["bsp", "adsp"])
def test_training_goes_on_without_a_killed_worker_and_takes_it_back(fleet: Fleet, sync: object) -> None:
    fleet.submit(workers=3, sync=sync, check_period_s=1)
    fleet.until_trains(3)
    fleet.kill("worker-3")
    status = fleet.until(lambda s: s.active_trainers == 2, "M falls")
    assert status.phase == Phase.TRAINING
    assert not of(status, "worker-3").attached
    for service in ("scheduler", "parameter-server"):
        series = [name for name in fleet.metrics(service) if 'worker="' in name]
        assert [name for name in series if 'worker="worker-1"' in name]
        assert not [name for name in series if 'worker="worker-3"' in name], "its series go with it"
    fleet.until_commits(4, "worker-1", "worker-2")
    fleet.start_workers(3)
    assert fleet.until_commits(4, "worker-3").active_trainers == 3
    counts = [worker.commits for worker in fleet.stop_run().workers]
    assert counts[2] < counts[0] - 1, "what it missed is not caught up"
    assert abs(counts[0] - counts[1]) <= 2


def test_a_killed_evaluator_is_said_and_missed_by_nobody_until_it_is_back(fleet: Fleet) -> None:
    fleet.submit(evaluate={"every_s": 0.2, "required": True})
    fleet.until(lambda s: s.evaluations, "the first evaluation")
    fleet.until_trains(2)
    fleet.kill("evaluator")
    fleet.until(lambda s: any("evaluator 'evaluator'" in w for w in s.warnings), "it is said")
    before = fleet.until_commits(6)
    assert before.phase == Phase.TRAINING
    assert not before.evaluator_attached
    fleet.start_evaluator()
    status = fleet.until(lambda s: len(s.evaluations) > len(before.evaluations) + 1, "it evaluates again")
    assert not [warning for warning in status.warnings if "evaluator" in warning]


def test_a_run_whose_workers_all_died_waits_and_goes_on_when_one_returns(fleet: Fleet) -> None:
    fleet.submit(workers=3)
    fleet.until_trains(3)
    fleet.kill("worker-1", "worker-2", "worker-3")
    waiting = fleet.until(lambda s: s.phase == Phase.WAITING, "the run waits")
    assert "no worker is left" in waiting.message
    fleet.start_worker("worker-2", shard=1, shards=3)
    status = fleet.until(
        lambda s: of(s, "worker-2").commits > of(waiting, "worker-2").commits, "it trains again"
    )
    assert status.phase == Phase.TRAINING
    assert status.version > waiting.version
    assert fleet.stop_run().model_path


def test_a_hub_that_lost_both_its_services_at_once_takes_the_next_run(fleet: Fleet) -> None:
    fleet.submit(workers=3, sync="bsp")
    fleet.until_trains(3)
    fleet.kill("scheduler", "parameter-server")
    fleet.start_hub()
    fleet.until(
        lambda s: s.parameter_server_attached and sum(w.attached for w in s.workers) == 3, "all come back"
    )
    fleet.submit(workers=3, sync="bsp")
    fleet.until_trains(3)
    assert fleet.until_commits(9).active_trainers == 3


FEDAVG = {"fedavg": {"fraction": 0.7, "tau": 4}}
FEDBUFF = {"fedbuff": {"k": 2, "tau": 4}}


@pytest.mark.parametrize("sync", ["bsp", FEDAVG, FEDBUFF, "fedcompass", {"adsp": {"rate": 8}}], ids=str)
def test_a_run_whose_parameter_server_was_killed_goes_on_from_its_checkpoint(
    fleet: Fleet, sync: object
) -> None:
    run = fleet.submit(workers=3, sync=sync)
    names = training(fleet.until_trains(3))
    for _ in range(2):  # it may die more than once
        fleet.until_commits(4, *names)
        fleet.kill("parameter-server")
        before = fleet.until(lambda s: any("parameter server" in w for w in s.warnings), "it is said")
        assert before.phase == Phase.TRAINING
        fleet.start_server()
        fleet.until(lambda s: s.parameter_server_attached and not s.warnings, "it is back")
        after = fleet.until_commits(4, *names)
        assert after.phase == Phase.TRAINING
        assert after.version > before.version
        made = len(before.evaluations)
        fleet.until(lambda s, made=made: len(s.evaluations) > made, "it is evaluated")  # type: ignore[misc]
    assert fleet.stop_run().model_path.endswith(f"{run}/model.safetensors")
    events, differing = replayed(fleet.folder / "scheduler" / run)
    assert events > 10
    assert differing == 0
    assert fleet.log("worker-1").count("Traceback") == 0


def test_a_run_whose_parameter_server_died_with_its_disk_says_how_to_go_on(fleet: Fleet) -> None:
    run = fleet.submit()
    fleet.until_trains(2)
    fleet.until_commits(6)
    checkpoint = Path(fleet.folder / "ps" / run / "checkpoint.safetensors")
    kept = fleet.folder / "kept.safetensors"
    fleet.kill("parameter-server")
    fleet.until(lambda s: any("parameter server" in w for w in s.warnings), "it is said")
    before = fleet.status()
    fleet.until(
        lambda s: of(s, "worker-1").report.steps > of(before, "worker-1").report.steps + 20,
        "workers train on",
    )
    assert fleet.status().phase == Phase.TRAINING
    checkpoint.rename(kept)
    fleet.start_server()
    status = fleet.until(lambda s: s.phase == Phase.IDLE, "the run ends")
    assert status.outcome == pb.Status.FAILED
    assert "restarted in the middle of the run" in status.message
    assert f"there is none of run '{run}'" in status.message
    assert f"initial_model: {checkpoint}" in status.message
    assert all(fleet.runs(f"worker-{number}") for number in (1, 2, 3))

    fleet.submit(initial_model=str(kept))
    fleet.until_trains(2)


def test_workers_go_on_without_a_scheduler_and_a_new_one_takes_the_next_run(fleet: Fleet) -> None:
    def commits(name: str) -> float:
        return fleet.metrics("parameter-server").get(f'offbeat_ps_commits_total{{worker="{name}"}}', 0)

    run = fleet.submit(workers=3, sync="bsp", check_period_s=1)
    fleet.until_trains(3)
    fleet.kill("scheduler")
    before = commits("worker-1")
    fleet.eventually(lambda: commits("worker-1") >= before + 4, "commits under the last directive")
    # Not even a death meanwhile stops them: the parameter server ends the lease by itself.
    fleet.kill("worker-3")
    fleet.eventually(
        lambda: fleet.metrics("parameter-server")["offbeat_ps_active_trainers"] == 2, "M falls all the same"
    )
    before = commits("worker-1")
    fleet.eventually(lambda: commits("worker-1") >= before + 4, "commits after the lease")

    fleet.start_scheduler()
    status = fleet.until(
        lambda s: s.parameter_server_attached and sum(w.attached for w in s.workers) == 2, "all come back"
    )
    assert status.phase == Phase.IDLE
    model = fleet.folder / "ps" / run / "model.safetensors"
    fleet.eventually(model.exists, "the run that nobody leads any more leaves its model")
    fleet.submit(workers=2, initial_model=str(model))
    assert training(fleet.until_trains(2)) == ["worker-1", "worker-2"]
    assert fleet.log("worker-1").count("Traceback") == 0


def test_a_parameter_server_that_dies_before_training_begins_is_given_the_model_again(fleet: Fleet) -> None:
    fleet.submit(workers=4)
    fleet.until(lambda s: s.message.startswith("3 of 4 workers ready"), "three are ready")
    fleet.kill("parameter-server")
    fleet.start_server()
    fleet.start_worker("worker-9", shard=0, shards=4)
    assert fleet.until_trains(4).phase == Phase.TRAINING
    assert fleet.log("worker-1").count("pulling again") <= 1, "it is said once"
