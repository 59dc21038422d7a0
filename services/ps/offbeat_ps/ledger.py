"""What each worker committed, so that each update counts once.

A commit carries the worker's incarnation (made anew by each process) and a sequence
number that a retry keeps. A number that was settled, applied or refused, is never
settled again. A newer process of the same name takes over by pulling; what its ghost
still sends is refused.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

REMEMBERED_INCARNATIONS = 64
"""So many older processes of one worker are still recognised as older."""


@dataclass
class Entry:
    """One worker's account in a run. Counts go on across its incarnations.

    `sequence` is the highest settled number of the present incarnation; `refusal` says
    why that one was refused, or is empty. `weight` and `checkpoint_epoch` belong to it too.
    """

    incarnation: str
    sequence: int = 0
    refusal: str = ""
    weight: float = 0.0
    checkpoint_epoch: int = 0
    commits: int = 0
    steps: int = 0
    samples: int = 0
    staleness: int = 0
    train_loss: float = 0.0
    generation: int = 0
    refused: int = 0
    offences: int = 0  # refused in a row
    quarantined: str = ""  # why
    older: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED_INCARNATIONS))


class Ledger:
    """Accounts by worker."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def get(self, worker: str) -> Entry | None:
        return self.entries.get(worker)

    def is_older(self, worker: str, incarnation: str) -> bool:
        """Did another process take this one's place?"""
        entry = self.entries.get(worker)
        return entry is not None and incarnation in entry.older

    def enter(self, worker: str, incarnation: str) -> Entry:
        """Open the account, or hand it over to a newer incarnation: its numbers count from 1 again."""
        entry = self.entries.get(worker)
        if entry is None:
            entry = self.entries[worker] = Entry(incarnation)
        elif entry.incarnation != incarnation:
            entry.older.append(entry.incarnation)
            entry.incarnation = incarnation
            entry.sequence, entry.refusal, entry.weight = 0, "", 0.0
            entry.offences, entry.quarantined = 0, ""
        return entry
