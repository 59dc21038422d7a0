"""`offbeat status`: what a scheduler and its run are doing."""

from __future__ import annotations

import sys

from rich.console import Console

from offbeat_cli import outcome
from offbeat_cli.client import SchedulerClient
from offbeat_cli.table import RunView, render
from offbeat_core.errors import ExitCode


def status(scheduler: str, *, watch: bool, as_json: bool, every_s: float = 1.0) -> int:
    """Print the status once, or as it changes until Ctrl-C. JSON is one object a line."""
    console = Console()
    with SchedulerClient(scheduler) as client:
        now = client.status()
        if not watch:
            if as_json:
                print(outcome.dumps(outcome.status_json(now)), flush=True)
            else:
                console.print(render(now))
            return ExitCode.DONE
        if as_json:
            for now in client.watch(every_s, lambda text: print(text, file=sys.stderr)):
                print(outcome.dumps(outcome.status_json(now)), flush=True)
            return ExitCode.DONE
        with RunView(console) as view:
            view.show(now)
            for now in client.watch(every_s, view.say):
                view.show(now)
    return ExitCode.DONE
