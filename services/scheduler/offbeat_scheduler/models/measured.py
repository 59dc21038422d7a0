"""What was measured since the last look: means, so that jitter decides little."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat_scheduler.sync import Device, Fleet

FIRST_STEPS = 3
"""The first local updates warm caches up."""

SETTLE_STEPS = 10
SETTLE_S = 3.0
"""A measured step time is a moving average, reported now and then: it says what is once so many local
updates and seconds have passed since a change."""


@dataclass
class _Sum:
    step_s: float = 0.0
    commit_s: float = 0.0
    count: int = 0


class Measured:
    """Mean step and commit time per device, over the moments at which it was looked at."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._valid_from: dict[str, tuple[int, float]] = {}  # local updates, seconds

    def changed(self, device: Device, now_s: float) -> None:
        """From now on its steps take another time, by our own doing."""
        self._sums.pop(device.name, None)
        self._valid_from[device.name] = (device.steps + SETTLE_STEPS, now_s + SETTLE_S)

    def see(self, fleet: Fleet) -> None:
        for name in self._sums.keys() - fleet.devices.keys():
            del self._sums[name]
        for name in self._valid_from.keys() - fleet.devices.keys():
            del self._valid_from[name]
        for name, device in fleet.devices.items():
            steps, moment_s = self._valid_from.get(name, (FIRST_STEPS, 0.0))
            if device.step_s > 0 and device.steps >= steps and fleet.now_s >= moment_s:
                total = self._sums.setdefault(name, _Sum())
                total.step_s += device.step_s
                total.commit_s += device.commit_s
                total.count += 1

    def step_s(self, name: str) -> float | None:
        """None: not known."""
        total = self._sums.get(name)
        return total.step_s / total.count if total else None

    def commit_s(self, name: str) -> float:
        """0: not known."""
        total = self._sums.get(name)
        return total.commit_s / total.count if total else 0.0

    def forget(self) -> None:
        """Begin the means anew."""
        self._sums.clear()
