"""What a synchronization model is: a fleet goes in, a plan comes out.

A model is one class in one file of `models/` (or a user's own file). It opens no
socket, reads no clock and starts no thread. The run's driver (live or simulated)
calls `decide` when training begins, when a worker joins or leaves, after each loss,
and at the time that the last plan asked for; it sends only what changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from offbeat_core.config import RunSettings, Settings


@dataclass(frozen=True)
class Device:
    """What is known of one active trainer. Times are smoothed measurements in seconds; 0: not yet known."""

    name: str
    commits: int = 0  # c_i, as the parameter server counts them
    steps: int = 0  # local updates in this run
    samples: int = 0  # samples trained on in this run
    shard_samples: int = 0  # n_k: samples that the device holds
    step_s: float = 0.0  # one local update, emulated slowness included
    commit_s: float = 0.0  # O_i: from cutting the update to having the fresh model, what a gate held it aside
    hold_s: float = 0.0  # of that, what holds the training thread
    train_loss: float = 0.0  # smoothed
    joined_s: float = 0.0  # when it began training, seconds since the run's training began
    trained_s: float = 0.0  # seconds of this run's local updates, emulated slowness included
    pull_s: float = 0.0  # that its last pull of the model took
    gradient_square: float = 0.0  # |G|^2 on its data, smoothed; an estimate, which may be negative
    gradient_variance: float = 0.0  # tr(Sigma): of one sample's gradient
    gradient_pairs: int = 0  # measurements behind both; 0: not yet known
    max_batch: int = 0  # samples that fit it at a time; 0: no bound is known
    fetched: int = 0  # parallelized: samples received in this run, those of broken transfers included
    fetch_s: float = 0.0  # seconds that they took

    def fitting(self, batch: int) -> int:
        """So much of a batch as fits it at a time."""
        return min(batch, self.max_batch or batch)


@dataclass(frozen=True)
class Fleet:
    """All active trainers at one moment.

    Args:
        now_s: seconds since the run's training began.
        devices: by name.
        server_s: seconds that the parameter server is busy with one commit (smoothed; 0: unknown).
        counted_at_s: when the parameter server's counts held, so that commits made since are not
            taken for missing ones. None: unknown; models then assume that they are a report old.
        closed: cycles that the gate has closed under the last plan's generation; with `Plan.round`
            set, 1 says that the round is over and the next one may be planned.
        samples: in the data set that the parameter server holds; 0: none.
    """

    now_s: float
    devices: Mapping[str, Device]
    server_s: float = 0.0
    counted_at_s: float | None = None
    closed: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Loss:
    """One loss that decisions may read: the evaluator's where one attends, else the workers' own."""

    at_s: float
    value: float
    steps: int  # local updates of the whole fleet so far
    source: Literal["evaluator", "workers"] = "evaluator"


# ---- trigger, gate, fold -------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Commit at origin_s + k * interval_s (seconds since training began), k = 1, 2, ..."""

    interval_s: float
    origin_s: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Commit after `steps` local updates."""

    steps: int


@dataclass(frozen=True)
class Passes:
    """Commit after `passes` passes over the given samples."""

    passes: int


Trigger = Grid | Steps | Passes


@dataclass(frozen=True)
class Gate:
    """Hold a commit's reply while its worker is more than `slack` commits ahead of the slowest of the cohort.

    None: never. `deadline_s` closes the cycle that long after it opened.
    """

    slack: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class Group:
    """Devices that wait for one another only. With fold "at_gate" each group's mean enters the model when
    the group's own gate closes, weighted by the group's share of the fleet."""

    members: tuple[str, ...]
    gate: Gate


When = Literal["at_once", "every_k", "at_gate"]
Weight = Literal["equal", "samples", "data", "per_step"]


@dataclass(frozen=True)
class Fold:
    """When updates enter the model and with what weight.

    Args:
        when: at_once; every_k commits; at_gate (the weighted mean of those that arrived).
        weight: of a device's update, before normalising over the fleet (at the gate: over those that
            arrived). equal: 1; samples: samples behind the update; data: samples that the device
            holds, n_k; per_step: 1 / local updates in it, so that a fast device pulls the model no
            further towards its own data than a slow one (as FedNova, Wang et al., NeurIPS 2020).
        server_rate: multiplies the folded update.
        staleness_power: p > 0: an update of staleness s counts (1 + s)^-p times its weight.
    """

    when: When = "at_once"
    weight: Weight = "equal"
    every_k: int = 0
    server_rate: float = 1.0
    staleness_power: float = 0.0


@dataclass(frozen=True)
class Probe:
    """One rate tried by a search. Losses are smoothed; `reward` is what the search compares."""

    rate: float  # commits per check period
    interval_s: float
    start_s: float
    end_s: float
    loss_start: float
    loss_end: float
    reward: float
    chosen: bool = False


@dataclass(frozen=True)
class Allotment:
    """What the allocation of a cycle promises (`docs/allocation.md`); for the operator.

    Args:
        cycle_s: T.
        busy_s: t_k by device, seconds of the cycle in which it works.
        max_staleness, average_staleness: of the planned local updates, over pairs of devices.
        idle_share: mean of 1 - t_k / T.
        updates: local updates by device, on average, where a trigger does not say them.
    """

    cycle_s: float
    busy_s: Mapping[str, float]
    max_staleness: float
    average_staleness: float
    idle_share: float
    updates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What the fleet does until the next plan.

    A device either has a trigger or is named in `resting`. One that rests keeps its data, trains
    nothing, and begins with a fresh model when a later plan gives it a trigger.
    """

    triggers: Mapping[str, Trigger]  # by device
    gate: Gate = Gate()
    fold: Fold = Fold()
    cohort: tuple[str, ...] = ()  # who counts as slowest at the gate; empty where there is none
    groups: tuple[Group, ...] = ()  # instead of gate and cohort: several gates; each trainer in one of them
    resting: frozenset[str] = frozenset()
    round: int | None = None  # each trainer commits once, then rests until a plan with another round
    batches: Mapping[str, int] = field(default_factory=dict)  # by device, where it is not the run's
    rates: Mapping[str, float] = field(default_factory=dict)  # by device: times the run's learning rate
    samples: Mapping[str, int] = field(default_factory=dict)  # d_k, drawn for each generation; absent: all
    gradient_noise: bool = False  # devices measure it: a model that chooses batches reads it
    # Parallelized: how the parameter server's data set is dealt in this generation. Whoever is away keeps
    # its share, so that nobody else's changes: of who trains it is what `samples` says.
    shares: Mapping[str, int] = field(default_factory=dict)
    overlap: bool = False  # the commit travels while training goes on; only without a gate
    membership_window_s: float = 60.0  # M counts trainers seen within it: max(2 check periods, 3 intervals)
    searching: bool = False
    commit_rate: float = 0.0  # commits per check period; 0 where the model has none
    interval_s: float = 0.0
    probes: tuple[Probe, ...] = ()  # finished ones, oldest first
    allotment: Allotment | None = None  # where an allocation was solved for this round
    wake_at_s: float | None = None  # call `decide` again then, seconds since training began
    notes: tuple[str, ...] = field(default=())  # for the operator: "worker-3 is too slow for ..."


class SyncModel(ABC):
    """A synchronization model. Make one per run; it keeps the run's state."""

    name: ClassVar[str]
    Options: ClassVar[type[Settings]]  # pydantic: validates the options given in `sync:`
    aliases: ClassVar[tuple[str, ...]] = ()  # other names that it goes by
    digest: ClassVar[str] = ""  # SHA-256 of the file of a user's own model
    short_option: ClassVar[str] = ""  # which option "name:VALUE" means, as in fixed-adacomm:8

    def __init__(self, options: Settings, run: RunSettings) -> None:
        self.options = options
        self.run = run

    @abstractmethod
    def decide(self, fleet: Fleet) -> Plan:
        """The plan from now on. Called at events and at `wake_at_s`; cheap, and safe to call at any time."""

    @property
    def parallelized(self) -> bool:
        """Are the samples dealt from a data set that the parameter server holds? Then devices load none, and
        each plan that lets somebody train has `samples` and `shares`."""
        return False

    def observe(self, loss: Loss) -> None:  # noqa: B027 - most models read no loss
        """A new loss; `decide` is called after it."""
