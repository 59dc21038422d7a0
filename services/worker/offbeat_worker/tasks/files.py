"""Which task files there are: their names and digests. Runs none of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat_core.errors import OffbeatError
from offbeat_core.usercode import SourceFile

BUILTIN = {
    "digits": Path(__file__).parent / "builtin" / "digits.py",
    "fashion-mnist": Path(__file__).parent / "builtin" / "fashion_mnist.py",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # as a run's `task.name` allows it


@dataclass(frozen=True)
class TaskFile(SourceFile):
    """A task's source, and the name by which runs ask for it."""

    name: str


def available(paths: Sequence[Path]) -> dict[str, str]:
    """Name -> SHA-256 of the source, of the built-in tasks and of the user's files.

    Raises OffbeatError if a file can't be read, is not valid Python, or has a name
    that another task has.
    """
    files = task_files(paths)
    for file in files.values():
        file.compile("task")
    return {name: file.digest for name, file in files.items()}


def find(name: str, paths: Sequence[Path]) -> TaskFile:
    """The file of one task. Raises OffbeatError as `available` does, and for an unknown name."""
    files = task_files(paths)
    if name not in files:
        raise OffbeatError(
            f"task: '{name}' is not known on this device",
            f"known here: {', '.join(sorted(files))}; add your own file to `tasks`",
        )
    return files[name]


def task_files(paths: Sequence[Path]) -> dict[str, TaskFile]:
    """All task files by name; the user's are called like the file without .py."""
    files = {name: TaskFile(path, path.read_bytes(), name) for name, path in BUILTIN.items()}
    for path in paths:
        file = _read(Path(path))
        # A run names the task alone, so that two names that look alike invite the wrong one.
        same = next((other for other in files.values() if _plain(other.name) == _plain(file.name)), None)
        if same and same.name in BUILTIN:
            raise OffbeatError(f"tasks: {path}: '{same.name}' is built in", "give your file another name")
        if same:
            raise OffbeatError(
                f"tasks: {path}: {same.path} is called '{same.name}' as well", "rename one of the two files"
            )
        files[file.name] = file
    return files


def _plain(name: str) -> str:
    return name.replace("_", "-").lower()


def _read(path: Path) -> TaskFile:
    if path.suffix != ".py" or not _NAME.fullmatch(path.stem):
        raise OffbeatError(
            f"tasks: {path}: cannot name a task",
            "name the file with letters, digits, _ and -, and .py at its end: it names the task",
        )
    try:
        return TaskFile(path, path.read_bytes(), path.stem)
    except OSError as error:
        raise OffbeatError(
            f"tasks: {path}: cannot be read: {error.strerror}", "give the path of a task's file (.py)"
        ) from error
