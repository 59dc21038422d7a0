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
    """What one device did. Shares are of its time since it joined and sum to 1."""

    name: str
    steps: int
    commits: int
    compute_share: float
    commit_share: float
    wait_share: float


@dataclass(frozen=True)
class Result:
    """A simulated run.

    Args:
        end_s: virtual seconds since training began.
        reached: did it end at its target?
        plans: each plan that differed from the one before, with its time.
    """

    end_s: float
    reached: bool
    evaluations: tuple[Evaluation, ...]
    devices: dict[str, DeviceResult]
    plans: tuple[tuple[float, Plan], ...]

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
