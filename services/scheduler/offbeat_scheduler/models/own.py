"""A user's own synchronization model: one Python file on the scheduler's machine.

    sync: my_model.py:MyModel
    sync: {"my_model.py:MyModel": {patience: 3}}

A run comes over the network, and a model's file is executed: so it must be one that the
scheduler's own configuration allows (`models`), by its name or its path. What is executed
is what the digest is of.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import types
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from offbeat_core.config import Settings
from offbeat_core.errors import OffbeatError
from offbeat_core.usercode import LONGEST_MESSAGE, SourceFile, line_of
from offbeat_scheduler.sync import SyncModel

LARGEST_BYTES = 1 << 20
LONGEST_PATH = 4096

ANYWHERE: tuple[Path, ...] = (Path(Path.cwd().anchor),)
"""Any file: for commands that load what their own user names."""


class NoOptions(Settings):
    """Of an own model that declares none."""


def find(file: str, allowed: Sequence[Path]) -> SourceFile:
    """The file that a run names.

    A relative path is looked for in the allowed folders, among the allowed files by name, and in the
    working folder, in this order.

    Args:
        allowed: files, and folders with everything in them.

    Raises OffbeatError where it is not allowed, or can't be read. Of files that are not allowed, nothing
    is said, not even whether they exist.
    """
    if "\0" in file or len(file) > LONGEST_PATH:
        raise OffbeatError(f"sync: {file[:80]!r} is no path", "give the path of a model's file (.py)")
    places = [place.resolve() for place in allowed]
    folders = [place for place in places if place.is_dir() and place not in ANYWHERE]
    files = [place for place in places if not place.is_dir() and place.name == file]
    candidates = [path.resolve() for path in (*(folder / file for folder in folders), *files, Path(file))]
    permitted = [path for path in candidates if any(path.is_relative_to(place) for place in places)]
    if not permitted:
        raise OffbeatError(
            f"sync: {file} is none of the models that this scheduler may load",
            "on the scheduler's machine, add the file or its folder to `models`"
            + (f"; there are {_listed(places)}" if places else " (now empty)"),
        )
    path = next((path for path in permitted if os.path.isfile(path)), permitted[-1])
    if not os.path.exists(path):
        raise OffbeatError(f"sync: {file}: there is no such file", f"looked for: {path}")
    if not os.path.isfile(path):  # reading a pipe would wait for ever
        raise OffbeatError(f"sync: {path}: is not a file", "give the path of a model's file (.py)")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise OffbeatError(
            f"sync: {path}: cannot be read: {error.strerror}", "give the path of a model's file (.py)"
        ) from error
    if len(source) > LARGEST_BYTES:
        raise OffbeatError(f"sync: {path}: {len(source)} bytes are no model's file", "give another file")
    return SourceFile(path, source)


def _listed(places: Sequence[Path]) -> str:
    """What is there, by name."""
    names: set[str] = set()
    for place in places:
        names.update(path.name for path in place.glob("*.py")) if place.is_dir() else names.add(place.name)
    return ", ".join(sorted(names)[:10]) or "none"


def load(file: SourceFile, name: str) -> type[SyncModel]:
    """The class `name` of the file; "": the only model in it. Raises OffbeatError with file and line."""
    module = _executed(file)
    own = {
        key: member
        for key, member in vars(module).items()
        if inspect.isclass(member) and member.__module__ == module.__name__
    }
    usable = [
        key for key, member in own.items() if issubclass(member, SyncModel) and not inspect.isabstract(member)
    ]
    if not name:
        if len(usable) != 1:
            found = f"several models: {', '.join(usable)}" if usable else "no model"
            raise OffbeatError(
                f"sync: {file.path}: holds {found}",
                f"name one: {file.path.name}:{usable[0]}"
                if usable
                else "a model is a class made from SyncModel",
            )
        name = usable[0]
    member = vars(module).get(name)
    if member is None:
        near = difflib.get_close_matches(name, usable, 1)
        raise OffbeatError(
            f"sync: {file.path}: there is no '{name}' in it",
            f"did you mean '{near[0]}'?" if near else f"models in it: {', '.join(usable) or 'none'}",
        )
    if name not in own and inspect.isclass(member) and issubclass(member, SyncModel):
        raise OffbeatError(
            f"sync: {file.path}: '{name}' is only imported there", "name the model that it is from"
        )
    if not (inspect.isclass(member) and issubclass(member, SyncModel)):
        raise OffbeatError(
            f"sync: {file.path}: '{name}' is no synchronization model",
            "make it a class from offbeat_scheduler.sync.SyncModel",
        )
    if inspect.isabstract(member):
        missing = ", ".join(sorted(member.__abstractmethods__))
        raise OffbeatError(
            f"sync: {file.path}: '{name}' has no method '{missing}'", "write it; see docs/models.md"
        )
    return _completed(member, file)


def _completed(model: type[SyncModel], file: SourceFile) -> type[SyncModel]:
    """What a model need not say: its name is the class's, and it has no options."""
    path, model.digest = file.path, file.digest
    if not hasattr(model, "name"):
        model.name = model.__name__
    if not hasattr(model, "Options"):
        model.Options = NoOptions
    if not (inspect.isclass(model.Options) and issubclass(model.Options, Settings)):
        raise OffbeatError(
            f"sync: {path}: {model.__name__}.Options is not made from Settings",
            "begin it with: class Options(Settings), of offbeat_core.config",
        )
    if model.short_option and model.short_option not in model.Options.model_fields:
        raise OffbeatError(
            f"sync: {path}: {model.__name__}.short_option: '{model.short_option}' is none of its options",
            f"its options: {', '.join(model.Options.model_fields) or 'none'}",
        )
    return model


@lru_cache(maxsize=64)
def _executed(file: SourceFile) -> types.ModuleType:
    """The file as a module; one that was edited is another module."""
    code = file.compile("model", "sync: ")
    module = types.ModuleType(f"offbeat_own_model_{file.path.stem}_{file.digest[:12]}")
    module.__file__ = str(file.path)
    sys.modules[module.__name__] = module  # where pydantic and dataclasses look names up
    try:
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise explain(error, file.path, "sync: while it was loaded") from error
    return module


def explain(error: BaseException, path: Path, doing: str) -> OffbeatError:
    """What the model's own code raised, with the user's own line."""
    if isinstance(error, OffbeatError):
        return error
    said = str(error).strip().partition("\n")[0][:LONGEST_MESSAGE]
    kind = type(error).__name__
    return OffbeatError(
        f"{doing}: {line_of(error, path) or path}: {kind}{': ' if said else ''}{said}",
        "correct the model's file",
    )
