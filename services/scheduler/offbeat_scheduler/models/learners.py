"""What each learner's cycle is made of, as measured: the coefficients that an allocation needs.

t_k = C2 tau d + C1 d + C0 (`docs/allocation.md`). C2 is the time that a device trained in a cycle over the
samples that it trained on, so it is measured under the very work that is to be allotted; C0 is what
its commit takes, both ways. In federated mode no samples travel, and C1 is 0.

A measurement that is off the last one by more than `CHANGED` is a change (heat, other load) and is
believed at once; smaller ones are smoothed. Of who has not trained yet nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from offbeat_scheduler.sync import Device

CHANGED = 0.2
SMOOTH = 0.5
"""The share of a new measurement in the smoothed one."""

FEW_SAMPLES = 64
SHORT = 0.25
"""What was measured over fewer samples, in a shorter part of the cycle, says little of the device."""

RESTS = 5
"""After so many cycles of rest a learner is measured anew: what made it too slow may be over."""

SHORTEST_S = 1e-9
"""Per sample and update; nothing takes less."""


@dataclass
class Learner:
    """One device. `compute_s`: C2, None while unknown. `fixed_s`: C0."""

    compute_s: float | None = None
    fixed_s: float = 0.0
    trials: int = 0  # measurements taken
    rested: int = 0  # cycles, one after the other
    _samples: int = 0  # when the cycle began
    _trained_s: float = 0.0

    def begin(self, device: Device) -> None:
        """A cycle begins: what it does from now on is measured."""
        self._samples, self._trained_s = device.samples, device.trained_s

    def rest(self) -> None:
        """It had no work in a cycle: nothing was measured, and sometime that is no reason any more."""
        self.rested += 1
        if self.rested >= RESTS:
            self.compute_s, self.trials, self.rested = None, 0, 0

    def see(self, device: Device, cycle_s: float) -> None:
        """A cycle has ended, or is late: take in what it showed."""
        self.rested = 0
        samples, trained_s = device.samples - self._samples, device.trained_s - self._trained_s
        if samples and (samples >= FEW_SAMPLES or trained_s >= SHORT * cycle_s) and trained_s > 0:
            self._learn(max(trained_s / samples, SHORTEST_S))
        # A commit's time is a running median already.
        self.fixed_s = device.commit_s or 2 * device.pull_s

    def _learn(self, measured_s: float) -> None:
        old = self.compute_s
        # The first cycle is a short one, on cold caches: it is replaced, not averaged.
        if old is None or self.trials < 2 or not old / (1 + CHANGED) < measured_s < old * (1 + CHANGED):
            self.compute_s = measured_s
        else:
            self.compute_s = SMOOTH * measured_s + (1 - SMOOTH) * old
        self.trials += 1
