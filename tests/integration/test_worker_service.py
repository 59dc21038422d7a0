"""`offbeat-worker` as processes, beside the real scheduler and parameter server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat.v1 import scheduler_pb2 as sc
from offbeat.v1 import scheduler_pb2_grpc as sc_grpc
from offbeat_core import channels

LIVENESS_S = 150.0

RUN = """
name: worker-test
task: digits
workers: {workers}
sync: {sync}
check_period_s: 2
training: {{learning_rate: 0.1}}
target: {{loss: 0.0001}}
limits: {{seconds: 600}}
"""


class Fleet:
    """A real hub, and workers beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.hub = ("scheduler", "ps")
        scheduler = self.start(
            "offbeat_scheduler", "scheduler", listen="127.0.0.1:0", metrics_listen="", folder=folder / "s"
        )
        self.scheduler = f"127.0.0.1:{scheduler['port']}"
        server = self.start(
            "offbeat_ps",
            "ps",
            listen="127.0.0.1:0",
            metrics_listen="",
            folder=folder / "p",
            scheduler=self.scheduler,
        )
        self.server = f"127.0.0.1:{server['port']}"
        self._channel = channels.connect_blocking(self.scheduler)
        self.stub: Any = sc_grpc.SchedulerStub(self._channel)

    def launch(self, package: str, key: str, **options: Any) -> Path:
        """Start a process; returns the ready file that it will write."""
        ready = self.folder / f"{key}.ready"
        ready.unlink(missing_ok=True)
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OFFBEAT_")}
        self.processes[key] = subprocess.Popen(
            [sys.executable, "-m", f"{package}.main", f"--ready-file={ready}", *arguments],
            stderr=(self.folder / f"{key}.log").open("w"),
            text=True,
            env=environment,
        )
        return ready

    def start(self, package: str, key: str, **options: Any) -> dict[str, Any]:
        """Start a process and wait until it is ready."""
        ready = self.launch(package, key, **options)
        self.until(ready.exists, f"{key} is ready")
        facts: dict[str, Any] = json.loads(ready.read_text())
        return facts

    def worker(self, key: str, **options: Any) -> dict[str, Any]:
        given = {
            "name": key,
            "scheduler": self.scheduler,
            "parameter_server": self.server,
            "threads": 1,
            "data": self.folder,
        }
        return self.start("offbeat_worker", key, **(given | options))

    def submit(self, workers: int, sync: str = "{adsp: {rate: 4}}") -> None:
        self.stub.SubmitRun(sc.SubmitRunRequest(run_yaml=RUN.format(workers=workers, sync=sync)), timeout=10)

    def status(self) -> sc.Status:
        status: sc.Status = self.stub.GetStatus(sc.StatusRequest(), timeout=10)
        return status

    def of(self, name: str) -> sc.WorkerStatus:
        return next((w for w in self.status().workers if w.name == name), sc.WorkerStatus())

    def log(self, key: str) -> str:
        return (self.folder / f"{key}.log").read_text()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + LIVENESS_S
        while not condition():
            logs = {key: self.log(key)[-2000:] for key in self.processes} if time.monotonic() >= end else {}
            assert time.monotonic() < end, f"{what}; {logs}"
            time.sleep(0.05)

    def send_home(self) -> None:
        """End the run and all workers; the hub stays."""
        if self.status().phase != sc.Status.IDLE:
            self.stub.StopRun(sc.StopRunRequest(), timeout=10)
            self.until(lambda: self.status().phase == sc.Status.IDLE, "the run's end")
        self._end([key for key in self.processes if key not in self.hub])

    def close(self) -> None:
        self._channel.close()
        self._end(list(self.processes))

    def _end(self, keys: list[str]) -> None:
        processes = [self.processes.pop(key) for key in keys]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def with_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One hub for all tests of this file: what it is told by one must not disturb the next."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()


@pytest.fixture
def fleet(with_hub: Fleet) -> Iterator[Fleet]:
    yield with_hub
    with_hub.send_home()


@pytest.fixture
def own_fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A hub that the test may break."""
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def test_workers_of_different_speed_train_without_waiting_and_commit_alike(fleet: Fleet) -> None:
    fleet.worker("slow", shard=0, shards=2, step_seconds=0.15)
    fleet.worker("quick", shard=1, shards=2, step_seconds=0.05)
    fleet.submit(workers=2)
    fleet.until(lambda: fleet.of("slow").commits >= 6, "six commits")
    slow, quick = fleet.of("slow"), fleet.of("quick")
    assert abs(slow.commits - quick.commits) <= 1
    assert quick.report.steps > 2 * slow.report.steps
    for worker in (slow, quick):
        time_of = worker.report.time
        total = time_of.compute_s + time_of.paced_s + time_of.commit_s + time_of.wait_s
        assert time_of.wait_s <= 0.02 * total
        assert time_of.commit_s <= 0.1 * total


def test_barrier_makes_the_quick_one_wait(fleet: Fleet) -> None:
    fleet.worker("last", shard=0, shards=2, step_seconds=0.15)
    fleet.worker("first", shard=1, shards=2, step_seconds=0.05)
    fleet.submit(workers=2, sync="bsp")
    fleet.until(lambda: fleet.of("first").commits >= 20, "twenty rounds")
    quick = fleet.of("first").report
    time_of = quick.time
    total = time_of.compute_s + time_of.paced_s + time_of.commit_s + time_of.wait_s
    assert time_of.wait_s > 0.3 * total
    assert abs(fleet.of("last").commits - fleet.of("first").commits) <= 1


def test_sigterm_ends_a_training_worker_in_order(fleet: Fleet) -> None:
    fleet.worker("leaver", step_seconds=30)
    fleet.submit(workers=1)
    fleet.until(lambda: fleet.of("leaver").report.phase == sc.WorkerReport.TRAINING, "training")
    process = fleet.processes["leaver"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    fleet.until(lambda: not fleet.of("leaver").attached, "the scheduler knows that it left")
    assert "Traceback" not in fleet.log("leaver")


def test_sigterm_is_heard_while_torch_is_being_imported(fleet: Fleet) -> None:
    health = fleet.folder / "health"
    fleet.launch("offbeat_worker", "early", name="early", scheduler=fleet.scheduler, health_file=health)
    fleet.until(health.exists, "it is alive")
    process = fleet.processes["early"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0


def test_newer_process_of_one_name_takes_over_and_the_older_ends(fleet: Fleet) -> None:
    fleet.worker("twin")
    fleet.until(lambda: fleet.of("twin").attached, "the first attends")
    older = fleet.processes["twin"]
    fleet.worker("second", name="twin")
    assert older.wait(30) == 1
    assert "error: name: a newer process called 'twin'" in fleet.log("twin")
    assert "Traceback" not in fleet.log("twin")
    fleet.submit(workers=1)
    fleet.until(lambda: fleet.of("twin").commits >= 2, "the newer one trains")


def test_worker_goes_on_when_the_parameter_server_is_killed(own_fleet: Fleet) -> None:
    fleet = own_fleet
    fleet.worker("w", step_seconds=0.02)
    fleet.submit(workers=1)
    fleet.until(lambda: fleet.of("w").commits >= 2, "commits")
    server = fleet.processes["ps"]
    server.kill()
    server.wait()
    steps = fleet.of("w").report.steps
    fleet.until(lambda: fleet.of("w").report.steps > steps + 50, "training goes on without a server")
    report = fleet.of("w").report
    assert report.phase == sc.WorkerReport.TRAINING
    assert report.time.wait_s == 0
    assert report.steps_since_pull > 0
    assert fleet.log("w").count("cannot be reached") == 1


def test_bad_settings_end_with_a_line_that_names_them(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "offbeat_worker.main", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    broken = tmp_path / "broken.py"
    broken.write_text("def build_model(:\n")
    for arguments, words in (
        (["--shard", "3", "--shards", "2"], "shard: 3 does not exist"),
        (["--tasks", str(tmp_path / "none.py")], "none.py: cannot be read"),
        (["--tasks", str(broken)], "broken.py:1"),
        (["--device", "cuda:99"], "device: cuda:99"),
        (["--health"], "health_file: is not set"),
    ):
        done = run(*arguments)
        assert done.returncode == 1, arguments
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert run("--no-such-option").returncode == 2
