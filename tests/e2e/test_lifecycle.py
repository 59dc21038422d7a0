"""One hub, run after run: what an operator does with it, without restarting anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import TASKS, Fleet, Phase, of, training

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CELLS = Path(__file__).parents[2] / "examples" / "cells" / "cells.py"


def _offbeat(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", *words], capture_output=True, text=True, timeout=120
    )


def test_a_second_run_starts_from_the_first_one_s_model_and_is_stopped_with_a_model_of_its_own(
    fleet: Fleet,
) -> None:
    digits = {
        "name": "digits",
        "task": "digits",
        "workers": 3,
        "training": {"batch": 32, "learning_rate": 0.3},
    }
    fleet.submit(**digits, target={"accuracy": 0.8})
    first = fleet.until(lambda s: s.phase == Phase.IDLE, "the target is reached")
    assert first.outcome == pb.Status.REACHED
    assert first.evaluations[0].metric < 0.4

    run = fleet.submit(**digits, initial_model=first.model_path)
    fleet.until_trains(3)
    second = fleet.until(lambda s: s.evaluations, "the first evaluation")
    assert second.run_id == run
    assert second.evaluations[0].version == 0
    assert second.evaluations[0].metric >= first.evaluations[-1].metric - 0.03

    fleet.until_commits(6)
    done = _offbeat("stop", "--scheduler", fleet.scheduler)
    assert (done.returncode, done.stdout) == (0, f"stopping {run}\n")
    stopped = fleet.until(lambda s: s.phase == Phase.IDLE, "it stops")
    assert stopped.outcome == pb.Status.STOPPED
    assert stopped.model_path != first.model_path
    before, after = load_file(first.model_path), load_file(stopped.model_path)
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    assert all(worker.report.final for worker in stopped.workers)
    shown = _offbeat("status", "--scheduler", fleet.scheduler)
    assert "stopped" in shown.stdout


def test_without_an_evaluator_the_workers_own_losses_end_a_run(fleet: Fleet) -> None:
    fleet.end("evaluator")
    fleet.submit(workers=3, target={"loss": 0.5}, training={"batch": 16, "learning_rate": 0.5})
    status = fleet.until(lambda s: s.phase == Phase.IDLE, "the target is reached")
    assert status.outcome == pb.Status.REACHED
    assert not status.evaluated
    assert not status.evaluations
    assert 0 < status.loss <= 0.5
    assert status.time_to_target_s > 0


def test_a_late_joiner_takes_the_current_model_and_part_without_a_burst(fleet: Fleet) -> None:
    fleet.end("worker-3")
    fleet.submit(workers=2, check_period_s=2)
    fleet.until_trains(2)
    fleet.until_commits(12, "worker-1")
    fleet.start_workers(3)
    before = fleet.until(lambda s: "worker-3" in training(s), "it takes part")
    after = fleet.until_commits(16, "worker-1")
    assert after.active_trainers == 3
    joiner, other = (of(after, n).commits - of(before, n).commits for n in ("worker-3", "worker-1"))
    assert other - 4 <= joiner <= other + 3
    assert of(after, "worker-3").commits < of(after, "worker-1").commits - 8


def test_a_worker_that_changes_its_pace_commits_as_often_as_before(fleet: Fleet, tmp_path: Path) -> None:
    pace = tmp_path / "pace"
    pace.write_text("0.02")
    fleet.end("worker-3")
    fleet.start_worker("worker-3", shard=2, shards=3, step_seconds_file=pace)
    fleet.submit(workers=3, check_period_s=2)
    fleet.until_trains(3)
    before = fleet.until_commits(8, "worker-3")
    pace.write_text("0.1")
    fleet.until(lambda s: of(s, "worker-3").report.step_s > 0.09, "its speed is followed")
    between = fleet.until_commits(1, "worker-3")
    after = fleet.until_commits(16, "worker-1")
    slow, other = (of(after, n).commits - of(between, n).commits for n in ("worker-3", "worker-1"))
    assert abs(slow - other) <= 3
    steps = {
        name: of(after, name).report.steps - of(between, name).report.steps
        for name in ("worker-1", "worker-3")
    }
    assert steps["worker-3"] < steps["worker-1"] / 2
    assert of(before, "worker-3").report.step_s < of(after, "worker-3").report.step_s / 2


def test_the_next_run_uses_a_task_file_as_it_was_edited_meanwhile(fleet: Fleet, tmp_path: Path) -> None:
    task = tmp_path / "mine.py"
    task.write_text((TASKS / "quadrants.py").read_text())
    fleet.start_worker("worker-9", tasks=[task])
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="mine", workers=1)
    fleet.until_trains(1)
    before = fleet.stop_run()
    task.write_text(task.read_text().replace("hidden=16", "hidden=24"))
    fleet.until_log("worker-9", "changed: task mine")
    fleet.submit(task="mine", workers=1)
    fleet.until_trains(1)
    after = fleet.stop_run()
    shapes = [load_file(status.model_path)["0.weight"].shape for status in (before, after)]
    assert shapes == [(16, 2), (24, 2)]


def test_a_user_s_own_task_file_trains_in_the_demo(tmp_path: Path) -> None:
    done = _offbeat(
        "demo",
        *("--task", str(CELLS), "--out", str(tmp_path / "out"), "--json"),
        *("--speeds", "1,2", "--step-seconds", "0.05", "--target-accuracy", "0.9", "--rate", "2"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["reached"]
    assert all(worker["commits"] > 0 for worker in result["workers"])
    assert load_file(result["model"]).keys() == load_file(result["best_model"]).keys()
