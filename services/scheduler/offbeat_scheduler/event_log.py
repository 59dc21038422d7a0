"""A run's log: what went into the decisions and what came out, as lines of JSON.

    {"t": 0.0, "event": "HubState", ...}        where the decisions start from
    {"t": 0.0, "event": "RunSubmitted", ...}    t: seconds since this one
    {"t": 1.25, "event": "WorkerReported", ...} then all events, each followed by
    {"t": 1.25, "decision": "SendTo", ...}      what was decided upon it

An event upon which an allocation was solved says in how many seconds, as "solve_s": for people, and not
read by a replay.

Nothing is held in memory. A disk that is full or read-only stops the log, not the run. A run
that fills `full_bytes` goes on in short, after a line that says so; it replays up to there:

    {"t": 86400.5, "event": "Abridged"}
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from offbeat_scheduler.abridged import Abridged
from offbeat_scheduler.events import Event, HubState, Instruction, plain, record
from offbeat_scheduler.timing import since

EVENTS = "events.jsonl"
SETTINGS = "run.yaml"
ABRIDGED = "Abridged"

FULL_BYTES = 256 * 1024 * 1024
"""Ten workers take about a day."""


class EventLog:
    """Writes one folder per run: events.jsonl and run.yaml.

    Args:
        folder: of all runs; None keeps nothing.
        keep_runs: so many newest ones stay.
        full_bytes: a run's log that is larger goes on abridged.
    """

    def __init__(self, folder: Path | None, keep_runs: int = 20, full_bytes: int = FULL_BYTES) -> None:
        self._folder = folder
        self._keep_runs = keep_runs
        self._full_bytes = full_bytes
        self._written = 0  # bytes of this run's log
        self._abridged: Abridged | None = None
        self._file: IO[str] | None = None
        self._submitted = 0.0
        self.run_id = ""
        self.problem = ""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def path(self, run_id: str) -> Path | None:
        """The log of a run, if it is kept."""
        if self._folder is None or not run_id or Path(run_id).name != run_id:
            return None
        path = self._folder / run_id / EVENTS
        return path if path.is_file() else None

    def begin(self, run_id: str, state: HubState, effective_yaml: str, now: float) -> None:
        """A run is about to be submitted at `now`."""
        self.end()
        self.run_id = run_id
        self._submitted = now
        self._written, self._abridged = 0, None
        self.problem = ""
        if self._folder is None:
            return
        try:
            self._prune()
            folder = self._folder / run_id
            folder.mkdir(parents=True)
            (folder / SETTINGS).write_text(effective_yaml, encoding="utf-8")
            self._file = (folder / EVENTS).open("w", encoding="utf-8")
        except OSError as error:
            self._fail(error)
        self._write(now, {"event": "HubState", **plain(state)})

    def add(self, event: Event, decisions: Iterable[Instruction], now: float, solve_s: float = 0.0) -> None:
        """An event and what was decided upon it. `solve_s`: seconds of an allocation that was."""
        if self._file is None:
            return
        if self._abridged is None and self._written >= self._full_bytes:
            self._abridged = Abridged()
            self._write(now, {"event": ABRIDGED})
        kept: Event | None = event
        if self._abridged is not None:
            kept = self._abridged.event(event, now)
            decisions = self._abridged.decisions(decisions)
        measured = {"solve_s": solve_s} if solve_s else {}
        self._write(now, *([record(kept) | measured] if kept else []), *map(record, decisions))

    def end(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                self._fail(error)

    def _write(self, now: float, *lines: dict[str, Any]) -> None:
        if self._file is None or not lines:
            return
        t = since(self._submitted, now)
        try:
            text = "".join(json.dumps({"t": t, **line}) + "\n" for line in lines)
            self._file.write(text)
            self._file.flush()
            self._written += len(text)  # ASCII
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.problem = f"folder: {self._folder}: the event log stopped: {error.strerror or error}"
        self._file = None

    def _prune(self) -> None:
        """Make room for one more run."""
        assert self._folder is not None
        logs = sorted(self._folder.glob(f"*/{EVENTS}"), key=lambda path: path.stat().st_mtime)
        for path in logs[: max(0, len(logs) - self._keep_runs + 1)]:
            shutil.rmtree(path.parent)
