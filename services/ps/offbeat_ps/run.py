"""One run's decisions: events and the time go in, instructions come out.

The object composes membership, ledger, gate, fold and the bound on norms. It touches no
vector, socket or clock: whoever drives it (the live server, the simulator) carries out
the instructions in the order in which they were given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from offbeat_core.manifest import Manifest
from offbeat_ps.entrance import OFFENCES, Entrance, Refused, replaced
from offbeat_ps.fold import Fold, When
from offbeat_ps.gate import Passage
from offbeat_ps.groups import SOLE, Group, Groups
from offbeat_ps.inspection import NormBound
from offbeat_ps.instructions import (
    Ack,
    Add,
    Apply,
    Capture,
    DropSums,
    FoldSums,
    Instruction,
    Outcome,
    Refusal,
    Refuse,
    Reply,
)
from offbeat_ps.ledger import Entry, Ledger
from offbeat_ps.membership import Membership
from offbeat_ps.pending import Pending, Update
from offbeat_ps.rules import Commit, Rules

WEIGHTLESS = "nothing is behind it (no samples or no local updates): all weights of its fold are zero"
"""Refused, but no offence: the worker did nothing wrong."""


@dataclass
class _Held:
    """An open call whose answer waits."""

    token: int
    ack: Ack


@dataclass
class Counters:
    """Of this run, since its start."""

    commits: int = 0
    duplicates: int = 0
    late: int = 0
    refused: int = 0
    leases_ended: int = 0
    cycles: int = 0


@dataclass
class Run:
    """The decisions of one run. `now` is monotonic seconds everywhere.

    Attributes:
        version: of the model, once all instructions so far are carried out.
        ready: the model may be pulled.
        open_epoch: the number of the next checkpoint; it will contain what is applied now.
        durable_epoch: of the newest checkpoint on disk; 0: none is.
    """

    run_id: str
    rules: Rules
    now: float
    manifest: Manifest | None = None
    version: int = 0
    open_epoch: int = 1
    durable_epoch: int = 0
    ready: bool = False
    over: bool = False
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self._entrance = Entrance(self.run_id, self.ledger)
        self.membership = Membership(self.rules.lease_s, self.rules.membership_window_s)
        self.groups = Groups(self.now)
        self.fold = Fold(self.rules.fold)
        self.held: dict[str, _Held] = {}  # by worker
        self._bound = NormBound(0)
        self._pending = Pending()
        self._closed = 0
        self._captured_at = self.now
        self._captured_state = -1
        self.groups.configure(self.rules, frozenset(), (), self.now)

    # ---- the run's course ------------------------------------------------------

    def configure(self, rules: Rules, now: float) -> list[Instruction]:
        """New rules. What waits is folded by the old ones if the way of folding changes, its group
        ends, or its cycle is broken off; late updates and a buffer of K wait on.
        """
        done: tuple[str, ...] = ()
        if rules.once and rules.generation >= self.rules.generation:
            done = tuple(n for n, e in self.ledger.entries.items() if e.generation >= rules.generation)
        if rules.generation != self.rules.generation:
            self._closed = 0
        ended, restarted = self.groups.configure(rules, self.membership.live, done, now)
        how = (self.rules.fold.when, self.rules.fold.weight)
        changed = how != (rules.fold.when, rules.fold.weight)
        out: list[Instruction] = []
        if self.fold.rule.when is When.AT_GATE:
            for group in [*ended, *self.groups]:
                cut_off = group in restarted and self._pending.in_cycle(group.key)
                if changed or cut_off or group in ended:
                    out += self._fold_waiting(group.key, now, group.members)
        elif changed:
            out += self._fold_waiting(SOLE, now)
        self.rules = rules
        self.membership.configure(rules.lease_s, rules.membership_window_s)
        if rules.fold != self.fold.rule:
            self.fold = Fold(rules.fold, self.fold)
        return out + self._settle(self.groups, now)

    def seed(self, manifest: Manifest, now: float) -> list[Instruction]:
        """The model is there. Its version 0 is to be on disk before anybody gets it: see `open`."""
        self.manifest = manifest
        self._bound = NormBound(manifest.trainable_elements)
        return self.capture(now)

    def open(self) -> None:
        """From now on the model may be pulled."""
        self.ready = True

    def finish(self, now: float) -> list[Instruction]:
        """The run is over: fold what waits, release everybody, write the last checkpoint."""
        out: list[Instruction] = []
        members = {group.key: group.members for group in self.groups}
        for lot in self._pending.lots():
            out += self._fold_waiting(lot, now, members.get(lot, frozenset()))
        self.over = True
        for worker in list(self.held):
            out.append(self._release(worker))
        return out + self.capture(now)

    def tick(self, now: float, lost_s: float = 0.0) -> list[Instruction]:
        """Let leases end, cycles close, checkpoints begin. Call it at `wake_at` or later.

        `lost_s`: so long the server itself did not run, and so heard of nobody (`Pauses`).
        """
        if lost_s:
            self.membership.excuse(lost_s, now)
        for worker in self.membership.expire(now):
            self.counters.leases_ended += 1
            self.groups.leave(worker, now)
        self.groups.tick(now)
        out = self._settle(self.groups, now)
        due = self._checkpoint_at()
        if due is not None and now >= due:
            out += self.capture(now)
        return out

    def wake_at(self) -> float | None:
        """When `tick` has something to do, if nothing happens before."""
        times = (self.membership.next_end(), self.groups.deadline_at(), self._checkpoint_at())
        return min((t for t in times if t is not None), default=None)

    # ---- checkpoints -------------------------------------------------------------

    def capture(self, now: float) -> list[Instruction]:
        """Begin a checkpoint: everything applied so far is in it."""
        if self.manifest is None:
            return []
        epoch = self.open_epoch
        self.open_epoch += 1
        self._captured_at = now
        self._captured_state = self._state()
        return [Capture(epoch, self.version, self.accounts())]

    def accounts(self) -> str:
        """Who committed what, as JSON."""
        accounts = {
            name: {
                "incarnation": entry.incarnation,
                "sequence": entry.sequence,
                "commits": entry.commits,
                "steps": entry.steps,
                "samples": entry.samples,
            }
            for name, entry in self.ledger.entries.items()
        }
        return json.dumps(accounts)

    @property
    def captured(self) -> bool:
        """Is everything that was applied in a checkpoint that is on disk, or on its way there?"""
        return self._captured_state == self._state()

    def durable(self, epoch: int) -> None:
        """This checkpoint is on disk."""
        self.durable_epoch = max(self.durable_epoch, epoch)

    def failed_capture(self) -> None:
        """It is not: the next one is written even if nothing changes until then."""
        self._captured_state = -1

    def _state(self) -> int:
        return self.version + self.counters.commits

    def _checkpoint_at(self) -> float | None:
        if self.manifest is None or self.over or self.captured:
            return None
        return self._captured_at + self.rules.checkpoint_every_s

    # ---- workers -----------------------------------------------------------------

    def check_manifest(self, digest: str, total_bytes: int | None = None) -> None:
        """Raises Refused (MANIFEST, NO_MODEL) where the worker's model is not the run's."""
        if self.manifest is None or not self.ready:
            raise Refused(Refusal.NO_MODEL, "no model yet")
        self._entrance.manifest(self.manifest, digest, total_bytes)

    def pull(self, worker: str, incarnation: str, now: float) -> list[Instruction]:
        """A trainer pulls: it takes a lease, and a new process takes over its name.

        Raises Refused (OLDER_INCARNATION, QUARANTINED, TOO_MANY).
        """
        if self.over:
            return []
        self._entrance.newest(worker, incarnation)
        self._entrance.room(worker)
        known = self.ledger.get(worker)
        out: list[Instruction] = []
        if known is not None and known.incarnation != incarnation and worker in self.held:
            out.append(Refuse(self.held.pop(worker).token, Refusal.OLDER_INCARNATION, replaced(worker)))
        entry = self.ledger.enter(worker, incarnation)
        self._entrance.quarantine(worker, entry)
        self._keep(worker, now)
        return out + self._settle_of(worker, now)

    def renew(self, worker: str, incarnation: str, now: float) -> tuple[bool, list[Instruction]]:
        """Keep a lease. False: pull again (unknown here, or over).

        Raises Refused (OLDER_INCARNATION).
        """
        if self.over:
            return False, []
        self._entrance.newest(worker, incarnation)
        entry = self.ledger.get(worker)
        if entry is None or entry.incarnation != incarnation or entry.quarantined:
            return False, []
        self._keep(worker, now)
        return True, self._settle_of(worker, now)

    def admit(self, worker: str, incarnation: str) -> Entry:
        """May this worker commit? Raises Refused (OVER, OLDER_INCARNATION, NOT_PULLED, QUARANTINED)."""
        if self.over:
            raise Refused(Refusal.OVER, f"run '{self.run_id}' is over")
        return self._entrance.account(worker, incarnation)

    def norm_limit(self, steps: int) -> float:
        """Above this norm of an update the model's own norm must be looked at."""
        return self._bound.limit(steps)

    def commit(self, commit: Commit, now: float) -> list[Instruction]:
        """An update has arrived: decide what becomes of it, and who may go on."""
        try:
            entry = self.admit(commit.worker, commit.incarnation)
        except Refused as refused:
            return [Refuse(commit.token, refused.refusal, refused.details)]
        self._keep(commit.worker, now)
        out: list[Instruction] = []
        earlier = self.held.pop(commit.worker, None)
        if earlier:
            out.append(Refuse(earlier.token, Refusal.SUPERSEDED, "a newer attempt took this call's place"))

        outcome = Outcome.APPLIED
        if commit.sequence <= entry.sequence:
            outcome = Outcome.DUPLICATE
            self.counters.duplicates += 1
        elif fault := self._fault(commit):
            self._settle_number(commit, entry, refusal=fault)
            if self.rules.once and (group := self.groups.of(commit.worker)):
                group.gate.commit(commit.worker, commit.generation, now)  # its round's commit all the same
            self._offend(commit.worker, entry, now)
        else:
            outcome = self._accept(commit, entry, now, out)
        if commit.sequence == entry.sequence and entry.refusal:
            outcome = Outcome.REFUSED
        self.held[commit.worker] = _Held(commit.token, _ack(commit.sequence, outcome, entry))
        return out + self._settle_of(commit.worker, now)

    def abandon(self, token: int) -> None:
        """The call was cut while its reply was held. Its update counts; a retry finds it settled."""
        for worker, held in self.held.items():
            if held.token == token:
                del self.held[worker]
                return

    # ---- a commit, step by step ------------------------------------------------------

    def _fault(self, commit: Commit) -> str:
        if commit.finding.fault:
            return commit.finding.fault
        return self._bound.fault(commit.finding.norm, commit.steps, commit.model_norm)

    def _accept(self, commit: Commit, entry: Entry, now: float, out: list[Instruction]) -> Outcome:
        """A fit update: apply it, or let it wait for its fold."""
        # The gate first: whoever waits for this worker waits no longer, whatever its update weighs.
        group = self.groups.of(commit.worker)
        passage = group.gate.commit(commit.worker, commit.generation, now) if group else Passage.OUTSIDE
        fold, when = self.fold, self.fold.rule.when
        staleness = self._staleness(commit)
        measure = fold.measure(samples=commit.samples, shard_samples=commit.shard_samples, steps=commit.steps)
        if when is When.AT_GATE and group:
            weight = fold.waiting(commit.worker, measure, staleness)
            self._settle_number(commit, entry)
            self._count(commit, entry)
            in_cycle = passage is Passage.ON_TIME and commit.generation <= self.rules.generation
            self._wait(commit, group.key, weight, measure, in_cycle, out)
            if passage is not Passage.ON_TIME:
                self.counters.late += 1
                return Outcome.LATE
            return Outcome.APPLIED
        weight = fold.arriving(commit.worker, measure, staleness, self.membership.active(now))
        if weight == 0.0:
            self._settle_number(commit, entry, refusal=WEIGHTLESS)
            return Outcome.REFUSED
        self._settle_number(commit, entry, weight=weight)
        self._count(commit, entry)
        if when is When.EVERY_K:
            if self._wait(commit, SOLE, weight, measure, False, out) >= fold.rule.every_k:
                out += self._fold_waiting(SOLE, now)
        else:
            # Also where groups fold at their gates and this worker is in none: it would wait for nobody.
            out.append(Apply(commit.token, weight))
            self.version += 1
        return Outcome.APPLIED

    def _staleness(self, commit: Commit) -> int:
        return max(0, self.version - commit.base_version)

    def _settle_number(self, commit: Commit, entry: Entry, weight: float = 0.0, refusal: str = "") -> None:
        entry.sequence, entry.weight, entry.refusal = commit.sequence, weight, refusal
        entry.generation = commit.generation
        entry.checkpoint_epoch = self.open_epoch
        entry.staleness = self._staleness(commit)
        if refusal:
            entry.refused += 1
            self.counters.refused += 1

    def _offend(self, worker: str, entry: Entry, now: float) -> None:
        entry.offences += 1
        if entry.offences >= OFFENCES:
            entry.quarantined = entry.refusal
            self.membership.drop(worker)
            self.groups.leave(worker, now)

    def _count(self, commit: Commit, entry: Entry) -> None:
        self._bound.accept(commit.finding.norm, commit.steps)
        entry.offences = 0
        entry.commits += 1
        entry.steps += commit.steps
        entry.samples += commit.samples
        entry.train_loss = commit.train_loss
        self.counters.commits += 1

    def _wait(
        self, commit: Commit, lot: int, weight: float, measure: float, in_cycle: bool, out: list[Instruction]
    ) -> int:
        """Let the update wait for its fold; how many wait with it."""
        out.append(Add(commit.token, weight, lot))
        update = Update(commit.worker, commit.incarnation, commit.sequence, weight, measure, in_cycle)
        return self._pending.add(lot, update)

    # ---- what follows from any event ---------------------------------------------------

    @property
    def closed(self) -> int:
        """Cycles closed since the generation began; of a round 1 once each of its gates has."""
        return int(self.groups.round_over) if self.rules.once else self._closed

    @property
    def waiting(self) -> int:
        """Updates that wait for their fold."""
        return len(self._pending)

    def _settle_of(self, worker: str, now: float) -> list[Instruction]:
        """What follows from an event of this worker: it moved no other gate than its own."""
        group = self.groups.of(worker)
        return self._settle([group] if group else [], now, worker)

    def _settle(self, groups: Iterable[Group], now: float, worker: str = "") -> list[Instruction]:
        """Fold where a cycle closed, then answer whoever need not wait.

        Args:
            worker: whose call may be new; the others are looked at only if a gate moved.
        """
        out: list[Instruction] = []
        when = self.fold.rule.when
        moved = False
        for group in groups:
            gate = group.gate
            closed = gate.cycles - group.cycles
            moved = moved or gate.moves != group.moves
            group.cycles, group.moves = gate.cycles, gate.moves
            self._closed += closed
            self.counters.cycles += closed
            if when is When.AT_GATE and (closed or gate.deserted):
                out += self._fold_waiting(group.key, now, group.members)
            elif when is When.EVERY_K and closed and gate.slack is None:
                # Without a slack a deadline closes cycles: it also bounds a buffer of K that never fills.
                out += self._fold_waiting(SOLE, now)
        candidates = list(self.held) if moved else [worker] if worker in self.held else []
        out += [self._release(name) for name in candidates if not self.groups.holds(name)]
        return out

    def _fold_waiting(self, lot: int, now: float, members: frozenset[str] = frozenset()) -> list[Instruction]:
        """Fold what waits, and complete the accounts and answers of those whose weight that decides.

        Args:
            members: of the group whose lot it is; its share of the fleet scales the fold. None: all.
        """
        waiting = self._pending.take(lot)
        if not waiting:
            return []
        weights = sum(update.weight for update in waiting)
        if weights == 0.0:
            self.counters.refused += len(waiting)
            self._complete(waiting, 0.0, WEIGHTLESS)
            return [DropSums(lot)]
        share = 1.0
        if members:
            active = self.membership.active(now) | {update.worker for update in waiting}
            share = self.fold.share(members & active, active)
        scale, part = self.fold.factors(weights, sum(update.measure for update in waiting), share)
        self._complete(waiting, scale, "")
        self.version += 1
        return [FoldSums(scale, part, lot)]

    def _complete(self, waiting: list[Update], scale: float, refusal: str) -> None:
        for update in waiting:
            entry = self.ledger.entries[update.worker]
            if (entry.incarnation, entry.sequence) != (update.incarnation, update.sequence):
                continue  # it has committed again since
            entry.weight, entry.refusal = update.weight * scale, refusal
            entry.refused += 1 if refusal else 0
            held = self.held.get(update.worker)
            if held and held.ack.sequence == update.sequence:
                outcome = Outcome.REFUSED if refusal else held.ack.outcome
                if outcome is Outcome.LATE:
                    outcome = Outcome.APPLIED  # it is in the model that this reply carries
                held.ack = replace(held.ack, outcome=outcome, reason=refusal, weight=entry.weight)

    def _release(self, worker: str) -> Reply:
        held = self.held.pop(worker)
        return Reply(held.token, worker, held.ack)

    def _keep(self, worker: str, now: float) -> None:
        if self.membership.keep(worker, now):
            self.groups.arrive(worker, now)


def _ack(sequence: int, outcome: Outcome, entry: Entry) -> Ack:
    latest = sequence == entry.sequence
    return Ack(
        sequence=sequence,
        outcome=outcome,
        reason=entry.refusal if latest else "",
        weight=entry.weight if latest else 0.0,
        checkpoint_epoch=entry.checkpoint_epoch,
        staleness=entry.staleness,
        commits=entry.commits,
    )
