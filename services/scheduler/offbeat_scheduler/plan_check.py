"""Can a plan be followed? A model may be the user's own file, so each mistake names its device and value.

What passes here can be worded as directives, written as JSON, and never leaves anybody
waiting for somebody who does not train.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

from offbeat_core.config import MOST_32
from offbeat_scheduler.sync import (
    Allotment,
    Fleet,
    Gate,
    Grid,
    Group,
    Passes,
    Plan,
    Probe,
    Steps,
    Weight,
    When,
)

WHENS: tuple[str, ...] = get_args(When)
WEIGHTS: tuple[str, ...] = get_args(Weight)


def check(plan: Plan, fleet: Fleet, *, parallelized: bool = False) -> None:
    """Raises ValueError: the plan, what is wrong with it, and of which device.

    Args:
        parallelized: the model has samples dealt from the parameter server's data set.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"decide gave {type(plan).__name__} instead of a Plan")
    _check_devices(plan, fleet)
    for name, trigger in plan.triggers.items():
        _check_trigger(name, trigger)
    for one, what in (("batch", "batches"), ("samples", "samples"), ("rate", "rates")):
        for name, value in getattr(plan, what).items():
            if name not in fleet.devices:
                raise ValueError(f"the plan's {what} name '{name}', which is no device of the fleet")
            demand = _positive if what == "rates" else _whole
            demand(value, f"the plan's {one} for '{name}'")
    _check_shares(plan, fleet, parallelized=parallelized)
    _check_gates(plan)
    _check_fold(plan)
    if plan.round is not None:
        _check_round(plan)
    _positive(plan.membership_window_s, "the plan's membership_window_s")
    if plan.wake_at_s is not None:
        _number(plan.wake_at_s, "the plan's wake_at_s")
    if plan.allotment is not None and not isinstance(plan.allotment, Allotment):
        raise ValueError(f"the plan's allotment is {plan.allotment!r}, which is no Allotment")
    if plan.allotment is not None:
        _check_allotment(plan.allotment)
    if not isinstance(plan.gradient_noise, bool):
        raise ValueError(f"the plan's gradient_noise is {plan.gradient_noise!r}, not True or False")
    for what, items, kind in (("probes", plan.probes, Probe), ("notes", plan.notes, str)):
        if odd := [item for item in items if not isinstance(item, kind)]:
            raise ValueError(f"the plan's {what} hold {odd[0]!r}, which is no {kind.__name__}")
    for what in ("commit_rate", "interval_s"):
        if _number(getattr(plan, what), f"the plan's {what}") < 0:
            raise ValueError(f"the plan's {what} is {getattr(plan, what)}; it can't be negative")


def _check_allotment(allotment: Allotment) -> None:
    for what in ("cycle_s", "max_staleness", "average_staleness", "idle_share"):
        _number(getattr(allotment, what), f"the plan's allotment: {what}")
    for what in ("busy_s", "updates"):
        for name, value in getattr(allotment, what).items():
            _number(value, f"the plan's allotment: {what} of '{name}'")  # who may have left since


def _check_devices(plan: Plan, fleet: Fleet) -> None:
    """Each device of the fleet has a trigger or rests; no other is named."""
    trains, rests, devices = set(plan.triggers), set(plan.resting), set(fleet.devices)
    if both := sorted(trains & rests):
        raise ValueError(f"the plan gives {_names(both)} a trigger and lets it rest; one of the two")
    missing, unknown = sorted(devices - trains - rests), sorted((trains | rests) - devices)
    if missing or unknown:
        raise ValueError(
            f"the plan must name each of the fleet's devices in triggers or in resting, and no other; "
            f"missing {missing}, unknown {unknown}"
        )
    if rests and not trains and plan.wake_at_s is None:
        raise ValueError("the plan lets all devices rest and has no wake_at_s: nobody would train again")


def _check_shares(plan: Plan, fleet: Fleet, *, parallelized: bool) -> None:
    """Who trains on dealt samples has a share, and all shares together are no more than there is."""
    if not parallelized:
        if plan.shares:
            raise ValueError("the plan has shares, and its model is not parallelized")
        return
    for name, count in plan.shares.items():
        _whole(count, f"the plan's share for '{name}'")
    for name in plan.triggers:
        if plan.shares.get(name, 0) != plan.samples.get(name):
            raise ValueError(
                f"the plan's share for '{name}' is {plan.shares.get(name)}, and its samples are "
                f"{plan.samples.get(name)}; a parallelized model gives both, and the same"
            )
    if (total := sum(plan.shares.values())) > fleet.samples:
        raise ValueError(f"the plan deals {total} samples; the parameter server holds {fleet.samples}")


def _check_trigger(name: str, trigger: object) -> None:
    if isinstance(trigger, Grid):
        _positive(trigger.interval_s, f"the plan's interval for '{name}'")
        _number(trigger.origin_s, f"the origin of the plan's grid for '{name}'")
    elif isinstance(trigger, Steps):
        _whole(trigger.steps, f"the plan's steps for '{name}'")
    elif isinstance(trigger, Passes):
        _whole(trigger.passes, f"the plan's passes for '{name}'")
    else:
        raise ValueError(f"the plan's trigger for '{name}' is {trigger!r}, not a Grid, Steps or Passes")


def _check_gates(plan: Plan) -> None:
    _check_gate(plan.gate, "the plan's gate")
    gated = plan.gate.slack is not None
    if plan.groups:
        if plan.gate != Gate() or plan.cohort:
            raise ValueError("the plan has groups as well as a gate or a cohort; give one of the two")
        _check_groups(plan.groups, set(plan.triggers))
    for name in plan.cohort:
        if name not in plan.triggers:
            why = "rests" if name in plan.resting else "is no device of the fleet"
            raise ValueError(f"the plan's cohort names '{name}', which {why}: nobody could wait for it")
    if gated and plan.resting and not plan.cohort:
        raise ValueError(
            "the plan has a gate and no cohort, which means all devices, but some rest; name those that train"
        )
    if plan.overlap and (gated or plan.groups):
        raise ValueError("the plan lets commits overlap with training behind a gate")


def _check_gate(gate: Gate, what: str) -> None:
    if gate.slack is not None:
        _whole(gate.slack, f"{what}: slack", least=0)
    if gate.deadline_s is not None:
        _positive(gate.deadline_s, f"{what}: deadline_s")


def _check_groups(groups: tuple[Group, ...], trains: set[str]) -> None:
    """Each device that trains is in one of them; nobody else is in any."""
    for number, group in enumerate(groups, 1):
        if not group.members:
            raise ValueError(f"group {number} of the plan has no members")
        _check_gate(group.gate, f"group {number} of the plan")
    counts = Counter(name for group in groups for name in group.members)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"the plan's groups name {_names(twice)} more than once")
    missing, unknown = sorted(trains - set(counts)), sorted(set(counts) - trains)
    if missing or unknown:
        raise ValueError(
            f"the plan's groups must hold each device that trains, and no other; "
            f"missing {missing}, unknown or resting {unknown}"
        )


def _check_fold(plan: Plan) -> None:
    fold = plan.fold
    if fold.when not in WHENS:
        raise ValueError(f"the plan's fold.when is {fold.when!r}, not one of {', '.join(WHENS)}")
    if fold.weight not in WEIGHTS:
        raise ValueError(f"the plan's fold.weight is {fold.weight!r}, not one of {', '.join(WEIGHTS)}")
    _whole(fold.every_k, "the plan's fold.every_k", least=int(fold.when == "every_k"))
    _positive(fold.server_rate, "the plan's fold.server_rate")
    if _number(fold.staleness_power, "the plan's fold.staleness_power") < 0:
        raise ValueError(f"the plan's fold.staleness_power is {fold.staleness_power}; it can't be negative")
    if fold.when == "at_gate" and _never_closes(plan):
        raise ValueError("the plan folds at a gate that never closes: give it a slack or a deadline_s")


def _check_round(plan: Plan) -> None:
    _whole(plan.round, "the plan's round", least=0)
    if _never_closes(plan):
        raise ValueError(
            f"the plan's round {plan.round} has a gate that never closes: give it a slack or a deadline_s"
        )
    if plan.overlap:
        raise ValueError(f"the plan's round {plan.round} has overlap: after its commit a device rests")


def _never_closes(plan: Plan) -> bool:
    gates = [group.gate for group in plan.groups] or [plan.gate]
    return any(gate.slack is None and gate.deadline_s is None for gate in gates)


# ---- numbers -------------------------------------------------------------------


def _whole(value: object, what: str, least: int = 1) -> None:
    # numpy's integers are none of Python's: neither protobuf's maps nor JSON take them.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r} ({type(value).__name__}), not an int")
    if not least <= value <= MOST_32:
        raise ValueError(f"{what} is {value}, not {least} to {MOST_32}")


def _number(value: object, what: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r} ({type(value).__name__}), not a number")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}")
    return value


def _positive(value: object, what: str) -> None:
    if _number(value, what) <= 0:
        raise ValueError(f"{what} is {value}; it must be positive")


def _names(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
