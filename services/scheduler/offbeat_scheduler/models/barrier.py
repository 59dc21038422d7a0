"""What the models with a barrier share."""

from __future__ import annotations

from offbeat_scheduler.sync import Fleet, Fold, Gate, Plan, Steps


def barrier_plan(fleet: Fleet, steps: int, check_period_s: float) -> Plan:
    """Everyone commits after `steps` local updates and waits for all; the mean enters at the gate."""
    round_s = max((steps * device.step_s + device.commit_s for device in fleet.devices.values()), default=0.0)
    return Plan(
        triggers={name: Steps(steps) for name in fleet.devices},
        gate=Gate(slack=0),
        fold=Fold(when="at_gate", weight="equal"),
        cohort=tuple(sorted(fleet.devices)),
        overlap=False,
        membership_window_s=max(2 * check_period_s, 3 * round_s),
        interval_s=round_s,
    )
