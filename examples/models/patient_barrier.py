"""A barrier that waits for slow devices, but not for ever. Try it:

offbeat demo --sync examples/models/patient_barrier.py:PatientBarrier --speeds 1,3,3,0.2
"""

from __future__ import annotations

from statistics import median

from pydantic import Field

from offbeat_core.config import Settings
from offbeat_scheduler.sync import Fleet, Fold, Gate, Plan, Steps, SyncModel


class PatientBarrier(SyncModel):
    """All make tau local updates, then their mean enters. A device that takes more than `patience`
    times as long as the typical one misses its cycle: its update is in the next mean."""

    short_option = "patience"  # so that PatientBarrier:2 sets it

    class Options(Settings):
        tau: int = Field(8, ge=1, description="Local updates between two barriers.")
        patience: float = Field(1.5, ge=1, description="How long to wait, in times of the typical device.")

    deadline_s: float | None = None

    def decide(self, fleet: Fleet) -> Plan:
        tau = self.options.tau
        self._measure([tau * device.step_s + device.commit_s for device in fleet.devices.values()])
        return Plan(
            triggers={name: Steps(tau) for name in fleet.devices},
            gate=Gate(slack=0, deadline_s=self.deadline_s),
            cohort=tuple(sorted(fleet.devices)),
            fold=Fold(when="at_gate", weight="equal"),
            # M counts who was seen within this time: several rounds of the slowest.
            membership_window_s=max(2 * self.run.check_period_s, 10 * (self.deadline_s or 0.0)),
            wake_at_s=fleet.now_s + self.run.check_period_s,
        )

    def _measure(self, rounds_s: list[float]) -> None:
        if not rounds_s or min(rounds_s) <= 0:
            return  # somebody's speed is not known yet
        wanted_s = self.options.patience * median(rounds_s)
        # Another gate begins a new generation, which lets everybody pass: not for a bit of jitter.
        if self.deadline_s is None or not 0.8 < wanted_s / self.deadline_s < 1.25:
            self.deadline_s = wanted_s
