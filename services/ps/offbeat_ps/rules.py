"""What goes into a run's decisions: the scheduler's rules, and commits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from offbeat_ps.fold import FoldRule, When
from offbeat_ps.inspection import Finding


@dataclass(frozen=True)
class GroupRule:
    """Workers that wait for one another only, and their gate. Without members: everybody."""

    members: frozenset[str] = frozenset()
    slack: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class Rules:
    """What the scheduler asks of the server. Durations in seconds.

    Raises:
        ValueError: they contradict themselves; names the field.
    """

    generation: int = 0
    slack: int | None = None
    deadline_s: float | None = None
    cohort: tuple[str, ...] = ()  # empty: every trainer with a lease
    groups: tuple[GroupRule, ...] = ()  # instead of slack, deadline_s and cohort: several gates
    once: bool = False  # the generation is one round
    fold: FoldRule = field(default_factory=FoldRule)
    membership_window_s: float = 60.0
    lease_s: float = 10.0
    checkpoint_every_s: float = 30.0
    shares: Mapping[str, int] = field(default_factory=dict)  # samples dealt to each worker in this generation
    seed: int = 0  # of the deal

    def __post_init__(self) -> None:
        if self.groups and (self.cohort or self.slack is not None or self.deadline_s is not None):
            raise ValueError("groups: each has its own gate and members; give no gate and no cohort beside")
        seen: set[str] = set()
        for number, group in enumerate(self.groups):
            if not group.members:
                raise ValueError(f"groups[{number}].members: is empty; name who is in it")
            if twice := sorted(seen & group.members):
                raise ValueError(f"groups[{number}].members: '{twice[0]}' is in another group already")
            seen |= group.members
        for where, gate in self.gates():
            if gate.deadline_s is not None and not 0 < gate.deadline_s < math.inf:
                raise ValueError(f"{where}.deadline_s: {gate.deadline_s} is not a positive number of seconds")
            bare = gate.slack is None and gate.deadline_s is None and not self.once
            if self.fold.when is When.AT_GATE and bare:
                raise ValueError(f"fold.when: AT_GATE needs a gate; give {where}.slack or {where}.deadline_s")

    @cached_property
    def timed(self) -> bool:
        """Can a gate close by time alone?"""
        return any(gate.deadline_s is not None for _, gate in self.gates())

    def gates(self) -> list[tuple[str, GroupRule]]:
        """Each gate with the name of its field."""
        if self.groups:
            return [(f"groups[{number}].gate", group) for number, group in enumerate(self.groups)]
        return [("gate", GroupRule(frozenset(self.cohort), self.slack, self.deadline_s))]


@dataclass(frozen=True)
class Commit:
    """An update that has arrived whole. `token` names the open call."""

    token: int
    worker: str
    incarnation: str
    sequence: int
    base_version: int = 0
    generation: int = 0
    steps: int = 1
    samples: int = 1
    shard_samples: int = 1
    train_loss: float = 0.0
    finding: Finding = field(default_factory=Finding)
    model_norm: float = 0.0  # needed only where the finding's norm is above `Run.norm_limit`
