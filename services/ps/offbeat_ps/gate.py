"""Who must wait for whom: slack, barrier, deadline.

Each member of the cohort has a clock: its commits in this generation. A member may be
`slack` commits ahead of the slowest; its reply is held while it is further ahead. When
the slowest advances, a cycle closes (and with it, the fold of those that arrived). A
deadline closes a cycle without those that are missing; their commits, when they come,
are late: they count in the next fold and move no clock.

Nobody is waited for who holds no lease. A joiner starts at the cohort's minimum; one
that comes back starts where it was, or there. A new generation (or slack) releases
everybody and restarts all clocks, so no change of model or membership can stall.

A generation may be one round (`once`): each member commits once. Its only cycle closes
when each member that is there has, with or without a slack, or at the deadline, or when
the last one leaves after somebody committed. What comes of a member beyond that, or of an
older generation, is late. Who already committed in a round of which this gate hears only
now is named to `configure`, and is not waited for again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum


class Passage(Enum):
    """How a commit met the gate."""

    ON_TIME = "on_time"
    LATE = "late"  # its cycle, or its generation, closed before it came
    OUTSIDE = "outside"  # nobody waits for this worker


class Gate:
    """Decides who waits. Times are monotonic seconds, passed in."""

    def __init__(self, now: float) -> None:
        self.generation = 0
        self.slack: int | None = None
        self.deadline_s: float | None = None
        self.once = False
        self.level = 0  # the least clock of the members: the cycle that is open
        self.cycles = 0  # closed so far, in all generations
        self.restarts = 0  # of the clocks, which break a cycle off
        self.moves = 0  # of anything that may free somebody who is held: level, members, rules
        self._cohort: frozenset[str] = frozenset()  # empty: everybody
        self._present: set[str] = set()
        self._clocks: dict[str, int] = {}  # of this generation, the absent ones' too
        self._missed: set[str] = set()  # a deadline passed while they were under way
        self._stragglers: set[str] = set()  # under way with a commit of an older generation
        self._slowest = 0  # how many members' clocks stand at `level`
        self._arrived = 0  # commits since the cycle opened
        self._opened = now

    # ---- what changes --------------------------------------------------------

    def configure(
        self,
        generation: int,
        slack: int | None,
        deadline_s: float | None,
        cohort: Iterable[str],
        now: float,
        *,
        once: bool = False,
        done: Collection[str] = (),
    ) -> None:
        """New rules. Another generation or slack releases everybody and restarts the clocks.

        Args:
            once: the generation is one round.
            done: who has committed in it already.
        """
        restart = (generation, slack, once) != (self.generation, self.slack, self.once)
        if restart:
            self._stragglers = {name for name in self._present if not self.holds(name)}
            self._clocks.clear()
            self._missed.clear()
            self.level = 0
            self.restarts += 1
            self._open(now)
        self.generation, self.slack, self.deadline_s, self.once = generation, slack, deadline_s, once
        self._cohort = frozenset(cohort)
        if once:
            self._clocks |= {name: max(self._clocks.get(name, 0), 1) for name in done}
        for name in self._members():
            self._enter(name)
        self._settle(now)

    def arrive(self, name: str, now: float) -> None:
        """A lease began."""
        self._present.add(name)
        if self._is_member(name):
            self._enter(name)
        self._settle(now)

    def leave(self, name: str, now: float) -> None:
        """A lease ended."""
        self._present.discard(name)
        self._missed.discard(name)
        self._stragglers.discard(name)
        self._settle(now)

    def commit(self, name: str, generation: int, now: float) -> Passage:
        """An update arrived from somebody with a lease, made under `generation`."""
        self._arrived += 1
        old = generation < self.generation and (self.once or name in self._stragglers)
        self._stragglers.discard(name)
        if not self._is_member(name):
            passage = Passage.OUTSIDE
        elif not self._counts:
            passage = Passage.ON_TIME
        elif old:
            passage = Passage.LATE
        elif name in self._missed:
            self._missed.discard(name)
            passage = Passage.LATE
        elif self.once and self._clocks[name] > 0:
            passage = Passage.LATE
        else:
            # Only the last of the slowest can advance the cycle: the others cost no look at all members.
            self._slowest -= self._clocks[name] == self.level
            self._clocks[name] += 1
            passage = Passage.ON_TIME
            if self._slowest == 0:
                self._settle(now)
        self.tick(now)
        return passage

    def tick(self, now: float) -> None:
        """Close the cycle if its deadline is due and somebody arrived. With nobody there it stays open."""
        due = self.deadline_at()
        if due is None or now < due:
            return
        if self._counts:
            for name in self._members():
                if self._clocks[name] == self.level:
                    self._clocks[name] += 1
                    self._missed.add(name)
            self._settle(now)
        else:
            self._close(now)

    # ---- what holds ------------------------------------------------------------

    def holds(self, name: str) -> bool:
        """Must this worker's reply wait?"""
        return (
            self.slack is not None and self._is_member(name) and self._clocks[name] - self.level > self.slack
        )

    @property
    def deserted(self) -> bool:
        """Is there nobody for whom a cycle could close?"""
        return self._counts and not any(True for _ in self._members())

    @property
    def _counts(self) -> bool:
        """Do members have clocks?"""
        return self.slack is not None or self.once

    def deadline_at(self) -> float | None:
        """When the open cycle is to be closed; None while there is nothing to close."""
        if self.deadline_s is None:
            return None
        if self._counts:
            waiting = any(self._clocks[name] > self.level for name in self._members())
        else:
            waiting = self._arrived > 0
        return self._opened + self.deadline_s if waiting else None

    def _is_member(self, name: str) -> bool:
        return name in self._present and (not self._cohort or name in self._cohort)

    def _members(self) -> Iterable[str]:
        return (name for name in self._present if not self._cohort or name in self._cohort)

    def _enter(self, name: str) -> None:
        self._clocks[name] = max(self._clocks.get(name, 0), self.level)

    def _settle(self, now: float) -> None:
        """Members or clocks changed: close the cycle if the slowest has advanced."""
        self.moves += 1
        clocks = [self._clocks[name] for name in self._members()]
        if not clocks and self.once and any(self._clocks.get(name) for name in self._cohort or self._clocks):
            clocks = [1]  # those that had not committed have all left
        least = min(clocks, default=self.level)
        self._slowest = clocks.count(least)
        if least > self.level:
            self.level = least
            if self._counts:
                self._close(now)

    def _close(self, now: float) -> None:
        self.cycles += 1
        self._open(now)

    def _open(self, now: float) -> None:
        self._arrived = 0
        self._opened = now
