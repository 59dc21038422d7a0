"""Whose calls are heard at all: the right model, the newest process of its name, no offender."""

from __future__ import annotations

from offbeat_core.manifest import Manifest
from offbeat_ps.instructions import Refusal
from offbeat_ps.ledger import Entry, Ledger

OFFENCES = 3
"""Updates refused in a row after which a worker is quarantined, until its process is started anew."""

MAX_WORKERS = 10_000
"""Accounts in one run: what strangers can make the server remember is bounded."""


class Refused(Exception):
    """A call that gets no model."""

    def __init__(self, refusal: Refusal, details: str) -> None:
        super().__init__(details)
        self.refusal = refusal
        self.details = details


class Entrance:
    """Checks of one run. Each raises Refused."""

    def __init__(self, run_id: str, ledger: Ledger) -> None:
        self._run_id = run_id
        self._ledger = ledger

    def manifest(self, known: Manifest, digest: str, total_bytes: int | None = None) -> None:
        """MANIFEST where the worker's model is not the run's."""
        if digest != known.digest:
            raise Refused(
                Refusal.MANIFEST,
                f"manifest differs: this model's digest is {digest[:12] or '(none)'}, "
                f"that of run '{self._run_id}' is {known.digest[:12]}; "
                "the task must build the same model on each device",
            )
        if total_bytes is not None and total_bytes != known.total_bytes:
            raise Refused(
                Refusal.MANIFEST,
                f"manifest differs: the update has {total_bytes} bytes, "
                f"the model of run '{self._run_id}' {known.total_bytes}",
            )

    def newest(self, worker: str, incarnation: str) -> None:
        """OLDER_INCARNATION where another process has taken this one's place."""
        if self._ledger.is_older(worker, incarnation):
            raise Refused(Refusal.OLDER_INCARNATION, replaced(worker))

    def room(self, worker: str) -> None:
        """TOO_MANY where there is no account for one more."""
        if self._ledger.get(worker) is None and len(self._ledger.entries) >= MAX_WORKERS:
            raise Refused(Refusal.TOO_MANY, f"run '{self._run_id}' has {MAX_WORKERS} workers already")

    def quarantine(self, worker: str, entry: Entry) -> None:
        """QUARANTINED where too many of its updates were refused."""
        if entry.quarantined:
            raise Refused(
                Refusal.QUARANTINED,
                f"worker '{worker}' is quarantined: {OFFENCES} of its updates in a row were refused, "
                f"the last because {entry.quarantined}; mend the device and start its worker anew",
            )

    def account(self, worker: str, incarnation: str) -> Entry:
        """Of one that may commit. OLDER_INCARNATION, NOT_PULLED, QUARANTINED."""
        self.newest(worker, incarnation)
        entry = self._ledger.get(worker)
        if entry is None or entry.incarnation != incarnation:
            raise Refused(
                Refusal.NOT_PULLED, f"worker '{worker}' has not pulled the model of run '{self._run_id}'"
            )
        self.quarantine(worker, entry)
        return entry


def replaced(worker: str) -> str:
    """Why an older process is refused."""
    return f"worker '{worker}': a newer process of this name took its place"
