"""Batches by speed, so that all devices end a local update at the same time (BatchTune, R2SP).

Source: Chen et al., "Round-Robin Synchronization: Mitigating Communication Bottlenecks in Parameter Servers",
INFOCOM 2019, as Hu, Wang, Wu (AAAI 2020) run it: b_i = int(B M / (t_i sum_j 1/t_j)), with B the run's batch
and t_i the time of a local update of B samples. The fleet's samples per step stay B M.

*Ours*: t_i is measured at the batch in force, and brought to a common one by the samples; a part
of a local update that doesn't depend on its samples is found once a device was measured at two batches that
differ enough. Who was not measured yet counts as a typical device. No batch is larger than what fits its
device, where that is known; what the others can't take either is left out. Batches change when someone
joins, leaves or runs out of memory, and else at the end of a check period if that shortens the slowest local
update by more than a tenth, so that jitter changes nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from offbeat_core.config import MOST_32
from offbeat_scheduler.models.barrier import LOOK_AGAIN_S
from offbeat_scheduler.models.measured import Measured
from offbeat_scheduler.sync import Fleet

WORTH = 0.9
"""Batches change if the slowest local update then takes at most so much of its time."""

APART = 1.5
"""Two batches must differ by this factor to tell a fixed part from what the samples take."""

MOST_FIXED = 16.0
"""The fixed part is taken for no more than so many batches' worth of samples."""


@dataclass(frozen=True)
class StepCost:
    """What a local update takes: `seconds` at `batch` samples; the part of it that is independent of
    the samples is what `fixed` further samples take."""

    seconds: float
    batch: int
    fixed: float = 0.0

    def at(self, batch: float) -> float:
        return self.seconds * (self.fixed + batch) / (self.fixed + self.batch)

    def samples_in(self, seconds: float) -> float:
        return seconds / self.seconds * (self.fixed + self.batch) - self.fixed


def fixed_part(one: StepCost, other: StepCost, most: float) -> float | None:
    """The fixed part in samples, from two measurements; None where their batches are too alike.

    t1 / t2 = (f + b1) / (f + b2). Between 0 and `most`, whatever noise says.
    """
    if max(one.batch, other.batch) < APART * min(one.batch, other.batch):
        return None
    small, large = sorted((one, other), key=lambda cost: cost.batch)
    rise_s = large.seconds - small.seconds
    if rise_s <= 0:
        return most
    return min(max((small.seconds * large.batch - large.seconds * small.batch) / rise_s, 0.0), most)


def allot(total: int, costs: Mapping[str, StepCost], most: Mapping[str, int]) -> dict[str, int]:
    """Batches of at least 1 that sum to `total`, so that the slowest local update is as short as can be.

    Args:
        total: at least one sample per device.
        most: samples that a device holds, where that is known. Kept to if all hold `total` together.
    """
    if sum(most.get(name, total) for name in costs) < total:
        most = {}

    def share(name: str, seconds: float) -> float:
        return min(max(costs[name].samples_in(seconds), 1.0), float(most.get(name, total)))

    low, high = 0.0, max(cost.at(total) for cost in costs.values())
    for _ in range(60):
        middle = (low + high) / 2
        if sum(share(name, middle) for name in costs) < total:
            low = middle
        else:
            high = middle
    shares = {name: share(name, high) for name in costs}
    batches = {name: max(1, math.floor(part + 1e-9)) for name, part in shares.items()}
    # int() leaves a few samples over: to those who were cut short most, by name where they are alike.
    spare = total - sum(batches.values())
    order = sorted(costs, key=lambda name: (round(batches[name] - shares[name], 9), name))
    while spare > 0:
        for name in order:
            if spare > 0 and batches[name] < most.get(name, total):
                batches[name] += 1
                spare -= 1
    return batches


class BatchTuner:
    """Keeps the batches of a run.

    Args:
        batch: the run's, which the mean over the fleet stays at.
    """

    def __init__(self, batch: int, check_period_s: float) -> None:
        self._batch = batch
        self._period_s = check_period_s
        self._measured = Measured()
        self._batches: dict[str, int] = {}  # in force
        self._costs: dict[str, StepCost] = {}
        self._before: dict[str, StepCost] = {}  # at the batch before
        self._looked: dict[str, bool] = {}
        self._period = 0
        self.wake_at_s = 0.0

    def batches(self, fleet: Fleet) -> dict[str, int]:
        """The batches from now on; call it whenever the fleet is looked at."""
        period = math.floor(fleet.now_s / self._period_s + 1e-9)
        ends = period > self._period
        self._measured.see(fleet)
        self._update_costs(fleet, ends)
        unknown = [name for name in fleet.devices if name not in self._costs]
        known_now = bool(self._looked) and not unknown and any(self._looked.values())
        if known_now or fleet.devices.keys() != self._batches.keys() or self._too_large(fleet):
            self._set(self._wanted(fleet), fleet)
        elif ends and self._costs:
            wanted = self._wanted(fleet)
            if self._slowest_s(wanted) <= WORTH * self._slowest_s(self._batches):
                self._set(wanted, fleet)
        if ends:
            self._period = period
            self._measured.forget()
        self._looked = {name: name not in self._costs for name in fleet.devices}
        self.wake_at_s = fleet.now_s + LOOK_AGAIN_S if unknown else (period + 1) * self._period_s
        return dict(self._batches)

    def _update_costs(self, fleet: Fleet, period_ends: bool) -> None:
        for gone in self._batches.keys() - fleet.devices.keys():
            self._costs.pop(gone, None)
            self._before.pop(gone, None)
        for name, batch in self._batches.items():
            seconds = self._measured.step_s(name)
            if seconds is None:
                continue
            batch = fleet.devices[name].fitting(batch)
            old = self._costs.get(name)
            cost = StepCost(seconds, batch, old.fixed if old else 0.0)
            if period_ends and name in self._before:
                # Once: a device that gets slower later has no other fixed part for that.
                found = fixed_part(self._before.pop(name), cost, MOST_FIXED * self._batch)
                cost = cost if found is None else StepCost(seconds, batch, found)
            self._costs[name] = cost

    def _wanted(self, fleet: Fleet) -> dict[str, int]:
        if not fleet.devices:
            return {}
        room = {name: device.fitting(MOST_32) for name, device in sorted(fleet.devices.items())}
        if not self._costs:
            return {name: min(self._batch, most) for name, most in room.items()}
        typical_s = statistics.median(cost.at(self._batch) for cost in self._costs.values())
        costs = {
            name: self._costs.get(name, StepCost(typical_s, self._batch)) for name in sorted(fleet.devices)
        }
        total = min(self._batch * len(costs), sum(room.values()))
        held = {name: min(fleet.devices[name].shard_samples or most, most) for name, most in room.items()}
        return allot(total, costs, held if sum(held.values()) >= total else room)

    def _too_large(self, fleet: Fleet) -> bool:
        """Is a batch in force that does not fit its device?"""
        return any(batch > fleet.devices[name].fitting(batch) for name, batch in self._batches.items())

    def _slowest_s(self, batches: Mapping[str, int]) -> float:
        return max(cost.at(batches[name]) for name, cost in self._costs.items())

    def _set(self, batches: dict[str, int], fleet: Fleet) -> None:
        for name, batch in batches.items():
            if batch != self._batches.get(name, self._batch):
                self._measured.changed(fleet.devices[name], fleet.now_s)
                if name in self._costs:
                    self._before[name] = self._costs[name]
        self._batches = batches
