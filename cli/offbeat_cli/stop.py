"""`offbeat stop`: end the current run; its model is written and the workers go back to idle."""

from __future__ import annotations

import json

from offbeat_cli.client import SchedulerClient
from offbeat_core.errors import ExitCode


def stop(scheduler: str, run_id: str, *, as_json: bool) -> int:
    with SchedulerClient(scheduler) as client:
        stopped = client.stop(run_id)
    print(json.dumps({"run_id": stopped}) if as_json else f"stopping {stopped}", flush=True)
    return ExitCode.DONE
