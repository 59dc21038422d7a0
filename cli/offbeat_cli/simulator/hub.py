"""The parameter server in a simulation: the real decisions and the real store, without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.fold import FoldRule, Weight, When
from offbeat_ps.inspection import inspect
from offbeat_ps.instructions import Add, Apply, Capture, Instruction, Outcome, Refuse, Reply
from offbeat_ps.model import Model
from offbeat_ps.rules import Commit, GroupRule, Rules
from offbeat_ps.run import Run
from offbeat_ps.store import Snapshot, norm
from offbeat_scheduler.sync import Plan

INCARNATION = "simulated"


def rules_of(plan: Plan, generation: int, lease_s: float) -> Rules:
    """A plan as the server is told it."""
    fold = plan.fold
    return Rules(
        generation=generation,
        slack=plan.gate.slack,
        deadline_s=plan.gate.deadline_s,
        cohort=plan.cohort,
        groups=tuple(
            GroupRule(frozenset(group.members), group.gate.slack, group.gate.deadline_s)
            for group in plan.groups
        ),
        once=plan.round is not None,
        fold=FoldRule(
            When(fold.when), Weight(fold.weight), fold.every_k, fold.server_rate, fold.staleness_power
        ),
        membership_window_s=plan.membership_window_s,
        lease_s=lease_s,
        checkpoint_every_s=float("inf"),
    )


@dataclass(frozen=True)
class Answer:
    """A commit's reply. `snapshot` None: the worker gets no model any more."""

    worker: str
    snapshot: Snapshot | None
    at_s: float
    refused: bool = False  # the update did not enter


class Hub:
    """Carries out what `offbeat_ps.run.Run` decides.

    Args:
        initial: the model, float32 of shape (elements,).
        trainable: how many of its elements are trained; the others are buffers.
        answer: called with each reply, at once or when a gate releases it.
    """

    def __init__(
        self,
        initial: np.ndarray,
        rules: Rules,
        now: float,
        answer: Callable[[Answer], None],
        trainable: int | None = None,
    ) -> None:
        split = initial.size if trainable is None else trainable
        buffers = (TensorSpec("buffers", (initial.size - split,)),) if split < initial.size else ()
        manifest = Manifest((TensorSpec("model", (split,)),), buffers)
        self.run = Run("simulated", rules, now)
        self.run.seed(manifest, now)
        self._model = Model(manifest, initial.copy())
        self.store = self._model.store
        self._updates: dict[int, np.ndarray] = {}
        self._workers: dict[int, str] = {}  # by token
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
        self,
        worker: str,
        update: np.ndarray,
        base: int,
        steps: int,
        samples: int,
        now: float,
        *,
        generation: int | None = None,
        shard_samples: int = 1,
    ) -> None:
        """An update has arrived; its reply comes through `answer`. `update` is taken over.

        Args:
            generation: of the directive under which it was made; None: the one in force.
            shard_samples: that the device holds.
        """
        self._tokens += 1
        self._sequence[worker] = self._sequence.get(worker, 0) + 1
        self._updates[self._tokens] = update
        self._workers[self._tokens] = worker
        finding = inspect(update, self.store.manifest)
        suspicious = finding.norm > self.run.norm_limit(steps)
        commit = Commit(
            self._tokens,
            worker,
            INCARNATION,
            self._sequence[worker],
            base_version=base,
            generation=self.run.rules.generation if generation is None else generation,
            steps=steps,
            samples=samples,
            shard_samples=shard_samples,
            finding=finding,
            model_norm=self._norm() if suspicious else 0.0,
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

    @property
    def closed(self) -> int:
        """Cycles that gates have closed since the generation began; of a round 1 once it is over."""
        return self.run.closed

    def _norm(self) -> float:
        return norm(self.store.snapshot().values[: self.store.manifest.trainable_elements])

    def _carry_out(self, instructions: list[Instruction], now: float) -> None:
        # Checkpoints are left out: nothing is kept on disk here.
        work = [i for i in instructions if not isinstance(i, (Capture, Refuse))]
        snapshot, _ = self._model.carry_out(work, self._updates)
        for instruction in instructions:
            match instruction:
                case Reply(token, worker, ack):
                    self._forget(token)
                    self._answer(Answer(worker, snapshot, now, ack.outcome is Outcome.REFUSED))
                case Refuse(token):
                    self._answer(Answer(self._forget(token), None, now, refused=True))
                case Apply(token) | Add(token):
                    self._updates.pop(token)

    def _forget(self, token: int) -> str:
        """A call ended; whose it was."""
        self._updates.pop(token, None)
        return self._workers.pop(token)
