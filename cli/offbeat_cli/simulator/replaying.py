"""`offbeat replay`: feed a run's event log to fresh decision objects, and compare what they decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from offbeat_core.errors import ExitCode, OffbeatError
from offbeat_scheduler.models import ANYWHERE, make_model
from offbeat_scheduler.replay import Step
from offbeat_scheduler.replay import replay as steps_of

LONGEST = 200
"""Characters of a decision that are shown."""


def replayed(path: Path) -> tuple[int, int]:
    """(events, of these: after how many the decisions differ from those recorded). Raises OffbeatError."""
    same = [step.is_same for step in _steps(path)]
    return len(same), same.count(False)


def replay(path: Path) -> int:
    """Print whether the decisions are the recorded ones, or the first that differs; returns the exit code.

    Args:
        path: events.jsonl, or a folder that has it.
    """
    events = decisions = 0
    last_s = 0.0
    for step in _steps(path):
        if not step.is_same:
            print(_difference(step))
            return ExitCode.FAILED
        events += 1
        decisions += len(step.recorded)
        last_s = step.t
    print(f"the same: {decisions} decisions upon {events} events in {last_s:.1f} s")
    return ExitCode.DONE


def _steps(path: Path) -> Iterator[Step]:
    if path.is_dir():
        path = path / "events.jsonl"
    try:
        with path.open(encoding="utf-8") as lines:
            yield from steps_of(lines, partial(make_model, own_files=ANYWHERE))
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "is not text"
        raise OffbeatError(f"{path}: {said}", "give the event log of a run, events.jsonl") from error


def _difference(step: Step) -> str:
    pairs = zip(
        [*step.recorded, *[None] * len(step.replayed)],
        [*step.replayed, *[None] * len(step.recorded)],
        strict=False,
    )
    recorded, replayed = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    where = ""
    if recorded and replayed and recorded.get("decision") == replayed.get("decision"):
        where, recorded, replayed = _first(recorded, replayed, str(recorded["decision"]))
    return "\n".join(
        [
            f"differs at {step.t:.3f} s, upon {_shown(step.event)}",
            *([f"  in {where}"] if where else []),
            f"  recorded: {_shown(recorded)}",
            f"  replayed: {_shown(replayed)}",
        ]
    )


def _first(recorded: Any, replayed: Any, where: str) -> tuple[str, Any, Any]:
    """The innermost value that differs, and where it stands."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        keys = [*recorded, *(key for key in replayed if key not in recorded)]
        key = next(key for key in keys if recorded.get(key) != replayed.get(key))
        return _first(recorded.get(key), replayed.get(key), f"{where}.{key}")
    return where, recorded, replayed


def _shown(values: Any) -> str:
    text = "nothing" if values is None else json.dumps(values)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"
