"""The synchronization models: one file each, found by itself.

A model is a concrete `SyncModel` in a module of this package; its `name` (or one of its
`aliases`) is what a run file's `sync:` says. A new model is one new file here and nothing else; a user's
own is a file of the user's (`own.py`).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from offbeat_core.config import RunSettings, SyncSpec, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import own
from offbeat_scheduler.models.own import ANYWHERE
from offbeat_scheduler.sync import SyncModel

__all__ = ["ANYWHERE", "make_model", "models"]


@cache
def models() -> dict[str, type[SyncModel]]:
    """All models that Offbeat ships, by name."""
    found: dict[str, type[SyncModel]] = {}
    for entry in pkgutil.iter_modules(__path__, __name__ + "."):
        module = importlib.import_module(entry.name)
        for _, member in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(member, SyncModel)
                and not inspect.isabstract(member)
                and member.__module__ == module.__name__
            ):
                if member.name in found:
                    raise ValueError(f"two models are named {member.name}: {found[member.name]}, {member}")
                found[member.name] = member
    return dict(sorted(found.items()))


def make_model(spec: SyncSpec, run: RunSettings, own_files: Sequence[Path] = ()) -> SyncModel:
    """The model that a run asks for.

    Args:
        own_files: files, and folders of files, that may be loaded as a user's own model;
            `ANYWHERE` where the caller's user has named the file.

    Raises OffbeatError for an unknown one, or for bad options.
    """
    if spec.own is not None:
        return _make_own(spec, run, own_files)
    model = _by_name(spec.model)
    options = _options(model, spec)
    return model(validate(model.Options, options, f"sync.{spec.model}"), run)


def _by_name(name: str) -> type[SyncModel]:
    known = {**models(), **{alias: model for model in models().values() for alias in model.aliases}}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        raise OffbeatError(
            f"sync: '{name}' is not a synchronization model",
            f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(models())}, or FILE.py:CLASS",
        )
    return known[name]


def _make_own(spec: SyncSpec, run: RunSettings, own_files: Sequence[Path]) -> SyncModel:
    assert spec.own is not None
    file = own.find(spec.own[0], own_files)
    if spec.digest and spec.digest != file.digest:
        raise OffbeatError(
            f"sync.digest: {file.path} has the digest {file.digest[:12]}…, the run names {spec.digest[:12]}…",
            "it was edited since; bring back the file as it was, or leave the digest out",
        )
    model = own.load(file, spec.own[1])
    options = validate(model.Options, _options(model, spec), f"sync.{spec.model}")
    try:
        return model(options, run)
    except (Exception, SystemExit) as error:
        raise own.explain(error, file.path, f"sync: {model.__name__} could not be made") from error


def _options(model: type[SyncModel], spec: SyncSpec) -> Mapping[str, Any]:
    """The given options; the value of a short form by its name."""
    options = dict(spec.options)
    if "" in options:
        value = options.pop("")
        if not model.short_option:
            raise OffbeatError(
                f"sync: '{spec.model}:{value}': {model.name} takes no value", f"write 'sync: {spec.model}'"
            )
        options[model.short_option] = value
    return options
