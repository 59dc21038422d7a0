"""Groups of devices whose commits arrive together (FedCompass; see `fedcompass.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

EPSILON = 1e-9


@dataclass(frozen=True)
class Pace:
    """What was measured of a device, in seconds."""

    step_s: float
    commit_s: float

    def steps_in(self, seconds: float) -> int:
        """Whole local updates after which a commit still arrives within `seconds`."""
        return math.floor((seconds - self.commit_s) / self.step_s + EPSILON)

    def arrives_s(self, steps: int) -> float:
        return steps * self.step_s + self.commit_s


@dataclass(frozen=True)
class ArrivalGroup:
    """`cycle_s`: from one arrival to the next."""

    steps: Mapping[str, int]
    cycle_s: float


def group(paces: Mapping[str, Pace], min_steps: int, max_steps: int) -> list[ArrivalGroup]:
    """All devices in groups, the fastest group first.

    The fastest device makes `max_steps` local updates, which sets the base cycle. Whoever can make
    `min_steps` in it is in the same group. Of the others, the fastest sets the next group's cycle: the
    smallest multiple of the base cycle, so that slow groups arrive together with a fast one, in which it
    can make the geometric mean of `min_steps` and `max_steps`. That leaves room for slower ones to be in
    the group as well, and its updates do not get old; and so on.
    """
    left = sorted(paces, key=lambda name: (paces[name].step_s, paces[name].commit_s, name))
    groups: list[ArrivalGroup] = []
    middle = round(math.sqrt(min_steps * max_steps))
    base_s = cycle_s = paces[left[0]].arrives_s(max_steps) if left else 0.0
    while left:
        if groups:
            needed_s = paces[left[0]].arrives_s(middle)
            cycle_s = base_s * math.ceil(needed_s / base_s - EPSILON)
        able = {name: paces[name].steps_in(cycle_s) for name in left}
        # The first sets the cycle, so it is in it, whatever rounding says.
        inside = {
            name: min(max(steps, min_steps), max_steps)
            for name, steps in able.items()
            if steps >= min_steps or name == left[0]
        }
        groups.append(ArrivalGroup(inside, cycle_s))
        left = [name for name in left if name not in inside]
    return groups
