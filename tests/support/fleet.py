"""A whole system as processes on loopback, each of which may be killed, stopped and started again.

Tests say what shall happen to whom and wait for what the scheduler's status, a log or a
metric then shows. No time is asserted: a deadline only says that something is stuck.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli.client import SchedulerClient
from offbeat_cli.processes import Child, Children
from offbeat_core.errors import OffbeatError
from support.link import Link

STUCK_S = 60.0
TESTS = Path(__file__).parents[1]
TASKS = Path(__file__).with_name("fault_tasks")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Phase = pb.Status.Phase


Broken = (AssertionError, OffbeatError, OSError, subprocess.TimeoutExpired)
"""What a fleet raises that can't be put right."""


class Fleet:
    """Scheduler, parameter server and devices; a context manager that leaves no process behind.

    Args:
        folder: for files and logs.
        lease_s, report_every_s: of the scheduler; short, so that a test is.
        step_s: seconds that a worker's local update takes at least.
    """

    def __init__(
        self, folder: Path, *, lease_s: float = 3.0, report_every_s: float = 0.2, step_s: float = 0.02
    ) -> None:
        self.folder = folder
        self.lease_s = lease_s
        self.scheduler = self.server = ""  # addresses
        self._report_every_s = report_every_s
        self._step_s = step_s
        self._children = Children(folder / "logs")
        self._current: dict[str, Child] = {}
        self._said_before: dict[str, int] = {}
        self._unusual: dict[str, bool] = {}  # it was given options of a test's own
        self._facts: dict[str, dict[str, Any]] = {}
        self._client: SchedulerClient | None = None

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        for child in self._current.values():
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)
        self._children.stop()

    # ---- processes ---------------------------------------------------------------

    def restore(self, workers: int) -> None:
        """Have hub, worker-1, ... and evaluator as they are by default, nobody else, and no active run."""
        usual = ["scheduler", "parameter-server", "evaluator", *_names(workers)]
        for name in self._current:
            if self.runs(name):
                self.signal(name, signal.SIGCONT)
            if self.runs(name) and (name not in usual or self._unusual[name]):
                self.end(name)
        self.start_hub()
        self.start_workers(workers)
        self.start_evaluator()
        self.stop_run()
        self.until(
            lambda s: (
                s.evaluator_attached
                and s.parameter_server_attached
                and [w.name for w in s.workers if w.attached] == _names(workers)
            ),
            "everybody attends",
        )
        self._said_before = {name: len(self._log(name)) for name in self._current}

    def start_hub(self) -> None:
        """Scheduler and parameter server; one that runs already stays."""
        if not self.runs("scheduler"):
            self.start_scheduler()
        if not self.runs("parameter-server"):
            self.start_server()

    def start_scheduler(self, **options: Any) -> None:
        """Start it; again on the port that it had."""
        facts = self._start(
            "scheduler",
            "offbeat_scheduler.main",
            {
                "listen": self.scheduler or "127.0.0.1:0",
                "metrics_listen": "127.0.0.1:0",
                "folder": self.folder / "scheduler",
                "lease_s": self.lease_s,
                "report_every_s": self._report_every_s,
                **options,
            },
            unusual=bool(options),
        )
        self.scheduler = f"127.0.0.1:{facts['port']}"
        if self._client is not None:
            self._client.close()
        self._client = SchedulerClient(self.scheduler)

    def start_server(self, **options: Any) -> None:
        facts = self._start(
            "parameter-server",
            "offbeat_ps.main",
            {
                "listen": self.server or "127.0.0.1:0",
                "metrics_listen": "127.0.0.1:0",
                "folder": self.folder / "ps",
                "scheduler": self.scheduler,
                **options,
            },
            unusual=bool(options),
        )
        self.server = f"127.0.0.1:{facts['port']}"

    def start_worker(
        self,
        name: str,
        *,
        key: str = "",
        module: str = "offbeat_worker.main",
        environment: Any = None,
        **options: Any,
    ) -> None:
        """Start a worker or an evaluator and do not wait for it. `key`: for a second one of a name."""
        unusual = options.keys() - {"shard", "shards", "role"}
        values = {
            "name": name,
            "scheduler": self.scheduler,
            "parameter_server": self.server,
            "tasks": sorted(TASKS.glob("*.py")),
            "data": self.folder / "data",
            "threads": 1,
            **options,
        }
        if values.get("role") != "evaluator":
            values = {"step_seconds": self._step_s, **values}
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**ONE_THREAD, "PYTHONPATH": paths, **(environment or {})}
        self._launch(key or name, module, values, environment, unusual=bool(unusual))

    def start_workers(self, count: int, **options: Any) -> None:
        """worker-1, ..., each with a shard of its own; those that run already stay."""
        for shard, name in enumerate(_names(count)):
            if not self.runs(name):
                self.start_worker(name, shard=shard, shards=count, **options)

    def start_lonely(self, links: tuple[Link, Link], folder: Path, *names: str) -> None:
        """Impatient workers behind these links (to the scheduler, to the parameter server), which alone have
        the task `lonely`; its file is put into `folder`. Waits until they attend."""
        control, bulk = links
        task = shutil.copy(TASKS / "steps.py", folder / "lonely.py")
        for name in names:
            self.start_worker(
                name,
                module="support.impatient",
                tasks=[task],
                scheduler=control.address,
                parameter_server=bulk.address,
            )
        self.until(lambda s: all(of(s, name).attached for name in names), "they attend")

    def start_evaluator(self, name: str = "evaluator", **options: Any) -> None:
        if not self.runs(name):
            self.start_worker(name, role="evaluator", **options)

    def _start(self, name: str, module: str, options: dict[str, Any], *, unusual: bool) -> dict[str, Any]:
        child = self._launch(name, module, options, ONE_THREAD, unusual=unusual)
        self._facts[name] = self._children.wait_ready(child)
        return self._facts[name]

    def _launch(
        self, name: str, module: str, options: dict[str, Any], environment: Any, *, unusual: bool
    ) -> Child:
        assert not self.runs(name), f"{name} runs already"
        child = self._children.start_module(name, module, options, environment=environment)
        child.may_end = True  # `until` looks after those that a test did not end
        self._current[name] = child
        self._unusual[name] = unusual
        return child

    def runs(self, name: str) -> bool:
        child = self._current.get(name)
        return child is not None and child.process.poll() is None

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._current[name].pid)

    def signal(self, name: str, number: int) -> None:
        self._current[name].process.send_signal(number)

    def kill(self, *names: str) -> None:
        """kill -9, of all of them before any is waited for."""
        for name in names:
            self.signal(name, signal.SIGKILL)
        for name in names:
            self._current[name].process.wait(STUCK_S)

    def end(self, name: str, seconds: float = STUCK_S) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(name, signal.SIGTERM)
        return self._current[name].process.wait(seconds)

    def exit_code(self, name: str, seconds: float = STUCK_S) -> int:
        """Of one that ends by itself."""
        return self._current[name].process.wait(seconds)

    @contextmanager
    def suspended(self, name: str) -> Iterator[None]:
        """SIGSTOP meanwhile."""
        self.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(name, signal.SIGCONT)

    # ---- runs --------------------------------------------------------------------

    def submit(self, **values: Any) -> str:
        """Submit a run; what is not given is chosen for a short test without an end. Returns its id."""
        given = {
            "name": "run",
            "task": "quadrants",
            "workers": 2,
            "sync": {"adsp": {"rate": 8}},
            "check_period_s": 4,
            "checkpoint_every_s": 0.5,
            "training": {"batch": 16, "learning_rate": 0.1},
            "evaluate": {"every_s": 0.2},
            "limits": {"seconds": 300},
            **values,
        }
        return self.client.submit(yaml.safe_dump(given)).run_id

    def stop_run(self) -> pb.Status:
        """End the run that is active, if any; returns the status after it."""
        status = self.status()
        if status.phase != Phase.IDLE:
            self.client.stop()
            status = self.until(lambda s: s.phase == Phase.IDLE, "the run is stopped")
        return status

    @property
    def client(self) -> SchedulerClient:
        assert self._client is not None
        return self._client

    def status(self) -> pb.Status:
        return self.client.status()

    def until(self, condition: Callable[[pb.Status], Any], what: str, seconds: float = STUCK_S) -> pb.Status:
        """Wait until a status fulfils `condition` and return it."""
        deadline = time.monotonic() + seconds
        status: pb.Status | None = None
        while True:
            try:
                status = self.status()
                if condition(status):
                    return status
            except OffbeatError:
                if not self.runs("scheduler"):
                    raise
            assert time.monotonic() < deadline, f"stuck: {what}\n{status}\n{self._ends_of_logs()}"
            time.sleep(0.05)

    def eventually(self, condition: Callable[[], Any], what: str, seconds: float = STUCK_S) -> None:
        """Wait for something that no status shows."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"stuck: {what}\n{self._ends_of_logs()}"
            time.sleep(0.05)

    def until_trains(self, workers: int) -> pb.Status:
        """Wait until so many workers have made and committed local updates."""
        return self.until(lambda s: len(training(s)) >= workers, f"{workers} workers train")

    def until_commits(self, more: int, *names: str) -> pb.Status:
        """Wait until each of these workers (or all together) has committed so many times more."""
        before = self.status()
        if not names:
            return self.until(lambda s: s.commits >= before.commits + more, f"{more} more commits")
        return self.until(
            lambda s: all(of(s, n).commits >= of(before, n).commits + more for n in names),
            f"{more} more commits of {', '.join(names)}",
        )

    def until_log(self, name: str, text: str, count: int = 1) -> str:
        deadline = time.monotonic() + STUCK_S
        while self.log(name).count(text) < count:
            assert time.monotonic() < deadline, (
                f"stuck: {name} did not say '{text}'\n{self.log(name)[-3000:]}"
            )
            time.sleep(0.05)
        return self.log(name)

    # ---- what they leave ---------------------------------------------------------

    def log(self, name: str) -> str:
        """What processes of that name said since `restore`."""
        return self._log(name)[self._said_before.get(name, 0) :]

    def _log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self._current)

    def events(self, run_id: str) -> list[dict[str, Any]]:
        path = self.folder / "scheduler" / run_id / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def metrics(self, name: str) -> dict[str, float]:
        """'name{labels}' -> value, of scheduler or parameter-server."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._facts[name]['metrics_port']}/metrics", timeout=10
        ) as reply:
            lines = reply.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {key: float(value) for key, _, value in pairs}


def _names(workers: int) -> list[str]:
    return [f"worker-{number + 1}" for number in range(workers)]


def of(status: pb.Status, name: str) -> pb.WorkerStatus:
    return next((worker for worker in status.workers if worker.name == name), pb.WorkerStatus())


def training(status: pb.Status) -> list[str]:
    """Who takes part in the training, at rest between two rounds or not, and has committed."""
    phases = (pb.WorkerReport.TRAINING, pb.WorkerReport.RESTING)
    return [w.name for w in status.workers if w.report.phase in phases and w.commits]


def wait_share(report: pb.WorkerReport) -> float:
    time_s = report.time
    total = time_s.compute_s + time_s.paced_s + time_s.commit_s + time_s.wait_s
    return time_s.wait_s / total if total else 0.0
