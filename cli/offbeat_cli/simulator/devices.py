"""A device in a simulation: how fast it is, and what it does between two events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from offbeat_core.averages import RunningMedian, SmoothedMean
from offbeat_ps.store import Snapshot
from offbeat_scheduler import sync
from offbeat_worker.speed import StepTime
from offbeat_worker.trigger import Grid, Passes, Rule, Steps, Trigger

LOSS_WEIGHT = 0.05
"""Of a new loss in a device's smoothed one, as on a worker."""


def heterogeneity(steps_s: Sequence[float]) -> float:
    """H = mean(v) / min(v) over the devices' speeds v; `steps_s`: each one's seconds per local update."""
    return max(steps_s) * math.fsum(1.0 / step_s for step_s in steps_s) / len(steps_s)


@dataclass(frozen=True)
class VirtualDevice:
    """What a device is like.

    Args:
        step_s: seconds per local update.
        commit_s: seconds that a commit travels, both ways together; the server's work is not in it.
        hold_s: seconds that a commit holds the training thread (cut and merge).
        jitter: standard deviation of the logarithm of each step's and each travel's time.
        joins_s, leaves_s: when it is there; it leaves without a word.
        speeds: (time, new step_s), for a device whose speed changes.
        fixed_s: of a step's seconds, those that do not grow with the batch.
        max_batch: samples that fit it at a time; 0: any number.
        sample_s: seconds that a sample travels, where samples are dealt to it (parallelized).
    """

    name: str
    step_s: float
    commit_s: float = 0.01
    hold_s: float = 0.001
    jitter: float = 0.0
    joins_s: float = 0.0
    leaves_s: float | None = None
    speeds: tuple[tuple[float, float], ...] = ()
    fixed_s: float = 0.0
    max_batch: int = 0
    sample_s: float = 0.0

    def step_at(self, now_s: float, batches: float = 1.0, *, halved: bool = False) -> float:
        """Seconds per local update at a moment; `batches`: its samples over the usual batch's; `halved`: it
        goes through them in two halves."""
        current = self.step_s
        for at_s, step_s in self.speeds:
            if now_s >= at_s:
                current = step_s
        if batches == 1.0 and not halved:
            return current
        fixed_s = min(self.fixed_s, current)
        return fixed_s * (1 + halved) + (current - fixed_s) * batches


@dataclass(frozen=True)
class Directive:
    """What a device was told. `rule` None: rest."""

    rule: Rule | None
    batch: int
    overlap: bool
    generation: int
    once: bool
    draw: int = 0  # so many of its samples, drawn for each generation; 0: all
    dealt: int = 0  # instead: so many of the server's, dealt to it in this generation
    shares: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)  # of the whole deal
    rate: float = 1.0  # of the run's learning rate
    gradient_noise: bool = False  # measure it

    @property
    def even(self) -> bool:
        """Is each pass divided into batches of about equal size, for a commit ends it?"""
        return isinstance(self.rule, Passes)


def rule_of(trigger: sync.Trigger) -> Rule:
    """A plan's trigger as the worker knows it; virtual devices have one clock."""
    match trigger:
        case sync.Grid(interval_s, origin_s):
            return Grid(origin_s, interval_s)
        case sync.Steps(steps):
            return Steps(steps)
        case sync.Passes(passes):
            return Passes(passes)


class Part(IntEnum):
    """What a device's time is spent on; each moment belongs to exactly one."""

    COMPUTE = 0
    HOLD = 1  # held by cutting an update or merging a model
    TRAVEL = 2  # of its own commit or model, where training stands still for it
    WAIT = 3  # for others: gate, round, rest


@dataclass(frozen=True)
class Transfer:
    """Dealt samples on their way to a device."""

    directive: Directive  # that deals them
    begun_s: float
    seconds: float

    def part(self, now_s: float) -> float:
        """So much of it is over."""
        return min(1.0, (now_s - self.begun_s) / self.seconds) if self.seconds > 0 else 1.0


class Trainer:
    """A device's state: its models, its trigger, what it measured. The driver moves it in time.

    `base` is what the next update is the difference to, `local` what is trained; when a fresh W
    arrives, local becomes W + (local - base) (`docs/adsp.md`). Both are the server's own snapshot,
    uncopied, until the first step on it. Buffers come and go as they are, never as differences.
    """

    def __init__(self, device: VirtualDevice, index: int, seed: int, trainable: int) -> None:
        self.device = device
        self.index = index
        self.trigger = Trigger()
        self.directive: Directive | None = None
        self.allotted: Directive | None = None  # the one whose samples and learning rate are in use
        self._trainable = trainable
        # Apart, and one number per step and per commit: the same seed then gives every model the same jitter.
        self._step_chance = np.random.default_rng((seed, index, 0))
        self._travel_chance = np.random.default_rng((seed, index, 1))
        self._sample_chance = np.random.default_rng((seed, index, 2))
        self._local = np.zeros(0, dtype=np.float32)
        self._own = False  # is `local` ours alone?
        self._base = self._local
        self._held: Snapshot | None = None  # while it is held, the store does not write into it
        self.base_version = 0
        self.base_at_s = 0.0  # when the server's model was that
        self.in_flight = False
        self.cut_s = 0.0
        self.way_back_s = 0.0  # of the commit in flight
        self.arrived_s = 0.0  # when it was at the server
        self.held_s = 0.0  # so long a gate held it
        self.arrived: tuple[Snapshot, float, bool] | None = None  # a model, when it left the server, refused?
        self.standing = False  # still, until its commit is answered
        self.idle = True  # nothing to do until told
        self.committed_in = -1  # generation of the last commit
        self.present = True
        self.steps = 0
        self.samples = 0
        self.refused = 0
        self.pending_steps = 0
        self.pending_samples = 0
        self.passes = 0
        self.passes_at_cut = 0
        self.transfer: Transfer | None = None  # under way
        self.awaits_samples = False  # stands still until they come
        self.supplied_for: int | None = None  # the generation of the dealt samples that it holds
        self.fetched = 0  # samples, of transfers that have ended
        self.fetch_s = 0.0
        self.step_time = StepTime()
        self.commit_time = RunningMedian()
        self.commits_timed = 0
        self.train_loss = SmoothedMean(LOSS_WEIGHT)
        self._part: Part | None = None
        self._since_s = 0.0
        self.seconds = [0.0] * len(Part)

    # ---- time ----------------------------------------------------------------------------

    def turn(self, part: Part | None, now_s: float) -> None:
        """From now on its time belongs to `part`; None: to nothing, it is not there."""
        if self._part is not None:
            self.seconds[self._part] += now_s - self._since_s
        self._part, self._since_s = part, now_s

    def vary_step(self, seconds: float) -> float:
        """A step's duration with the device's jitter."""
        return self._vary(seconds, self._step_chance)

    def vary_travel(self) -> tuple[float, float]:
        """The two ways of a commit, with jitter."""
        half_s = self.device.commit_s / 2
        return self._vary(half_s, self._travel_chance), self._vary(half_s, self._travel_chance)

    def vary_transfer(self, samples: int) -> float:
        """Seconds in which so many samples come, with jitter."""
        return self._vary(samples * self.device.sample_s, self._sample_chance)

    def _vary(self, seconds: float, chance: np.random.Generator) -> float:
        if not self.device.jitter:
            return seconds
        return seconds * math.exp(self.device.jitter * float(chance.standard_normal()))

    # ---- directives ----------------------------------------------------------------------

    def follow(self, directive: Directive, now_s: float) -> None:
        """A directive takes effect."""
        before, self.directive = self.directive, directive
        if directive.rule is None:
            return
        self.trigger.set(directive.rule, now_s)
        if before is not None and before.batch != directive.batch:
            self.step_time.resize(directive.batch / before.batch)

    @property
    def may_train(self) -> bool:
        """Has it anything to train under its directive?"""
        directive = self.directive
        if directive is None or directive.rule is None:
            return False
        return not (directive.once and self.committed_in == directive.generation)

    def due(self, now_s: float) -> bool:
        """Is a commit to be cut at this batch boundary?"""
        return not self.in_flight and self.trigger.due(
            now_s, self.pending_steps, self.passes - self.passes_at_cut
        )

    # ---- samples that are dealt to it --------------------------------------------------------

    @property
    def unsupplied(self) -> bool:
        """Must samples come before its next local update?"""
        directive = self.directive
        return directive is not None and directive.dealt > 0 and self.supplied_for != directive.generation

    def unsupplied_by(self, transfer: Transfer) -> bool:
        """Are those on their way others than those of the directive in force?"""
        return self.directive is None or self.directive.generation != transfer.directive.generation

    def end_transfer(self, now_s: float) -> None:
        """No more comes of the transfer that is under way; what came counts."""
        self.fetched, self.fetch_s = self.fetched_by(now_s)
        self.transfer = None

    def fetched_by(self, now_s: float) -> tuple[int, float]:
        """Samples that have come so far, and the seconds that they took."""
        if self.transfer is None:
            return self.fetched, self.fetch_s
        part = self.transfer.part(now_s)
        samples = int(part * self.transfer.directive.dealt + 1e-6)  # a whole one, but for rounding
        return self.fetched + samples, self.fetch_s + part * self.transfer.seconds

    # ---- the model -----------------------------------------------------------------------

    @property
    def values(self) -> np.ndarray:
        """The model to train in place."""
        if not self._own:
            self._local, self._own = self._local.copy(), True
        return self._local

    def load(self, snapshot: Snapshot, at_s: float) -> None:
        """Begin at the server's model."""
        self._take(snapshot, at_s)

    def cut(self, now_s: float) -> tuple[np.ndarray, int, int]:
        """(U and buffers, steps, samples in it): the update since the last cut, which is now on its way."""
        split = self._trainable
        update = np.empty_like(self._local)
        np.subtract(self._base[:split], self._local[:split], out=update[:split])
        update[split:] = self._local[split:]
        self._base, self._own, self._held = self._local, False, None
        steps, self.pending_steps = self.pending_steps, 0
        samples, self.pending_samples = self.pending_samples, 0
        self.passes_at_cut = self.passes
        self.in_flight, self.cut_s = True, now_s
        self.trigger.served(now_s)
        if self.directive is not None:
            self.committed_in = self.directive.generation
        return update, steps, samples

    def merge(self) -> bool:
        """Take over the model that has arrived; steps made in flight are kept, unless the update was refused.

        Returns whether it was refused.
        """
        if self.arrived is None:
            return False
        snapshot, left_s, refused = self.arrived
        self.arrived, self.in_flight = None, False
        if refused:
            self.refused += 1
            self.pending_steps = self.pending_samples = 0
        if not self.pending_steps:
            self._take(snapshot, left_s)
            return refused
        split = self._trainable
        local = self.values
        # In this order, as the worker does it, so that the same numbers come out.
        local[:split] -= self._base[:split]
        local[:split] += snapshot.values[:split]
        local[split:] = snapshot.values[split:]
        self._base, self._held = snapshot.values, snapshot
        self.base_version, self.base_at_s = snapshot.version, left_s
        return refused

    def _take(self, snapshot: Snapshot, at_s: float) -> None:
        self._local = self._base = snapshot.values
        self._own, self._held = False, snapshot
        self.base_version, self.base_at_s = snapshot.version, at_s
