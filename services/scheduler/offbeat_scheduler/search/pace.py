"""What a search knows of the fleet: speeds, commit times, and the shortest interval that all can keep."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from offbeat_scheduler.search.progress import Terms
from offbeat_scheduler.sync import Device, Fleet

HUB_UTILISATION = 0.5
"""The parameter server is busy at most this share of the time: beyond it commits queue, and O grows."""

MOST_COMMITS = 1000
"""No more commits per check period, however fast everything is."""

SHRINK = 4.0
"""The interval becomes shorter by this factor at most, from one segment to the next."""

HOPELESS_TIMES_MEDIAN = 20.0
"""A device that needs so many times what the median device needs does not hold the others back."""

_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True)
class Pace:
    """The fleet at one moment, as measured.

    Args:
        now_s: seconds since the run's training began.
        check_period_s: Γ.
        names: of the devices, sorted.
        terms: speeds and commit costs; devices that were not measured yet count as the median one.
        floor_s: no interval is shorter.
        stepped, committed: is the step (commit) time of every device known?
        limited_by: what sets the floor, for the operator.
        hopeless: devices too slow to be waited for; they don't raise the floor.
        step_s: seconds per usual step by device, where known.
        travel_s: from a deadline until its commits are in the server's model, on average: the step
            that is under way ends, and the commit travels one way.
    """

    now_s: float
    check_period_s: float
    names: tuple[str, ...]
    terms: Terms
    floor_s: float
    stepped: bool
    committed: bool
    limited_by: str = ""
    hopeless: tuple[str, ...] = ()
    step_s: dict[str, float] = field(default_factory=dict)
    travel_s: float = 0.0

    @property
    def measured(self) -> bool:
        return self.stepped and self.committed

    @property
    def known(self) -> bool:
        """Is anything known of the speeds?"""
        return bool(self.step_s)

    @property
    def usable(self) -> bool:
        """Is a step and a commit of somebody known, so that an interval can be computed at all?"""
        return self.known and bool((self.terms.held + self.terms.delay).max() > 0)

    @property
    def max_rate(self) -> int:
        """The most commits per check period; at least 1."""
        return max(1, int(self.check_period_s / self.floor_s + 1e-9))


def need_s(device: Device) -> float:
    """Seconds that one commit and the step it waits for take: no device commits more often for long.

    A commit starts at a batch boundary, so it may start one step after its deadline, and the next
    one can't start before it is back.
    """
    return device.step_s + device.commit_s


def measure(
    fleet: Fleet,
    check_period_s: float,
    *,
    overlap: bool,
    shown_s: Mapping[str, float] = _NOTHING,
    interval_s: float = 0.0,
    gains: Mapping[str, float] = _NOTHING,
    usual_s: Mapping[str, float] = _NOTHING,
) -> Pace:
    """The pace of a fleet.

    Args:
        shown_s: by device, the interval that its own commit counts show it to need, where that is known.
        interval_s: the one in force; 0: none. Commit times depend on it, by the load that
            commits are, so what was measured under it says little of a much shorter one.
        gains: by device, how many of the run's usual local updates one of its own is worth, where a
            batch of its own makes that another number than 1. Speeds are in usual ones.
        usual_s: by such a device, what a usual local update would take it.
    """
    devices = [fleet.devices[name] for name in sorted(fleet.devices)]
    step = _filled([device.step_s for device in devices])
    commit = _filled([device.commit_s for device in devices])
    hold = np.minimum(_filled([device.hold_s for device in devices]), commit)
    gain = np.array([gains.get(device.name, 1.0) for device in devices], dtype=float)
    terms = Terms(
        speed=gain / np.where(step > 0, step, 1.0),
        held=hold if overlap else commit,
        delay=commit if overlap else np.zeros_like(commit),
    )
    # At least a usual local update: with a small batch a commit could come after next to no progress,
    # and commits would take most of the time.
    needs = {
        device.name: max(need_s(device), usual_s.get(device.name, 0.0) + device.commit_s)
        for device in devices
    }
    floor_s, limited_by, hopeless = _floor(needs, fleet.server_s, check_period_s, shown_s)
    if floor_s < interval_s / SHRINK:
        floor_s, limited_by = interval_s / SHRINK, ""
    return Pace(
        now_s=fleet.now_s,
        check_period_s=check_period_s,
        names=tuple(device.name for device in devices),
        terms=terms,
        floor_s=floor_s,
        stepped=bool(devices) and all(device.step_s > 0 for device in devices),
        committed=bool(devices) and all(device.commit_s > 0 for device in devices),
        limited_by=limited_by,
        hopeless=hopeless,
        step_s={
            device.name: usual_s.get(device.name, device.step_s) for device in devices if device.step_s > 0
        },
        travel_s=float((step / gain + commit).mean() / 2) if devices else 0.0,
    )


def _filled(values: Sequence[float]) -> np.ndarray:
    """Unknown values (0) become the median of the known ones; 0 if none is known."""
    known = [value for value in values if value > 0]
    middle = statistics.median(known) if known else 0.0
    return np.array([value if value > 0 else middle for value in values], dtype=float)


def _floor(
    measured: Mapping[str, float], server_s: float, check_period_s: float, shown_s: Mapping[str, float]
) -> tuple[float, str, tuple[str, ...]]:
    needs = {name: max(need, shown_s.get(name, 0.0)) for name, need in measured.items()}
    needs = {name: need for name, need in needs.items() if need > 0}
    middle = statistics.median(needs.values()) if needs else 0.0
    hopeless = tuple(
        name for name, need in needs.items() if need > check_period_s or need > HOPELESS_TIMES_MEDIAN * middle
    )
    hub_s = len(measured) * server_s / HUB_UTILISATION
    kept = {name: need for name, need in needs.items() if name not in hopeless}
    slowest = max(kept, key=lambda name: kept[name], default="")
    limits = {
        "": check_period_s / MOST_COMMITS,
        "the parameter server's load": hub_s,
        (
            f"the commits that {slowest} was seen to make"
            if shown_s.get(slowest, 0.0) > measured.get(slowest, 0.0)
            else f"the step and commit time of {slowest}"
        ): kept.get(slowest, 0.0),
    }
    limit = max(limits, key=lambda name: limits[name])
    return min(limits[limit], check_period_s), limit, hopeless
