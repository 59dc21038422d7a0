"""Which gate a worker stands at, and what becomes of the gates when the groups change.

Without groups there is one gate for all, the sole one, for as long as there are none.
With them each group has a gate. A group of the same members and slack that stands in the
old and in the new rules goes on as if nothing had been said, so that a regrouping of some
frees or holds up none of the others; but a round always begins anew. A group whose members are
not together in the new rules ends: they are free, and at their new gate their next commit is
late if it was made under the old rules. Who is in no group waits for nobody, and
nobody for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass

from offbeat_ps.gate import Gate
from offbeat_ps.rules import Rules

SOLE = 0
"""The key of the one gate for all."""


@dataclass(eq=False)
class Group:
    """Some workers and their gate. `key` names the updates that wait for it; no other group has it.

    `cycles` and `moves` are the gate's, as far as they were looked at.
    """

    key: int
    members: frozenset[str]  # of the sole one: empty
    gate: Gate
    cycles: int = 0
    moves: int = 0

    @property
    def closed(self) -> bool:
        """Of a round: is it over here? Where nobody is, nothing is left to wait for."""
        return self.gate.level > 0 or self.gate.deserted


class Groups:
    """The gates by worker. Times are monotonic seconds, passed in."""

    def __init__(self, now: float) -> None:
        self._sole: Group | None = Group(SOLE, frozenset(), Gate(now))
        self._groups: list[Group] = [self._sole]
        self._of: dict[str, Group] = {}
        self._keys = SOLE

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def of(self, worker: str) -> Group | None:
        """The group whose gate the worker's commits meet; None: it is in none."""
        return self._sole or self._of.get(worker)

    def holds(self, worker: str) -> bool:
        """Must this worker's reply wait?"""
        group = self.of(worker)
        return group is not None and group.gate.holds(worker)

    def arrive(self, worker: str, now: float) -> None:
        """A lease began."""
        if group := self.of(worker):
            group.gate.arrive(worker, now)

    def leave(self, worker: str, now: float) -> None:
        """A lease ended."""
        if group := self.of(worker):
            group.gate.leave(worker, now)

    def tick(self, now: float) -> None:
        for group in self._groups:
            group.gate.tick(now)

    def deadline_at(self) -> float | None:
        """When the next of the open cycles is to be closed."""
        times = (group.gate.deadline_at() for group in self._groups)
        return min((at for at in times if at is not None), default=None)

    @property
    def round_over(self) -> bool:
        """Of a round: did each gate close? (Not so while nobody at all is there.)"""
        return all(group.closed for group in self._groups) and any(g.gate.level > 0 for g in self._groups)

    def configure(
        self, rules: Rules, live: Set[str], done: Collection[str], now: float
    ) -> tuple[list[Group], list[Group]]:
        """New rules.

        Args:
            live: who holds a lease.
            done: who has committed in the new generation already.

        Returns:
            The groups that ended, and those whose cycle was broken off, for their clocks began anew.
        """
        former = list(self._groups)
        known = {group.members: group for group in former if group.key != SOLE}
        self._groups, self._of = [], {}
        restarted = []
        for _, rule in rules.gates():
            group = known.get(rule.members) if rules.groups else self._sole
            goes_on = (
                rules.groups
                and group is not None
                and group.gate.slack == rule.slack
                and not group.gate.once
                and not rules.once
            )
            group = group or self._new(rule.members if rules.groups else frozenset(), live, now)
            gate, restarts = group.gate, group.gate.restarts
            gate.configure(
                gate.generation if goes_on else rules.generation,  # in which its clocks began
                rule.slack,
                rule.deadline_s,
                rule.members,
                now,
                once=rules.once,
                done=done,
            )
            self._groups.append(group)
            if gate.restarts != restarts:
                restarted.append(group)
            if rules.groups:
                self._of.update(dict.fromkeys(rule.members, group))
        self._sole = None if rules.groups else self._groups[0]
        return [group for group in former if group not in self._groups], restarted

    def _new(self, members: frozenset[str], live: Set[str], now: float) -> Group:
        """A group whose members that are there all have a commit of older rules under way."""
        if members:
            self._keys += 1
        group = Group(self._keys if members else SOLE, members, Gate(now))
        for name in live & members if members else live:
            group.gate.arrive(name, now)
        return group
