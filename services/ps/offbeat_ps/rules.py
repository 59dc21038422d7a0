"""What goes into a run's decisions: the scheduler's rules, and commits."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat_ps.fold import FoldRule, When
from offbeat_ps.inspection import Finding


@dataclass(frozen=True)
class Rules:
    """What the scheduler asks of the server. Durations in seconds."""

    generation: int = 0
    slack: int | None = None
    deadline_s: float | None = None
    cohort: tuple[str, ...] = ()  # empty: every trainer with a lease
    fold: FoldRule = field(default_factory=FoldRule)
    membership_window_s: float = 60.0
    lease_s: float = 10.0
    checkpoint_every_s: float = 30.0

    def __post_init__(self) -> None:
        if self.fold.when is When.AT_GATE and self.slack is None and self.deadline_s is None:
            raise ValueError("fold.when: AT_GATE needs a gate; give gate.slack or gate.deadline_s")


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
    train_loss: float = 0.0
    finding: Finding = field(default_factory=Finding)
    model_norm: float = 0.0  # needed only where the finding's norm is above `Run.norm_limit`
