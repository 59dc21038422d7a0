"""One simulation of a comparison: one entry of a scenario and one seed, from settings to figures.

The figures are plain numbers, lists and dictionaries, the same bytes whenever the same job is
run: what is stored of it, and what travels between processes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offbeat_cli.simulator.code import digest_of
from offbeat_cli.simulator.entries import prepare
from offbeat_cli.simulator.result import DeviceResult, Evaluation, Result
from offbeat_cli.simulator.scenario import Entry, Scenario
from offbeat_core.config import RunSettings
from offbeat_worker import tasks

FORMAT = 1
"""Of the stored figures; another one makes stored runs be made again."""


def run_job(
    scenario: Scenario, entry: Entry, seed: int, progress: Callable[[Evaluation], None] | None = None
) -> dict[str, Any]:
    """Simulate, and return the run's figures. Raises OffbeatError for what is wrong with the task."""
    import torch

    from offbeat_cli.simulator.driver import simulate
    from offbeat_cli.simulator.torch_workload import TorchWorkload

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        prepared = prepare(scenario, entry, seed)
        workload = TorchWorkload(prepared.run, scenario.labels, scenario.data, scenario.tasks)
        result = simulate(
            prepared.run,
            scenario.virtual_devices(),
            workload,
            max_s=scenario.limit_s,
            server_s=scenario.server_s,
            report_every_s=scenario.report_every_s,
            seed=seed,
            model=prepared.model,
            progress=progress,
        )
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    return figures(result, seed, scenario)


def figures(result: Result, seed: int, scenario: Scenario) -> dict[str, Any]:
    """What is kept of a run. Numbers that are none (a loss that overflowed) become None."""
    last = result.evaluations[-scenario.target.smooth :]
    devices = list(result.devices.values())
    shares = {name: _mean([_shares(device)[name] for device in devices]) for name in _shares(devices[0])}
    # Until the target, or for the whole of the limit: what a run took that was cut short is not known.
    return {
        "seed": seed,
        "reached": result.reached,
        "time_s": result.end_s if result.reached else scenario.limit_s,
        "value": _number(_mean([point.metric for point in last])),
        "loss": _number(_mean([point.loss for point in last])),
        "steps": sum(device.steps for device in devices),
        "commits": sum(device.commits for device in devices),
        **shares,
        "bytes": result.sent_bytes,
        "refused": sum(device.refused for device in devices),
        "devices": [
            {"name": device.name, "steps": device.steps, "commits": device.commits, **_shares(device)}
            for device in devices
        ],
        "curve": {
            "time_s": [point.at_s for point in result.evaluations],
            "loss": [_number(point.loss) for point in result.evaluations],
            "value": [_number(point.metric) for point in result.evaluations],
            "commits": [point.commits for point in result.evaluations],
        },
        "rates": _rates(result),
    }


def _shares(device: DeviceResult) -> dict[str, float]:
    """Travel of its own commit counts as commit here: waiting is for others (gate, round, rest)."""
    return {
        "wait_share": max(0.0, device.wait_share - device.travel_share),
        "commit_share": device.commit_share + device.travel_share,
        "compute_share": device.compute_share,
    }


def _rates(result: Result) -> list[dict[str, Any]]:
    """The commit rate whenever it changed, for models that have one."""
    kept: list[dict[str, Any]] = []
    for at_s, plan in result.plans:
        rate = {
            "rate": plan.commit_rate,
            "interval_s": plan.interval_s,
            "searching": plan.searching,
        }
        if plan.commit_rate and (not kept or rate.items() - kept[-1].items()):
            kept.append({"at_s": at_s, **rate})
    return kept


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) and values else math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---- what determines a run ----------------------------------------------------------------


def key(scenario: Scenario, entry: Entry, seed: int) -> str:
    """A digest of everything that determines the figures of a run: settings, task, and code."""
    prepared = prepare(scenario, entry, seed)
    run: RunSettings = prepared.run
    determined = {
        "format": FORMAT,
        "run": run.model_dump(mode="json"),
        "devices": [group.model_dump(mode="json", exclude={"name"}) for group in scenario.devices],
        "names": [device.name for device in scenario.virtual_devices()],
        "limit_s": scenario.limit_s,
        "server_s": scenario.server_s,
        "report_every_s": scenario.report_every_s,
        "options": prepared.model.options.model_dump(mode="json"),
        "task": tasks.available(scenario.tasks)[scenario.task.name],
        "code": digest_of(type(prepared.model)),
    }
    text = json.dumps(determined, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_of(folder: Path, digest: str) -> Path:
    """Where a finished run is kept."""
    return folder / f"{digest}.json"
