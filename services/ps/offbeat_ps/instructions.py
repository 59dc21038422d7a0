"""What a run's decisions ask of the one who carries them out, in order.

A `token` names one commit call that is open; its update lies with the executor until
`Apply` or `Add` takes it over, or its reply leaves. A `lot` names updates that wait for
the same fold: those of one gate, or all of the fleet's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    APPLIED = "applied"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    LATE = "late"


class Refusal(Enum):
    """Why a call cannot be answered with a model at all."""

    NO_MODEL = "no_model"
    NOT_KNOWN = "not_known"
    OVER = "over"
    MANIFEST = "manifest"
    OLDER_INCARNATION = "older_incarnation"
    NOT_PULLED = "not_pulled"
    QUARANTINED = "quarantined"
    SUPERSEDED = "superseded"
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    REPLAY = "replay"
    UNFIT = "unfit"
    NO_SAMPLES = "no_samples"
    NOT_DEALT = "not_dealt"
    STOPPING = "stopping"


@dataclass(frozen=True)
class Ack:
    """What the worker learns of its commit. `weight` 0: decided when its fold is made."""

    sequence: int
    outcome: Outcome
    reason: str = ""
    weight: float = 0.0
    checkpoint_epoch: int = 0
    staleness: int = 0
    commits: int = 0


@dataclass(frozen=True)
class Apply:
    """Fold this update into the model now."""

    token: int
    weight: float


@dataclass(frozen=True)
class Add:
    """Add this update to those of its lot that wait for their fold."""

    token: int
    weight: float
    lot: int


@dataclass(frozen=True)
class FoldSums:
    """Fold what waits in this lot into the model."""

    scale: float
    share: float
    lot: int


@dataclass(frozen=True)
class DropSums:
    """Forget what waits in this lot: its weights are all zero."""

    lot: int


@dataclass(frozen=True)
class Reply:
    """Answer the commit with the model as it is now."""

    token: int
    worker: str
    ack: Ack


@dataclass(frozen=True)
class Refuse:
    """End the call without a model."""

    token: int
    refusal: Refusal
    details: str


@dataclass(frozen=True)
class Capture:
    """Take the model, what waits, and `accounts` as one consistent checkpoint."""

    epoch: int
    version: int
    accounts: str  # JSON


Instruction = Apply | Add | FoldSums | DropSums | Reply | Refuse | Capture
