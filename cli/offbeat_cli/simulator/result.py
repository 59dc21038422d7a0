"""What a simulation leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from offbeat_scheduler.sync import Plan


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the server's model."""

    at_s: float
    loss: float
    metric: float
    version: int
    commits: int


@dataclass(frozen=True)
class DeviceResult:
    """What one device did. Shares are of the time in which it was there; compute, commit and wait sum to 1.

    As on a worker, waiting is all standing still: for the network, a gate, a directive.
    `travel_share` is the part of it in which its own commit, or the model for it, was on the way.
    """

    name: str
    steps: int
    commits: int
    compute_share: float
    commit_share: float
    wait_share: float
    travel_share: float = 0.0
    refused: int = 0  # commits that did not enter


@dataclass(frozen=True)
class Result:
    """A simulated run.

    Args:
        end_s: virtual seconds since training began.
        reached: did it end at its target?
        plans: each plan that differed from the one before, with its time.
        sent_bytes: updates to the server and models from it, as float32.
    """

    end_s: float
    reached: bool
    evaluations: tuple[Evaluation, ...]
    devices: dict[str, DeviceResult]
    plans: tuple[tuple[float, Plan], ...]
    sent_bytes: int = 0

    @property
    def plan(self) -> Plan:
        """The last one."""
        return self.plans[-1][1]


def time_to_loss(evaluations: tuple[Evaluation, ...], loss: float, window: int = 10) -> float:
    """When the mean of the last `window` evaluations first was at or below `loss`, seconds; inf if never.

    One crossing of one evaluation is noise (`docs/adsp.md`, "Measuring it").
    """
    total = 0.0
    for index, evaluation in enumerate(evaluations):
        total += evaluation.loss
        if index >= window:
            total -= evaluations[index - window].loss
        if index >= window - 1 and total / window <= loss:
            return evaluation.at_s
    return math.inf
