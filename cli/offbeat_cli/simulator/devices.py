"""A device in a simulation: how fast it is, and what it does between two events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from offbeat_core.averages import SmoothedMean
from offbeat_ps.store import Snapshot
from offbeat_worker.trigger import Trigger


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
    """

    name: str
    step_s: float
    commit_s: float = 0.01
    hold_s: float = 0.001
    jitter: float = 0.0
    joins_s: float = 0.0
    leaves_s: float | None = None
    speeds: tuple[tuple[float, float], ...] = ()

    def step_at(self, now_s: float) -> float:
        """Seconds per local update at a moment."""
        current = self.step_s
        for at_s, step_s in self.speeds:
            if now_s >= at_s:
                current = step_s
        return current


class Trainer:
    """A device's state: its models, its trigger, what it measured. The driver moves it in time.

    `base` is what the next update is the difference to, `copy` what was sent: when a fresh W
    arrives, local becomes W + (local - copy) (`docs/adsp.md`).
    """

    def __init__(self, device: VirtualDevice, index: int, seed: int) -> None:
        self.device = device
        self.index = index
        self.trigger = Trigger()
        self.random = np.random.default_rng((seed, index))
        self.local = np.zeros(0, dtype=np.float32)
        self._base = self.local
        self.base_version = 0
        self.base_at_s = 0.0  # when the server's model was that
        self.in_flight = False
        self.cut_s = 0.0
        self.arrived: tuple[Snapshot, float] | None = None  # a fresh model, and when it left the server
        self.waiting = False
        self.present = True
        self.steps = 0
        self.pending_steps = 0
        self.step_time = SmoothedMean()
        self.commit_time = SmoothedMean()
        self.train_loss = SmoothedMean(0.05)
        self.compute_s = 0.0
        self.commit_s = 0.0

    def load(self, snapshot: Snapshot, at_s: float) -> None:
        """Begin at the server's model."""
        self.local = snapshot.values.copy()
        self._base = self.local.copy()
        self.base_version, self.base_at_s = snapshot.version, at_s

    def cut(self, now_s: float) -> tuple[np.ndarray, int]:
        """(U, steps in it): the update since the last cut, which is now on its way."""
        update = self._base - self.local
        self._base = self.local.copy()
        steps, self.pending_steps = self.pending_steps, 0
        self.in_flight, self.cut_s = True, now_s
        return update, steps

    def merge(self) -> None:
        """Take over the fresh model that has arrived; steps made in flight are kept."""
        if self.arrived is None:
            return
        snapshot, left_s = self.arrived
        self.local = snapshot.values + (self.local - self._base)
        self._base = snapshot.values.copy()
        self.base_version, self.base_at_s = snapshot.version, left_s
        self.arrived, self.in_flight, self.waiting = None, False, False

    def vary(self, seconds: float) -> float:
        """A duration with the device's jitter."""
        if not self.device.jitter or not seconds:
            return seconds
        return seconds * float(np.exp(self.device.jitter * self.random.standard_normal()))
