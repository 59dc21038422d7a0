"""From a scenario's `compare` to runs and models: each entry checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat_cli.simulator.scenario import Entry, Scenario
from offbeat_core.config import RunSettings, SyncSpec
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import ANYWHERE, make_model
from offbeat_scheduler.sync import SyncModel
from offbeat_worker import tasks

OVERLAP = "overlap"
"""A model that can let commits travel while training goes on has an option of this name."""


@dataclass(frozen=True)
class Prepared:
    """What one simulation needs."""

    run: RunSettings
    model: SyncModel


def prepare(scenario: Scenario, entry: Entry, seed: int) -> Prepared:
    """The run and the model of an entry. Raises OffbeatError naming what is wrong."""
    run = scenario.run_settings(entry, seed)
    model = make_model(run.sync, run, ANYWHERE)
    options = type(model.options)
    if OVERLAP not in options.model_fields:
        if entry.overlap:
            raise OffbeatError(
                f"overlap: true: {run.sync.model} waits for each commit's answer",
                "leave overlap out for this model",
            )
        return Prepared(run, model)
    if entry.overlap is not None and OVERLAP in model.options.model_fields_set:
        raise OffbeatError(f"overlap: {entry.overlap}: the model's own options say it too", "give one")
    if OVERLAP not in model.options.model_fields_set:
        overlap = scenario.overlap if entry.overlap is None else entry.overlap
        spec = SyncSpec(model=run.sync.model, options={**run.sync.options, OVERLAP: overlap})
        run = run.model_copy(update={"sync": spec})
        model = make_model(spec, run, ANYWHERE)
    return Prepared(run, model)


def check(scenario: Scenario) -> None:
    """Raises OffbeatError for an entry that can't be run, naming its place, or for an unknown task."""
    for index, entry in enumerate(scenario.compare):
        try:
            prepare(scenario, entry, scenario.seeds[0])
        except OffbeatError as error:
            raise OffbeatError(f"compare.{index}: {error.problem}", error.remedy) from error
    known = tasks.available(scenario.tasks)
    if scenario.task.name not in known:
        raise OffbeatError(
            f"task: '{scenario.task.name}' is not known",
            f"known here: {', '.join(sorted(known))}; name your own file under `tasks`",
        )


def located(entry: Entry, folder: Path) -> Entry:
    """The entry with the path of a user's own model found from `folder` on; its label stays as written."""
    return entry.model_copy(update={"label": entry.shown, "sync": _located(entry.sync, folder)})


def _located(sync: Any, folder: Path) -> Any:
    if isinstance(sync, str):
        stem, extension, rest = sync.partition(".py")
        path = folder / f"{stem}.py"
        return f"{path}{rest}" if extension and path.is_file() else sync
    if isinstance(sync, Mapping):
        if "model" in sync:
            return {**sync, "model": _located(sync["model"], folder)}
        return {_located(key, folder): options for key, options in sync.items()}
    return sync
