"""Errors in a task's own code, told by the user's own line and without our frames."""

from __future__ import annotations

from pathlib import Path

from offbeat_core.errors import OffbeatError
from offbeat_core.usercode import LONGEST_MESSAGE, line_of
from offbeat_worker.tasks.files import BUILTIN


def explain(error: BaseException, path: Path, doing: str) -> OffbeatError:
    """What a task's own code raised, in a line or two. The second line of its message is the remedy."""
    if isinstance(error, OffbeatError):
        return error
    message, _, rest = str(error).strip().partition("\n")
    message, remedy = message[:LONGEST_MESSAGE], rest.strip().partition("\n")[0][:LONGEST_MESSAGE]
    builtin = next((name for name, file in BUILTIN.items() if file == path), None)
    if builtin and remedy:  # meant for whoever runs it, who has no use for a line of ours
        return OffbeatError(f"task '{builtin}': {message}", remedy)
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return OffbeatError(
        f"{line_of(error, path) or path}: {doing}: {said}",
        remedy or "correct the task's file; --debug shows the whole way there",
    )
