"""Which batch each device trains with under ADSP with allocation, kept up to date by what is measured.

A device begins with the run's batch b0. Once its step time at that is known it tries half of it (or, where so
few are not allowed, twice as many), at the learning rate that goes with it, so that the fixed and the growing
part of t(b) = alpha + beta b are told apart. From then on `allocation/goodput.py` chooses. A batch changes
only where that is worth `WORTH` in goodput, for every change costs new measurements. It is larger than b0
only for `WORTH_A_RISK`, and smaller only where it stays right in times to come (`LATER`). Under a bound on
staleness it changes where the bound asks for it.

A device whose step time is off the curve by `CHANGED` got slower or quicker, and its curve is scaled; whether
its fixed part changed too is looked at again, `RETRY_PERIODS` after the last time at the earliest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from offbeat_core.config import MOST_32
from offbeat_scheduler.allocation.goodput import Costs, Rule, best, goodput, spread, within
from offbeat_scheduler.allocation.solution import average_staleness
from offbeat_scheduler.models.measured import FIRST_STEPS, SETTLE_S, SETTLE_STEPS
from offbeat_scheduler.models.r2sp import APART, StepCost, fixed_part
from offbeat_scheduler.sync import Allotment, Device, Fleet

WORTH = 1.1
"""A batch changes for at least so much more goodput."""

CLOSER = 0.5
"""Or where devices come so many local updates closer."""

WORTH_A_RISK = 1.25
"""A batch grows beyond the run's for so much more than that is worth: by how much a larger one is worth more
is less sure, as the learning rate, tuned for the run's, hardly grows along."""

LATER, LEAST_LATER = 4.0, 0.95
"""A batch gets smaller than the run's only where that is worth so much of the run's at so many times the
noise scale, too: it grows while a model learns, and at the start it is low. Without a fixed part small
batches stay the better ones; with one they don't."""

CHANGED = 1.25
"""A step time that is off by this factor means that the device has changed."""

MOST_MEASURED = 10
"""Of the mean of what was measured, the latest measurement is this part at least."""

RETRY_PERIODS = 5
"""The fixed part is measured anew after so many check periods at the earliest."""

LOOKS = 6
"""Measurements, each after further local updates, that make a step time known."""

MOST_FIXED = 16.0
"""The fixed part is taken for no more than so many times b0's samples."""

MEASURED = 4
"""A device measures its gradients' noise in local updates of so many samples at least (its `noise.py`)."""

LEAST_SHARE, MOST_TIMES = 4, 8
"""Without other bounds a batch is from a quarter of b0, but at least `MEASURED`, to 8 times b0. Below, what
is normalised over a batch (BatchNorm) gets poor."""

NOISE_STEP = 1.2
"""The noise scale in force is another one once it is off by this factor."""

LEAST_GAIN = 0.01
"""Of a local update, whatever was measured."""

MOST_NOISE = 1e9
"""Samples: beyond that all batches are alike."""

ABOUT = 0.5
"""A bound on staleness is kept to within half a local update: batches are whole."""

PATIENCE_PERIODS = 3
"""For so many check periods the choice under a bound on staleness waits for a curve that is not known."""

FEW_PAIRS = 8
"""Pairs of gradients in the whole fleet, before the noise scale is believed."""


@dataclass
class _Known:
    """One device."""

    batch: int  # in force
    fixed: float | None = None  # in samples
    sample_s: float = 0.0  # in force
    latest_s: float = 0.0  # the same, of all that was measured since; it comes in force with each period
    measured: int = 0
    other: StepCost | None = None  # at the batch that the one in force is compared with
    asked_s: float = 0.0  # since when that is to be found
    found_s: float = 0.0  # when the fixed part was found
    doubtful: bool = False  # is it, since the device has changed?
    # Its step time under the batch in force is looked at from these local updates and seconds on.
    from_steps: int = FIRST_STEPS
    from_s: float = 0.0
    sum_s: float = 0.0
    looks: int = 0

    @classmethod
    def begin(cls, batch: int, device: Device, now_s: float) -> _Known:
        """It joins. What one that comes back says of its step time may still be of another batch."""
        known = cls(batch, asked_s=now_s)
        if device.steps:
            known.settle(device, now_s)
        return known

    def look(self, device: Device, now_s: float) -> StepCost | None:
        """Its step time, once it is known."""
        if device.step_s > 0 and device.steps >= self.from_steps and now_s >= self.from_s:
            self.sum_s += device.step_s
            self.looks += 1
            self.from_steps = device.steps + 1
        return StepCost(self.sum_s / self.looks, self.batch) if self.looks >= LOOKS else None

    def seconds(self, batch: int) -> float:
        """Of an update of so many samples, by its curve; without a fixed part as long as that isn't known."""
        return ((self.fixed or 0.0) + batch) * self.sample_s

    def look_again(self) -> None:
        self.sum_s, self.looks = 0.0, 0

    def believe(self, sample_s: float) -> None:
        """It takes so long from now on."""
        self.sample_s = self.latest_s = sample_s
        self.measured = 1

    def set(self, batch: int, device: Device, now_s: float) -> None:
        """Another batch is in force."""
        if batch != self.batch:
            self.batch = batch
            self.look_again()
            self.settle(device, now_s)

    def settle(self, device: Device, now_s: float) -> None:
        self.from_steps, self.from_s = device.steps + SETTLE_STEPS, now_s + SETTLE_S


class Batches:
    """Keeps the batches of a run.

    Args:
        base: b0, the run's batch.
        cap: of the learning rate's factor.
        least, most: samples of a local update at least and at most; None: by `LEAST_SHARE`, `MOST_TIMES`.
        max_staleness: of updates per interval, over pairs of devices; None: no bound.
    """

    def __init__(
        self,
        base: int,
        check_period_s: float,
        *,
        cap: float,
        least: int | None = None,
        most: int | None = None,
        max_staleness: int | None = None,
    ) -> None:
        self._base = base
        self._period_s = check_period_s
        self._cap = cap
        self._least = min(base, least or max(MEASURED, base // LEAST_SHARE))
        self._most = min(max(base, most or MOST_TIMES * base), MOST_32)
        self._max_staleness = max_staleness
        self._known: dict[str, _Known] = {}
        self._interval_s = 0.0
        self._period = 0
        self.noise: float | None = None  # gradient noise scale, samples
        self.settled = False  # is every device's curve known?

    def see(self, fleet: Fleet, interval_s: float) -> None:
        """Look at the fleet, and choose anew where something was learnt; `interval_s`: commits are so far
        apart."""
        for name in self._known.keys() - fleet.devices.keys():
            del self._known[name]
        self._follow_noise(noise_scale(fleet.devices))
        learnt = interval_s != self._interval_s and self._max_staleness is not None
        self._interval_s = interval_s
        for name, device in fleet.devices.items():
            if (known := self._known.get(name)) is None:
                known = _Known.begin(self._fitting(device, self._base), device, fleet.now_s)
                self._known[name] = known
            # First: one that ran out of memory was not timed with the batch that was planned.
            known.set(self._fitting(device, known.batch), device, fleet.now_s)
            learnt |= self._learn(device, known, fleet.now_s)
        self.settled = not any(self._is_awaited(known, fleet.now_s) for known in self._known.values())
        if period_ended := self._period_ended(fleet.now_s):
            for known in self._known.values():
                known.sample_s = known.latest_s
        if learnt or period_ended:
            self._choose(fleet)

    # ---- what is in force --------------------------------------------------------------

    def batches(self) -> dict[str, int]:
        """By device, where it is not the run's."""
        return {name: known.batch for name, known in self._known.items() if known.batch != self._base}

    def rates(self) -> dict[str, float]:
        """The learning rate's factors by device, where they are not 1."""
        return {name: rate for name, rate in self._rates().items() if rate != 1.0}

    def gains(self, fleet: Fleet) -> dict[str, float]:
        """What a local update of each device is worth, in updates of b0 samples: what its learning rate makes
        of it. While it tries another batch its speed counts as it was: a trial is no change that a search
        should mind."""
        gains = self._rates()
        for name, known in self._known.items():
            if known.other is not None and (step_s := fleet.devices[name].step_s) > 0:
                before = float(self._rule().rate(np.float64(known.other.batch)))
                gains[name] = max(before * step_s / known.other.seconds, LEAST_GAIN)
        return gains

    def _rates(self) -> dict[str, float]:
        """The learning rate's factor of the batch in force, by device."""
        batch = np.array([known.batch for known in self._known.values()], float)
        return dict(zip(self._known, self._rule().rate(batch).tolist(), strict=True))

    def usual_s(self, fleet: Fleet) -> dict[str, float]:
        """Seconds that an update of b0 samples takes each device, by its curve; of whom it isn't known, what
        its own takes."""
        return {
            name: known.seconds(self._base)
            if known.fixed is not None
            else (known.other.seconds if known.other is not None else fleet.devices[name].step_s)
            for name, known in self._known.items()
            if name in fleet.devices
        }

    def allotment(self, fleet: Fleet, interval_s: float) -> Allotment | None:
        """What an interval holds; None until all step times are known."""
        names = [name for name in sorted(self._known) if name in fleet.devices]
        known = [self._known[name] for name in names]
        if not known or any(one.sample_s <= 0 for one in known) or interval_s <= 0:
            return None
        step_s = np.array([one.seconds(one.batch) for one in known])
        tau = np.round(interval_s / step_s, 2)
        return Allotment(
            cycle_s=interval_s,
            # Nobody waits: what is left of an interval belongs to the update under way.
            busy_s=dict.fromkeys(names, interval_s),
            max_staleness=round(float(tau.max() - tau.min()), 2),
            average_staleness=round(average_staleness(tau), 2),
            idle_share=0.0,
            updates=dict(zip(names, tau.tolist(), strict=True)),
        )

    def notes(self, allotment: Allotment | None, now_s: float) -> tuple[str, ...]:
        """What keeps the operator's wish from being met. Without figures: those change all the time."""
        if not self.settled:
            return ()
        if self.noise is None and now_s > PATIENCE_PERIODS * self._period_s:
            return (
                "allocation: no batch is chosen yet, for too little is known of how noisy gradients are; "
                f"devices measure it now and then, in local updates of {MEASURED} samples or more",
            )
        if self._known and all(known.batch < MEASURED for known in self._known.values()):
            return (
                f"allocation: with fewer than {MEASURED} samples in each local update no device measures any "
                "more how noisy gradients are; give a larger min_batch",
            )
        bound, updates = self._max_staleness, allotment.updates if allotment is not None else {}
        if bound is None or not updates or max(updates.values()) - min(updates.values()) <= bound + ABOUT:
            return ()
        fewest, most = (least(sorted(updates), key=updates.__getitem__) for least in (min, max))
        return (
            f"max_staleness: {bound} can't be kept to by batches alone: {fewest} makes the fewest local "
            f"updates per interval, {most} the most; give a larger bound, or other bounds of the batch",
        )

    # ---- one device --------------------------------------------------------------------

    def _fitting(self, device: Device, batch: int) -> int:
        return max(1, min(device.fitting(batch), device.shard_samples or batch))

    def _learn(self, device: Device, known: _Known, now_s: float) -> bool:
        """Take in what it showed; begin what is still to be tried. True: its curve is known, or another."""
        now = known.look(device, now_s)
        if now is None:
            return False
        known.look_again()
        if known.fixed is None:
            return self._compare(device, known, now, now_s)
        sample_s = now.seconds / (known.fixed + known.batch)
        changed = not 1 / CHANGED < sample_s / known.sample_s < CHANGED
        known.doubtful |= changed
        if known.doubtful and now_s >= known.found_s + RETRY_PERIODS * self._period_s:
            known.fixed, known.asked_s = None, now_s
        if changed:
            known.believe(sample_s)
        else:
            known.measured += 1
            known.latest_s += (sample_s - known.latest_s) / min(known.measured, MOST_MEASURED)
        return changed

    def _compare(self, device: Device, known: _Known, now: StepCost, now_s: float) -> bool:
        """Two batches tell the fixed part: the one in force, and then another one."""
        if known.other is None:
            known.believe(now.seconds / now.batch)  # until more is known
            if (trial := self._trial(device, now.batch)) is not None:
                known.other = now
                known.set(trial, device, now_s)
                return False
            found: float | None = 0.0  # nothing is to be chosen
        else:
            found = fixed_part(known.other, now, MOST_FIXED * self._base)
            now, known.other = known.other, None
            known.set(self._fitting(device, now.batch), device, now_s)
        known.fixed, known.found_s, known.doubtful = found or 0.0, now_s, False
        known.believe(now.seconds / (known.fixed + now.batch))
        return True

    def _trial(self, device: Device, batch: int) -> int | None:
        """Another batch, within the bounds, that differs enough: half of it, else twice as much."""
        for other in (max(batch // 2, self._least), min(2 * batch, self._most)):
            fits = self._fitting(device, other)
            if max(fits, batch) >= APART * min(fits, batch):
                return fits
        return None

    # ---- the fleet ---------------------------------------------------------------------

    def _is_awaited(self, known: _Known, now_s: float) -> bool:
        """Will its curve be known soon? One device that hangs, or takes minutes for an update, keeps nobody
        from a batch."""
        return known.fixed is None and now_s < known.asked_s + PATIENCE_PERIODS * self._period_s

    def _period_ended(self, now_s: float) -> bool:
        period = int(now_s / self._period_s + 1e-9)
        ended, self._period = period > self._period, period
        return ended

    def _follow_noise(self, noise: float | None) -> None:
        """By steps: learning rates go with it, and are told to devices."""
        if noise is not None and (self.noise is None or not 1 / NOISE_STEP < noise / self.noise < NOISE_STEP):
            self.noise = noise

    def _rule(self) -> Rule:
        return Rule(self._base, self.noise if self.noise is not None else float(self._base), self._cap)

    def _sound(self, costs: Costs, wanted: np.ndarray) -> np.ndarray:
        """These batches, and the run's, as far as it fits, where another one is not surely worth more."""
        base = np.clip(self._base, costs.least, costs.most)
        rule = self._rule()
        later = replace(rule, noise=LATER * rule.noise)
        grows = goodput(costs, rule, wanted) >= WORTH_A_RISK * goodput(costs, rule, base)
        shrinks = goodput(costs, later, wanted) >= LEAST_LATER * goodput(costs, later, base)
        return np.where(np.where(wanted > base, grows, shrinks), wanted, base)

    def _choose(self, fleet: Fleet) -> None:
        """New batches for all whose curve is known."""
        if self.noise is None:
            return
        names = [name for name in sorted(self._known) if self._known[name].fixed is not None]
        if not names or (self._max_staleness is not None and not self.settled):
            return
        known = [self._known[name] for name in names]
        most = np.array([self._fitting(fleet.devices[name], self._most) for name in names])
        costs = Costs(
            fixed=np.array([one.fixed for one in known], float),
            sample_s=np.array([one.sample_s for one in known]),
            least=np.minimum(self._least, most),
            most=most,
        )
        rule = self._rule()
        now = np.array([one.batch for one in known])
        before, bound = goodput(costs, rule, now), self._max_staleness
        if bound is None:
            wanted = self._sound(costs, best(costs, rule))
            change = goodput(costs, rule, wanted) >= WORTH * before
        else:
            wanted = within(costs, rule, self._interval_s, bound)
            apart, least_apart = (spread(costs, self._interval_s, batch) for batch in (now, wanted))
            # Where no batches keep to the bound, they change for the better only, not with jitter.
            asked = apart > bound and (least_apart <= bound or apart >= least_apart + CLOSER)
            worth = goodput(costs, rule, wanted).sum() >= WORTH * before.sum()
            change = np.full(now.shape, asked or (bool(worth) and least_apart <= max(apart, bound)))
        for name, one, batch, changes in zip(names, known, wanted.tolist(), change.tolist(), strict=True):
            if changes:
                one.set(int(batch), fleet.devices[name], fleet.now_s)


def noise_scale(devices: Mapping[str, Device]) -> float | None:
    """tr(Sigma) / |G|^2 over the fleet, in samples; None where too little is known.

    A ratio of sums: single devices' estimates of |G|^2 may well be negative. Where the sum is, gradients
    are nothing but noise.
    """
    known = [device for device in devices.values() if device.gradient_pairs]
    if sum(device.gradient_pairs for device in known) < FEW_PAIRS:
        return None
    square = sum(device.gradient_square for device in known)
    variance = sum(device.gradient_variance for device in known)
    if variance <= 0:
        return 1.0
    if square <= 0 or not math.isfinite(variance / square):
        return MOST_NOISE
    return min(max(variance / square, 1.0), MOST_NOISE)
