"""What models that commit after a number of local updates share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from offbeat_scheduler.sync import Device, Fleet, Fold, Gate, Plan, Steps

LOOK_AGAIN_S = 0.5
"""While a device's speed is unknown, look again so soon."""


def barrier_plan(
    fleet: Fleet,
    steps: int,
    check_period_s: float,
    *,
    batches: Mapping[str, int] | None = None,
    wake_at_s: float | None = None,
) -> Plan:
    """Everyone commits after `steps` local updates and waits for all; the mean enters at the gate.

    `batches`: per device, where they differ: then each update counts by its samples.
    """
    round_s = longest_s(fleet, steps)
    return Plan(
        triggers={name: Steps(steps) for name in fleet.devices},
        gate=Gate(slack=0),
        fold=Fold(when="at_gate", weight="equal" if batches is None else "samples"),
        cohort=tuple(sorted(fleet.devices)),
        batches=batches or {},
        membership_window_s=window_s(check_period_s, round_s),
        interval_s=round_s,
        wake_at_s=wake_at_s,
    )


def round_s(device: Device, steps: int) -> float:
    """Seconds from one commit to the next; of what is not known yet, 0."""
    return steps * device.step_s + device.commit_s


def longest_s(fleet: Fleet, steps: int) -> float:
    """Seconds that the slowest needs for a round, rounded up to two digits: else each measurement would
    make a new plan."""
    longest = max((round_s(device, steps) for device in fleet.devices.values()), default=0.0)
    if longest <= 0:
        return 0.0
    digits = 1 - math.floor(math.log10(longest))
    return round(math.ceil(round(longest * 10.0**digits, 6)) / 10.0**digits, max(0, digits))


def window_s(check_period_s: float, interval_s: float) -> float:
    """M's window: at least 2 check periods and 3 intervals, in whole check periods."""
    return check_period_s * max(2, math.ceil(3 * interval_s / check_period_s))
