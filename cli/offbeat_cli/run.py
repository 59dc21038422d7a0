"""`offbeat run`: submit a run to a scheduler, and wait for its end where asked."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.console import Console

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import outcome
from offbeat_cli.client import SchedulerClient
from offbeat_cli.table import RunView
from offbeat_core.config import RunSettings, read_yaml, validate
from offbeat_core.errors import ExitCode, OffbeatError

WATCH_EVERY_S = 0.5


def run(file: Path, scheduler: str, *, wait: bool, as_json: bool) -> int:
    """Submit `file` to `scheduler`; returns the exit code."""
    began = time.monotonic()
    # Checked here too: an error then names the file, and needs no scheduler.
    validate(RunSettings, read_yaml(file, "RUN.yaml"), str(file))
    with SchedulerClient(scheduler) as client:
        run_id = client.submit(file.read_text(encoding="utf-8")).run_id
        if not wait:
            print(json.dumps({"run_id": run_id}) if as_json else f"submitted {run_id}", flush=True)
            if not as_json:
                print(f"follow it with: offbeat status --scheduler {scheduler} --watch")
            return ExitCode.DONE
        status = _follow(client, run_id, Console(stderr=as_json))
    wall_s = time.monotonic() - began
    if as_json:
        print(outcome.dumps(outcome.result(status, wall_s)), flush=True)
    else:
        print(f"{run_id}: {outcome.ending(status)}")
        if status.model_path:
            print(f"model, on the parameter server's machine: {status.model_path}")
        if status.best_model_path:
            print(f"best model: {status.best_model_path}")
    return outcome.exit_code(status)


def _follow(client: SchedulerClient, run_id: str, console: Console) -> pb.Status:
    """Show the run until it has ended. Ctrl-C stops watching; the run goes on."""
    last: pb.Status | None = None
    try:
        with RunView(console) as view:
            view.say(f"submitted {run_id}")
            for status in client.watch(WATCH_EVERY_S, view.say):
                if status.run_id != run_id and last is None:
                    continue  # sent before the scheduler took it up
                if not status.run_id:
                    raise OffbeatError(
                        f"{run_id}: the scheduler was restarted and leads it no more",
                        "the parameter server's folder has its model so far; "
                        "submit the run again, with initial_model: that file",
                    )
                if status.run_id != run_id:
                    raise OffbeatError(
                        f"{run_id}: another run, {status.run_id}, has followed it",
                        "its events are in the scheduler's folder",
                    )
                last = status
                view.show(status)
                if outcome.has_ended(status, run_id):
                    return status
    except KeyboardInterrupt:
        console.print(
            f"no longer watching; {run_id} goes on (offbeat stop --scheduler {client.address} ends it)",
            highlight=False,
            markup=False,
        )
        raise
    raise OffbeatError(f"{run_id}: the scheduler ended the stream")
