"""`offbeat demo`: the whole system as real processes on this machine, for one run.

Scheduler, parameter server, one worker per speed and an evaluator are started on free
ports of the loopback, the run is submitted, shown until it has ended, and its results
are left in one folder: report.html, model.safetensors, best.safetensors, events.jsonl,
run.yaml, result.json and logs/.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import history, outcome
from offbeat_cli.client import SchedulerClient
from offbeat_cli.demo_plan import DemoOptions, DemoPlan, plan
from offbeat_cli.processes import Children
from offbeat_cli.table import RunView
from offbeat_core.errors import OffbeatError

POLL_S = 0.4
START_S = 180.0  # torch is slow to import on a small machine
STOP_S = 8.0
REPORT_EVERY_S = 0.5
NEEDED = ("grpc_health", "safetensors", "scipy", "torch", "sklearn")
OUT = Path("offbeat-out")
WORK = ".services"  # the services' own folders, while they run
LOCK = ".lock"


def demo(options: DemoOptions) -> int:
    """Run the demo; returns its exit code."""
    began = time.monotonic()
    _check_installed()
    todo = plan(options)
    console = Console(stderr=options.as_json)
    with _interrupted_by_signals() as told, _own_folder(options.out, todo.name) as folder:
        status, interrupted = _train(todo, options, folder, console, told)
        if interrupted and not status.elapsed_s:
            raise KeyboardInterrupt  # nothing was trained: there is nothing to keep
        files = _collect(folder, status)
        found = {
            **outcome.result(status, time.monotonic() - began, todo.speeds),
            "evaluations": evaluations(folder / "events.jsonl", status),
            "out": str(folder),
            "model": files.get("model"),
            "best_model": files.get("best_model"),
            "commit_delay_s": options.commit_delay,
            "step_seconds": todo.step_seconds,
            "seed": options.seed,
        }
        (folder / "result.json").write_text(outcome.dumps(found, indent=1) + "\n", encoding="utf-8")
        if status.elapsed_s > 0:
            from offbeat_cli import report  # matplotlib takes a second to import

            files["report"] = str(report.write(folder))
        _summary(console, status, found, files)
    if options.as_json:
        print(outcome.dumps(found), flush=True)
    if interrupted:
        raise KeyboardInterrupt
    return outcome.exit_code(status)


def _check_installed() -> None:
    """Raises OffbeatError where a library of a service is missing: the command needs none of them."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OffbeatError(
            f"demo: {', '.join(missing)} not installed here",
            "the demo runs all services on this machine: pip install 'offbeat[ps,scheduler,worker,cli]'",
        )


# ---- its folder ----------------------------------------------------------------


@contextlib.contextmanager
def _own_folder(out: Path | None, name: str) -> Iterator[Path]:
    """A folder that no other demo uses while this one does. Raises OffbeatError if there is none."""
    folder = out if out is not None else _free_name(OUT / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w", encoding="utf-8")
    except OSError as error:
        raise OffbeatError(
            f"--out: {folder}: {error.strerror}", "name a folder that you may write to"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OffbeatError(
                f"--out: {folder}: another demo is running there", "choose another folder"
            ) from error
        # What an attempt left that never trained is no loss; anything else is.
        kept = sorted({entry.name for entry in folder.iterdir()} - {LOCK, WORK, "logs"})
        if kept:
            (folder / LOCK).unlink()
            raise OffbeatError(
                f"--out: {folder}: is not empty ({', '.join(kept[:3])})",
                "choose another folder, or remove what is in it",
            )
        for old in (WORK, "logs"):
            shutil.rmtree(folder / old, ignore_errors=True)
        try:
            yield folder.resolve()
        finally:
            shutil.rmtree(folder / WORK, ignore_errors=True)
            (folder / LOCK).unlink(missing_ok=True)


def _free_name(folder: Path) -> Path:
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _collect(folder: Path, status: pb.Status) -> dict[str, str]:
    """Move what the services wrote to where the user looks; returns the paths of what is there."""
    scheduler = folder / WORK / "scheduler" / status.run_id
    found = {}
    for key, source, name in (
        ("model", status.model_path, "model.safetensors"),
        ("best_model", status.best_model_path, "best.safetensors"),
        ("events", scheduler / "events.jsonl", "events.jsonl"),
        ("run", scheduler / "run.yaml", "run.yaml"),
    ):
        if source and Path(source).is_file():
            shutil.move(str(source), folder / name)
            found[key] = str(folder / name)
    return found


def evaluations(events: Path, status: pb.Status) -> list[list[float]]:
    """[[seconds since training began, loss, metric], ...]: all of the event log, else the status's."""
    if events.is_file():
        return [[point.at_s, point.loss, point.metric] for point in history.read(events).evaluations]
    return [[point.at_s, point.loss, point.metric] for point in status.evaluations]


# ---- its processes -------------------------------------------------------------


@dataclass(frozen=True)
class _Running:
    client: SchedulerClient
    run_id: str


def _train(
    todo: DemoPlan, options: DemoOptions, folder: Path, console: Console, told: threading.Event
) -> tuple[pb.Status, bool]:
    """Start everything, and see the run to its end: (last status, was it interrupted?)."""
    with Children(folder / "logs") as children, RunView(console) as view:
        view.say(
            f"starting scheduler, parameter server, evaluator and {len(todo.speeds)} workers; logs in "
            f"{_short(folder / 'logs')}"
        )
        scheduler, running = _start_scheduler(children, todo, folder)
        with running.client:
            try:
                _start_others(children, todo, options, folder, scheduler)
                return _follow(children, running, view, told), False
            except KeyboardInterrupt:
                view.say("interrupted: stopping the run and writing its model (once more ends it at once)")
                return _stop(running, view), True


def _start_scheduler(children: Children, todo: DemoPlan, folder: Path) -> tuple[str, _Running]:
    """Start it and submit the run before the rest is started: a bad run costs no waiting for torch."""
    child = children.start_module(
        "scheduler",
        "offbeat_scheduler.main",
        {
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "folder": folder / WORK / "scheduler",
            "report_every_s": REPORT_EVERY_S,
            "models": [todo.run.sync.own[0]] if todo.run.sync.own else [],
        },
        environment=_environment(),
    )
    address = f"127.0.0.1:{children.wait_ready(child)['port']}"
    client = SchedulerClient(address)
    try:
        reply = client.submit(yaml.safe_dump(todo.run_values, sort_keys=False))
    except BaseException:
        client.close()
        raise
    return address, _Running(client, reply.run_id)


def _start_others(
    children: Children, todo: DemoPlan, options: DemoOptions, folder: Path, scheduler: str
) -> None:
    server = children.start_module(
        "parameter-server",
        "offbeat_ps.main",
        {
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "folder": folder / WORK / "ps",
            "scheduler": scheduler,
            "samples": _write_samples(todo, options, folder) if todo.parallelized else None,
        },
        environment=_environment(),
    )
    common = {
        "scheduler": scheduler,
        "shards": len(todo.speeds),
        "data": options.data,
        "tasks": [todo.task_file] if todo.task_file else [],
        "threads": options.threads,
    }
    direct = f"127.0.0.1:{children.wait_ready(server)['port']}"
    children.start_module(
        "evaluator",
        "offbeat_worker.main",
        {**common, "name": "evaluator", "role": "evaluator", "parameter_server": direct},
        environment=_environment(options.threads),
    )
    link = _delayed(children, direct, todo.link_delay_s) if todo.link_delay_s else direct
    for shard, (worker, step_s) in enumerate(todo.step_seconds.items()):
        children.start_module(
            worker,
            "offbeat_worker.main",
            {
                **common,
                "name": worker,
                "parameter_server": link,
                "shard": shard,
                "step_seconds": step_s or None,
                "step_fixed_seconds": todo.fixed_seconds[worker] or None,
            },
            environment=_environment(options.threads),
        )


def _write_samples(todo: DemoPlan, options: DemoOptions, folder: Path) -> Path:
    """The data set that the parameter server deals. By a process of its own: this one needs no torch."""
    out = folder / WORK / "samples.safetensors"
    command = [sys.executable, "-m", "offbeat_cli.main", "samples", str(todo.task_file or todo.name)]
    command += ["--out", str(out), "--seed", str(options.seed)]
    command += ["--data", str(options.data)] if options.data else []
    for option in options.task_option:
        command += ["--task-option", option]
    environment = {**os.environ, **_environment()}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("error: ").splitlines() or ["it gives no reason"]
        raise OffbeatError(f"the data set could not be written: {said[0]}", " ".join(said[1:]))
    return out


def _delayed(children: Children, target: str, delay_s: float) -> str:
    relay = children.start_module(
        "relay", "offbeat_cli.relay", {"target": target, "delay": delay_s}, environment=_environment()
    )
    return f"127.0.0.1:{children.wait_ready(relay)['port']}"


def _environment(threads: int = 1) -> dict[str, str]:
    """Several processes share this machine: without a bound each would compute with all its cores."""
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


# ---- its run -------------------------------------------------------------------


def _follow(children: Children, running: _Running, view: RunView, told: threading.Event) -> pb.Status:
    """Show the run until it has ended. Raises OffbeatError if a process or a worker fails."""
    began = time.monotonic()
    while True:
        if told.is_set():
            raise KeyboardInterrupt
        children.check()
        try:
            status = running.client.status()
        except OffbeatError:
            time.sleep(0.5)
            children.check()  # its own words say more than "nobody answers"
            raise
        view.show(status)
        if outcome.has_ended(status, running.run_id):
            return status
        _raise_failure(status)
        if status.phase == pb.Status.WAITING and time.monotonic() - began > START_S:
            raise OffbeatError(
                f"training did not begin within {START_S:g} s: {status.message or 'waiting'}",
                children.first_error() or "the logs say more; a first run may have had to download its data",
            )
        time.sleep(POLL_S)


def _raise_failure(status: pb.Status) -> None:
    """A worker that can't take part: the demo needs each of them."""
    for worker in status.workers:
        if worker.error and status.phase == pb.Status.WAITING:
            raise OffbeatError(f"{worker.name}: {worker.error}")


def _stop(running: _Running, view: RunView) -> pb.Status:
    """Stop the run and wait a little for its model to be written."""
    deadline = time.monotonic() + STOP_S
    try:
        running.client.stop(running.run_id)
        status = running.client.status()
        while not outcome.has_ended(status, running.run_id) and time.monotonic() < deadline:
            time.sleep(0.2)
            status = running.client.status()
            view.show(status)
    except OffbeatError as error:  # it has gone too: there is nothing to keep
        raise KeyboardInterrupt from error
    return status


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGHUP (a closed terminal) end the demo in order, as Ctrl-C does.

    Yields what is set by each of them: an exception out of a signal handler is lost where it
    strikes in a destructor. What was ignored (`nohup`) stays so.
    """
    told = threading.Event()

    def interrupt(*_: object) -> None:
        told.set()
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- its summary ---------------------------------------------------------------


def _summary(console: Console, status: pb.Status, found: dict[str, Any], files: dict[str, str]) -> None:
    lines = ["", f"{status.run_name}: {outcome.ending(status)}"]
    if status.evaluations:
        lines.append(f"  {status.metric_name or 'metric'} {status.metric:.4f}, loss {status.loss:.4f}")
    if status.commit_rate:
        lines.append(
            f"  {outcome.model_name(status.sync)} at {status.commit_rate:.3g} commits "
            f"per {status.check_period_s:g} s"
            + (f", after {len(status.probes)} probes" if status.probes else "")
        )
    for worker in found["workers"]:
        lines.append(
            f"  {worker['name']}: {worker['steps']} steps, {worker['commits']} commits, "
            f"waited {worker['wait_share']:.2%} of its time"
        )
    if "report" in files:
        lines.append(f"report      {_short(files['report'])}")
    if "model" in files:
        lines.append(f"model       {_short(files['model'])}  (the report says how to load it)")
    if "best_model" in files:
        lines.append(f"best model  {_short(files['best_model'])}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _short(path: str | Path) -> str:
    """Relative where it lies below the current folder."""
    path = Path(path)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
