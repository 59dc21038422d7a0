"""Errors in a task's own code, told by the user's own line and without our frames."""

from __future__ import annotations

import traceback
from pathlib import Path

from offbeat_core.errors import OffbeatError

LONGEST = 300
"""Characters of a message that are shown: some of torch's fill a screen."""


def place(error: BaseException, path: Path) -> str:
    """'file:line' of the innermost line of the task's file that led to the error, or ''."""
    lines = [
        f"{path}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return lines[-1] if lines else ""


def explain(error: BaseException, path: Path, doing: str) -> OffbeatError:
    """What a task's own code raised, in a line or two. Of its message the second line is the remedy."""
    if isinstance(error, OffbeatError):
        return error
    message, _, remedy = (line[:LONGEST] for line in str(error).strip().partition("\n"))
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return OffbeatError(
        f"{place(error, path) or path}: {doing}: {said}",
        remedy.strip().partition("\n")[0] or "correct the task's file; --debug shows the whole way there",
    )
