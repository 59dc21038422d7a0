"""A live run's event log, fed to fresh decision objects."""

from __future__ import annotations

from pathlib import Path

from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay


def replayed(events: Path) -> tuple[int, int]:
    """(events, of these: after how many the decisions differ from those recorded).

    Raises OffbeatError where the file is no event log.
    """
    with events.open(encoding="utf-8") as lines:
        same = [step.is_same for step in replay(lines, make_model)]
    return len(same), same.count(False)
