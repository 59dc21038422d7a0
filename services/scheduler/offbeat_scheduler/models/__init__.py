"""The synchronization models: one file each, found by itself.

A model is a concrete `SyncModel` in a module of this package; its `name` is what a run
file's `sync:` says. A new model is one new file here and nothing else.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from functools import cache

from offbeat_core.config import RunSettings, SyncSpec, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.sync import SyncModel

__all__ = ["make_model", "models"]


@cache
def models() -> dict[str, type[SyncModel]]:
    """All models by name."""
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


def make_model(spec: SyncSpec, run: RunSettings) -> SyncModel:
    """The model that a run asks for. Raises OffbeatError for an unknown one, or for bad options."""
    model = models().get(spec.model)
    if model is None:
        near = difflib.get_close_matches(spec.model, models(), 1)
        raise OffbeatError(
            f"sync: '{spec.model}' is not a synchronization model",
            f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(models())}",
        )
    options = dict(spec.options)
    if "" in options:
        value = options.pop("")
        if not model.short_option:
            raise OffbeatError(
                f"sync: '{spec.model}:{value}': {spec.model} takes no value", f"write 'sync: {spec.model}'"
            )
        options[model.short_option] = value
    return model(validate(model.Options, options, f"sync.{spec.model}"), run)
