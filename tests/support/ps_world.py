"""A run's decisions, carried out at once on a model of one number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.fold import Sums, When
from offbeat_ps.instructions import Ack, Add, Apply, Capture, DropSums, FoldSums, Instruction, Refuse, Reply
from offbeat_ps.rules import Commit, Rules
from offbeat_ps.run import Run
from offbeat_ps.store import Store

MANIFEST = Manifest((TensorSpec("weight", (1,)),))


@dataclass
class World:
    """Carries out a run's instructions at once; each update is the number 1 times its weight.

    Attributes:
        entered: what determines the weights' sum, in order: by worker, the weight of each update that
            was weighed on arrival; by lot, that of each fold at a gate.
    """

    rules: Rules = field(default_factory=Rules)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.run = Run("r", self.rules, self.now)
        self.store = Store(MANIFEST, np.zeros(1, "<f4"))
        self.sums: dict[int, Sums] = {}
        self.replies: dict[int, tuple[Ack, float]] = {}
        self.refusals: dict[int, Refuse] = {}
        self.captures: list[tuple[Capture, float]] = []
        self.tokens = 0
        self.values: dict[int, float] = {}
        self.senders: dict[int, str] = {}
        self.entered: list[tuple[str, float]] = []
        self.carry_out(self.run.seed(MANIFEST, self.now))
        self.run.open()

    @property
    def model(self) -> float:
        return float(self.store.snapshot().values[0])

    def carry_out(self, instructions: list[Instruction]) -> None:
        for i in instructions:
            if isinstance(i, Apply):
                self.store.apply(np.full(1, self.values[i.token], "<f4"), i.weight)
                self.entered.append((self.senders[i.token], i.weight))
            elif isinstance(i, Add):
                sums = self.sums.setdefault(i.lot, Sums())
                sums.add(np.full(1, self.values[i.token], "<f4"), i.weight)
                if self.run.fold.rule.when is not When.AT_GATE:
                    self.entered.append((self.senders[i.token], i.weight))
            elif isinstance(i, FoldSums):
                sums = self.sums.pop(i.lot)
                if self.run.fold.rule.when is When.AT_GATE:
                    self.entered.append((f"lot {i.lot}", i.scale * sums.weight))
                self.store.fold(sums, i.scale, i.share)
            elif isinstance(i, DropSums):
                del self.sums[i.lot]
            elif isinstance(i, Reply):
                assert i.token not in self.replies
                self.replies[i.token] = (i.ack, self.model)
            elif isinstance(i, Refuse):
                self.refusals[i.token] = i
            elif isinstance(i, Capture):
                self.captures.append((i, self.model))
        assert self.store.version == self.run.version

    def pull(self, *workers: str, incarnation: str = "first") -> None:
        for worker in workers:
            self.carry_out(self.run.pull(worker, incarnation, self.now))

    def commit(self, worker: str, sequence: int, value: float = 1.0, **fields: Any) -> int:
        self.tokens += 1
        self.values[self.tokens] = value
        self.senders[self.tokens] = worker
        made: dict[str, Any] = {"incarnation": "first", "generation": self.run.rules.generation, **fields}
        self.carry_out(
            self.run.commit(Commit(token=self.tokens, worker=worker, sequence=sequence, **made), self.now)
        )
        return self.tokens

    def tick(self, now: float, lost_s: float = 0.0) -> None:
        self.now = now
        self.carry_out(self.run.tick(now, lost_s))

    def ack(self, token: int) -> Ack:
        return self.replies[token][0]
