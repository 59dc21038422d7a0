"""The parameter server in a simulation: the real decisions and the real store, without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.fold import FoldRule, Sums, Weight, When
from offbeat_ps.instructions import Add, Apply, DropSums, FoldSums, Instruction, Refuse, Reply
from offbeat_ps.run import Commit, Rules, Run
from offbeat_ps.store import Snapshot, Store
from offbeat_scheduler.sync import Plan

INCARNATION = "simulated"


def rules_of(plan: Plan, generation: int, lease_s: float) -> Rules:
    """A plan as the server is told it."""
    return Rules(
        generation=generation,
        slack=plan.gate.slack,
        deadline_s=plan.gate.deadline_s,
        cohort=plan.cohort,
        fold=FoldRule(
            When(plan.fold.when), Weight(plan.fold.weight), plan.fold.every_k, plan.fold.server_rate
        ),
        membership_window_s=plan.membership_window_s,
        lease_s=lease_s,
        checkpoint_every_s=float("inf"),
    )


@dataclass(frozen=True)
class Answer:
    """A commit's reply."""

    worker: str
    snapshot: Snapshot
    at_s: float


class Hub:
    """Carries out what `offbeat_ps.run.Run` decides.

    Args:
        initial: the model, float32 of shape (elements,).
        answer: called with each reply, at once or when a gate releases it.
    """

    def __init__(
        self, initial: np.ndarray, rules: Rules, now: float, answer: Callable[[Answer], None]
    ) -> None:
        manifest = Manifest((TensorSpec("model", initial.shape),))
        self.run = Run("simulated", rules, now)
        self.run.seed(manifest, now)
        self.store = Store(manifest, initial.copy())
        self._sums = Sums()
        self._updates: dict[int, np.ndarray] = {}
        self._tokens = 0
        self._sequence: dict[str, int] = {}
        self._answer = answer

    def configure(self, rules: Rules, now: float) -> None:
        self._carry_out(self.run.configure(rules, now), now)

    def pull(self, worker: str, now: float) -> Snapshot:
        """A trainer takes the model, and a lease with it."""
        self._carry_out(self.run.pull(worker, INCARNATION, now), now)
        return self.store.snapshot()

    def renew(self, worker: str, now: float) -> None:
        self._carry_out(self.run.renew(worker, INCARNATION, now)[1], now)

    def commit(
        self, worker: str, update: np.ndarray, base: int, steps: int, samples: int, now: float
    ) -> None:
        """An update has arrived; its reply comes through `answer`. `update` is taken over."""
        self._tokens += 1
        self._sequence[worker] = self._sequence.get(worker, 0) + 1
        self._updates[self._tokens] = update
        commit = Commit(
            self._tokens,
            worker,
            INCARNATION,
            self._sequence[worker],
            base_version=base,
            generation=self.run.rules.generation,
            steps=steps,
            samples=samples,
        )
        self._carry_out(self.run.commit(commit, now), now)

    def tick(self, now: float) -> None:
        """Leases end and gates close by themselves."""
        due = self.run.wake_at()
        if due is not None and due <= now:
            self._carry_out(self.run.tick(now), now)

    def commits(self, worker: str) -> int:
        """c_i."""
        entry = self.run.ledger.get(worker)
        return entry.commits if entry else 0

    def _carry_out(self, instructions: list[Instruction], now: float) -> None:
        for instruction in instructions:
            match instruction:
                case Apply(token, weight):
                    self.store.apply(self._updates.pop(token), weight)
                case Add(token, weight):
                    self._sums.add(self._updates.pop(token), weight)
                case FoldSums(scale, part):
                    self.store.fold(self._sums, scale, part)
                case DropSums():
                    self._sums.clear()
                case Reply(token, worker, _):
                    self._updates.pop(token, None)
                    self._answer(Answer(worker, self.store.snapshot(), now))
                case Refuse(token):
                    self._updates.pop(token, None)
                case _:
                    pass  # checkpoints: nothing is kept on disk here
