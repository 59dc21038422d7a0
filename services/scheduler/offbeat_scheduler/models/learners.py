"""What each learner's cycle is made of, as measured: the coefficients that an allocation needs.

t_k = C2 tau d + C1 d + C0 (`docs/allocation.md`). C2 is the time that a device trained in a cycle over the
samples that it trained on, so it is measured under the very work that is to be allotted; C1 is the time
that samples took to come over how many came, also of those that a closing cycle broke off; C0 is what its
commit takes, both ways. In federated mode no samples travel, and C1 is 0. Of who has not trained yet
nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
class Coefficient:
    """Seconds per sample. A measurement that is off the last one by more than `CHANGED` is a change (heat,
    other load) and is believed at once; smaller ones are smoothed."""

    value: float | None = None  # unknown
    _trials: int = 0  # measurements taken

    def learn(self, measured_s: float) -> None:
        old = self.value
        # The first cycle is a short one, on cold caches: it is replaced, not averaged.
        if old is None or self._trials < 2 or not old / (1 + CHANGED) < measured_s < old * (1 + CHANGED):
            self.value = measured_s
        else:
            self.value = SMOOTH * measured_s + (1 - SMOOTH) * old
        self._trials += 1


@dataclass
class Learner:
    """One device. `fixed_s`: C0."""

    compute: Coefficient = field(default_factory=Coefficient)  # C2
    transfer: Coefficient = field(default_factory=Coefficient)  # C1
    fixed_s: float = 0.0
    rested: int = 0  # cycles, one after the other
    _begun: Device = field(default_factory=lambda: Device(""))  # as it was when the cycle began

    @property
    def compute_s(self) -> float | None:
        """C2; None while unknown."""
        return self.compute.value

    @property
    def transfer_s(self) -> float:
        """C1; 0 where no samples have travelled."""
        return self.transfer.value or 0.0

    def begin(self, device: Device) -> None:
        """A cycle begins: what it does from now on is measured."""
        self._begun = device

    def rest(self) -> None:
        """It had no work in a cycle: nothing was measured, and sometime that is no reason any more."""
        self.rested += 1
        if self.rested >= RESTS:
            self.compute, self.transfer, self.rested = Coefficient(), Coefficient(), 0

    def see(self, device: Device, cycle_s: float) -> None:
        """A cycle has ended, or is late: take in what it showed."""
        self.rested = 0
        begun = self._begun
        samples, trained_s = device.samples - begun.samples, device.trained_s - begun.trained_s
        if samples and (samples >= FEW_SAMPLES or trained_s >= SHORT * cycle_s) and trained_s > 0:
            self.compute.learn(max(trained_s / samples, SHORTEST_S))
        fetched, fetch_s = device.fetched - begun.fetched, device.fetch_s - begun.fetch_s
        # Where no sample came in most of a cycle, one takes that long at least.
        if fetch_s > 0 and (fetched > 0 or fetch_s > cycle_s / 2):
            self.transfer.learn(fetch_s / max(fetched, 1))
        # A commit's time is a running median already.
        self.fixed_s = device.commit_s or 2 * device.pull_s
