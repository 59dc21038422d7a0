"""Commit counts that stay equal: what each device should have committed by when, and how it catches up.

At a checkpoint the common target grows by the segment's commits, and each device is given
what it lacks. A commit that is due but still on its way is no lack: a device is measured
against what was due a little earlier, by the time that a step and a commit take it. So
nothing oscillates, and a commit that was really missed is made up for all the same.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from offbeat_scheduler.models.shown import Shown
from offbeat_scheduler.search import Segment

LATE_TIMES = 2.0
"""A commit is missing if it was not counted within this times the step and the commit that it takes."""

CATCH_UP = 2
"""A device commits at most so many times as often as the others."""

ABSENT_PERIODS = 4
"""Who lacks the commits of more than so many check periods was away: that is not caught up."""

KEPT_PIECES = 16
EPSILON = 1e-6


@dataclass
class _Piece:
    start_s: float
    base: int
    interval_s: float

    def due(self, moment_s: float) -> int:
        return self.base + max(0, math.floor((moment_s - self.start_s) / self.interval_s + EPSILON))


class Ledger:
    """How many commits are due by when; piecewise on grids."""

    def __init__(self, pieces: tuple[_Piece, ...] = ()) -> None:
        self._pieces = deque((_Piece(p.start_s, p.base, p.interval_s) for p in pieces), maxlen=KEPT_PIECES)

    def copy(self) -> Ledger:
        return Ledger(tuple(self._pieces))

    def due(self, moment_s: float) -> int:
        """Commits whose deadline is not later than `moment_s`."""
        for piece in reversed(self._pieces):
            if piece.start_s <= moment_s:
                return piece.due(moment_s)
        return self._pieces[0].base if self._pieces else 0

    def shift(self, commits: int) -> None:
        """So many more were due all along."""
        for piece in self._pieces:
            piece.base += commits

    def go_on(self, start_s: float, interval_s: float) -> None:
        """From `start_s` on, at this interval."""
        self._pieces.append(_Piece(start_s, self.due(start_s), interval_s))


@dataclass
class Account:
    """One device's ledger, and what was seen of its commits.

    A count tells exactly how far a device is behind where no deadline lies within the time
    that a commit may be on its way; otherwise it only bounds it.

    Args:
        offset: what the device's count lacks of the common one for reasons that nobody has to
            make up for (it joined late, was away, or can't keep pace).
        counted: c_i when last seen.
        opened_s: counts from before say nothing.
        shown: what the missed deadlines say of its pace.
        behind: commits that it lacks, as last known exactly.
        settled_s: when the books were last closed.
    """

    ledger: Ledger
    offset: int
    counted: int
    joined_s: float
    opened_s: float
    shown: Shown
    behind: int = 0
    settled_s: float = 0.0

    @classmethod
    def open(cls, target: Ledger, now_s: float, commits: int, joined_s: float, shown: Shown) -> Account:
        """For a device that begins now: on a par with all others, whatever it committed before."""
        offset = target.due(now_s) - commits
        return cls(target.copy(), offset, commits, joined_s, now_s, shown, settled_s=now_s)

    def see(self, commits: int, counted_at_s: float, need_s: float) -> None:
        """A count that held at `counted_at_s`; a commit and the step that it waits for take `need_s`."""
        self.counted = commits
        late_s = LATE_TIMES * need_s
        if counted_at_s - late_s < self.opened_s:
            return
        due = self.ledger.due(counted_at_s)
        if self.ledger.due(counted_at_s - late_s) == due:
            self.behind = due - commits - self.offset

    def missing(self, counted_at_s: float, need_s: float) -> int:
        """How many commits are missing at least, of those that the books still say to be due."""
        return self.ledger.due(counted_at_s - LATE_TIMES * need_s) - self.counted - self.offset

    def settle(self, now_s: float, counted_at_s: float, need_s: float, segment: Segment) -> None:
        """Put in the books what is missing, or was made too often, in the segment up to now.

        A surplus beyond what it asks for is an error of counting, not of pace.
        """
        at_least = self.missing(counted_at_s, need_s)
        at_most = self.ledger.due(now_s) - self.counted - self.offset
        behind = min(max(self.behind, at_least), at_most)
        dealt = self.ledger.due(now_s) - self.ledger.due(self.settled_s)
        span_s, self.settled_s, self.behind = now_s - self.settled_s, now_s, 0
        if -behind > segment.commits:
            self.offset += behind
            return
        self.ledger.shift(-behind)
        if need_s <= segment.interval_s:  # else its measured times explain what is missing
            self.shown.take(now_s, segment.interval_s, span_s, dealt, behind, need_s)

    def forgive(self, target: Ledger, now_s: float, counted_at_s: float, need_s: float) -> None:
        """On a par with all others from now on."""
        self.ledger = target.copy()
        self.offset = target.due(max(0.0, counted_at_s - LATE_TIMES * need_s)) - self.counted
        self.opened_s, self.behind = now_s, 0


def share(target_after: int, due: int, commits: int, segment_s: float, need_s: float) -> int:
    """How many commits a device makes in a segment of `commits`: ΔC_i.

    Args:
        target_after: the common count at the segment's end.
        due: the device's own at its start.
        need_s: its step and commit time: it can't commit more often.
    """
    lacking = target_after - due
    possible = math.floor(segment_s / need_s + EPSILON) if need_s > 0 else CATCH_UP * commits
    return max(1, min(lacking, CATCH_UP * commits, max(commits, possible)))
