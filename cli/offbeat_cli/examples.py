"""Commented example files, made from the models that are the only place of defaults.

    offbeat example run > run.yaml                       # one of them
    python -m offbeat_cli.examples deploy/examples       # all of them, as kept in the repository

A key that an example leaves at its default is shown with # right before it.
"""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from offbeat_core.config import (
    ParameterServerSettings,
    RunSettings,
    SchedulerSettings,
    Settings,
    SyncSpec,
    WorkerSettings,
)
from offbeat_core.errors import OffbeatError, guard

WIDTH = 100
MODELS: dict[str, tuple[type[Settings], str, dict[str, Any]]] = {
    # kind: (model, what it is, what the example sets)
    "run": (
        RunSettings,
        "A run. Submit it:  offbeat run run.yaml --scheduler HOST:PORT --wait",
        {
            "name": "digits",
            "task": {"name": "digits"},
            "workers": 3,
            "sync": "adsp",
            "training": {"batch": 32, "learning_rate": 0.05},
            "target": {"accuracy": 0.95},
            "limits": {"seconds": 600.0},
            "evaluate": {"every_s": 1.0},
        },
    ),
    "scheduler": (
        SchedulerSettings,
        "The scheduler. Start it:  offbeat-scheduler --config scheduler.yaml",
        {"listen": "127.0.0.1:50050", "folder": "offbeat-data/scheduler"},
    ),
    "parameter-server": (
        ParameterServerSettings,
        "The parameter server. Start it:  offbeat-ps --config parameter-server.yaml",
        {
            "listen": "127.0.0.1:50051",
            "scheduler": "127.0.0.1:50050",
            "folder": "offbeat-data/ps",
        },
    ),
    "worker": (
        WorkerSettings,
        "A device (role: worker), or the evaluator. Start it:  offbeat-worker --config worker.yaml",
        {
            "name": "worker-1",
            "scheduler": "127.0.0.1:50050",
            "parameter_server": "127.0.0.1:50051",
            "shard": 0,
            "shards": 3,
        },
    ),
}
SYNC = """\
How updates come together. One of:
  adsp                   nobody waits; the commit rate is searched while training goes on
  adsp: {rate: 4}        the same at a fixed rate: commits per check period
  adsp: {search: robust} how the rate is searched: robust, formula or source
  bsp                    all wait for all after each local update
  fixed-adacomm:8        all wait for all after 8 local updates (local SGD)
  {fedbuff: {k: 4}}      any other with its options: ssp, asp, adacomm, batchtune-bsp,
                         batchtune-fixed-adacomm, fedavg, fedbuff, fedcompass,
                         mel-async, mel-sync, mel-eta
  my_model.py:MyModel    your own, of a folder that the scheduler allows
docs/models.md shows them all."""


def text(kind: str) -> str:
    """The example file of that kind. Raises OffbeatError for an unknown one."""
    if kind not in MODELS:
        near = difflib.get_close_matches(kind, MODELS, 1)
        raise OffbeatError(
            f"example: there is none of '{kind}'",
            f"did you mean '{near[0]}'?" if near else f"give one of {', '.join(MODELS)}",
        )
    model, what, chosen = MODELS[kind]
    note = "A key with # right before it is left at the default that it shows."
    return "\n".join([f"# {what}", f"# {note}", *_keys(model, chosen, 0)]) + "\n"


def _keys(model: type[BaseModel], chosen: Mapping[str, Any], depth: int) -> Iterator[str]:
    """The lines of a mapping; keys that `chosen` has not are commented out."""
    for name, info in model.model_fields.items():
        inner = _model_in(info)
        yield from ["", *_comment(info, inner, depth)] if depth == 0 else _comment(info, inner, depth)
        if inner is not None and inner is not SyncSpec:
            some = chosen.get(name)
            yield _line(name, "", depth, commented=some is None)
            lines = list(_keys(inner, some or {}, depth + 1))
            yield from lines if some is not None else _all_commented(lines)
        elif name in chosen:
            yield _line(name, _yaml(chosen[name]), depth, commented=False)
        else:
            yield _line(name, _default(info), depth, commented=True)


def _line(name: str, value: str, depth: int, *, commented: bool) -> str:
    return "  " * depth + ("#" if commented else "") + f"{name}:" + (f" {value}" if value else "")


def _all_commented(lines: list[str]) -> list[str]:
    """A mapping that is itself commented out: take the # at the start of each line away to have it."""
    return ["#" + re.sub(r"^( *)#(?=\S)", r"\1", line) for line in lines]


def _comment(info: FieldInfo, inner: type[BaseModel] | None, depth: int) -> list[str]:
    if inner is SyncSpec:
        words = SYNC.splitlines()
    else:
        said = info.description or (inner.__doc__ if inner else "") or ""
        words = textwrap.wrap(" ".join(said.replace("`", "").split()), WIDTH - 2 - 2 * depth)
    return ["  " * depth + "# " + line for line in words]


def _model_in(info: FieldInfo) -> type[BaseModel] | None:
    for kind in (info.annotation, *typing.get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _default(info: FieldInfo) -> str:
    if info.default_factory is not None:
        return ""  # depends on the machine; the description says how
    return "" if info.is_required() else _yaml(info.default)


def _yaml(value: Any) -> str:
    if value is None:
        return ""
    shown = str(value) if isinstance(value, Path) else value
    flow = isinstance(shown, (list, dict))
    dumped = yaml.safe_dump({"key": shown}, default_flow_style=None if flow else False, allow_unicode=True)
    return str(dumped).removeprefix("key:").strip()


def write(folder: Path) -> None:
    """Write all examples into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in MODELS:
        (folder / f"{kind}.yaml").write_text(text(kind), encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m offbeat_cli.examples FOLDER", file=sys.stderr)
        return 2
    return guard(lambda: write(Path(sys.argv[1])))  # type: ignore[func-returns-value]


if __name__ == "__main__":
    sys.exit(main())
