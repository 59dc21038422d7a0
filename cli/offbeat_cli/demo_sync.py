"""The demo's `--sync`: a name, a name with a value, a mapping with options, or a model's own file.

Pure: text and options in, a run file's `sync` out. Whether there is such a model, and whether
it takes these options, says `offbeat_cli.simulator.sync_models`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from offbeat_core.config import OWN_MODEL
from offbeat_core.errors import ExitCode, OffbeatError

FLAGS = {"rate": "--rate", "search": "--search", "overlap": "--no-overlap"}
"""Options of a model that the demo has an option of its own for."""

REMEDY = "give a name such as bsp, NAME:VALUE, or '{NAME: {OPTION: VALUE}}'"


def read(text: str) -> str | dict[str, Any]:
    """'bsp', 'ssp:3', '{fedbuff: {k: 2}}' or 'my_model.py:Name' as a run file's `sync`.

    The path of a file becomes absolute: the scheduler that reads it may be started elsewhere.
    """
    if "{" not in text and ": " not in text:
        if not text.strip():
            raise OffbeatError("--sync: is empty", REMEDY)
        return _absolute(text.strip())
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        said = getattr(error, "problem", None) or "not valid YAML"
        raise OffbeatError(f"--sync: {text!r}: {said}", REMEDY) from error
    if not (isinstance(value, dict) and len(value) == 1):
        raise OffbeatError(f"--sync: {text!r}: one model with its options is expected", REMEDY)
    name, options = next(iter(value.items()))
    if not isinstance(name, str):
        raise OffbeatError(f"--sync: {text!r}: {name!r} is no model's name", REMEDY)
    if not isinstance(options, (dict, type(None))):
        raise OffbeatError(
            f"--sync: {text!r}: the options of {name} are a mapping, not {options!r}",
            f"give '{name}:{options}', or '{{{name}: {{OPTION: VALUE}}}}'",
        )
    return {_absolute(name): options or {}}


def _absolute(name: str) -> str:
    own = OWN_MODEL.fullmatch(name)
    return f"{Path(own['file']).resolve()}{name[own.end('file') :]}" if own else name


def explain(error: OffbeatError, flags: Mapping[str, Any]) -> OffbeatError:
    """What is wrong with a run's `sync`, by the name of the demo's option that says it."""
    problem = error.problem
    for key in flags:
        problem = re.sub(rf"^sync\.\S+: {key}: ", f"{FLAGS[key]}: ", problem)
    remedy = error.remedy.replace("'sync: ", "'--sync ")
    return OffbeatError(re.sub(r"^sync[.:] ?", "--sync: ", problem), remedy, error.code)


def merge(
    model: str, given: Mapping[str, Any], flags: Mapping[str, Any], known: Mapping[str, Any], short: str
) -> dict[str, Any]:
    """The model's options with those that have an option of the demo's own.

    Args:
        model: as given.
        given: its options so far; the key "" holds the value of NAME:VALUE.
        flags: of FLAGS, those that were given.
        known: the options that the model has.
        short: which of them NAME:VALUE means.
    """
    given = {short if key == "" else key: value for key, value in given.items()}
    for key, value in flags.items():
        if key not in known:
            raise OffbeatError(f"{FLAGS[key]}: {model} has no option '{key}'", "leave it out", ExitCode.USAGE)
        if key in given:
            raise OffbeatError(
                f"{FLAGS[key]} {value}: --sync says {key}: {given[key]} already",
                "give it once",
                ExitCode.USAGE,
            )
    return {**given, **flags}
