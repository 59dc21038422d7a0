"""Feed a recorded log to fresh decision objects: what they decide must be what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from offbeat_core import __version__
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.event_log import ABRIDGED
from offbeat_scheduler.events import HubState, read_event, record
from offbeat_scheduler.hub import Hub, MakeModel

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, json_format.ParseError)
"""Raised for lines that are not what this version writes."""


@dataclass(frozen=True)
class Step:
    """One event, the decisions that were recorded upon it, and those of the replay."""

    t: float
    event: dict[str, Any]
    recorded: list[dict[str, Any]]
    replayed: list[dict[str, Any]]

    @property
    def is_same(self) -> bool:
        return self.recorded == self.replayed


def replay(lines: Iterable[str], make_model: MakeModel) -> Iterator[Step]:
    """Step by step, up to where the log is abridged. Raises OffbeatError where the lines are no event log."""
    steps = _read(lines)
    t, first, _ = next(steps, (0.0, {}, []))
    if first.get("event") != "HubState":
        raise OffbeatError(
            "event log: the first line is no HubState", "give an events.jsonl of the scheduler"
        )
    recorded_by = str(first.get("offbeat_version") or "an unknown version")
    version = f"it was recorded by offbeat {recorded_by}, this is {__version__}"
    try:
        hub = Hub(HubState.read(first), make_model)
    except UNREADABLE as error:
        raise OffbeatError(
            f"event log: its HubState can't be read: {type(error).__name__}: {error}", version
        ) from error
    for t, event, recorded in steps:
        try:
            decided = [record(instruction) for instruction in hub.handle(read_event(event), t)]
        except UNREADABLE as error:
            raise OffbeatError(
                f"event log: the {event.get('event', 'event')} at {t:g} s can't be taken in: "
                f"{type(error).__name__}: {error}",
                version,
            ) from error
        yield Step(t, event, recorded, json.loads(json.dumps(decided)))


def _read(lines: Iterable[str]) -> Iterator[tuple[float, dict[str, Any], list[dict[str, Any]]]]:
    """(t, event, its decisions), as far as all are there.

    A last line that was cut off is left out, with its event.
    """
    event: dict[str, Any] | None = None
    t, decisions = 0.0, []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            return
        try:
            values = json.loads(line)
            at = float(values.pop("t"))
        except (*UNREADABLE, RecursionError) as error:
            raise OffbeatError(f"event log: line {number} is no event: {line[:60]!r}") from error
        if "decision" in values:
            decisions.append(values)
            continue
        if event is not None:
            yield t, event, decisions
        if values.get("event") == ABRIDGED:
            return
        t, event, decisions = at, values, []
    if event is not None:
        yield t, event, decisions
