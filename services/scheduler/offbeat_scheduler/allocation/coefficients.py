"""A group's coefficients of time and of energy: as they were measured, or by what they follow from."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat_scheduler.allocation import physical
from offbeat_scheduler.allocation.instance_parts import LearnerGroup, Task


@dataclass(frozen=True)
class Coefficients:
    """Of tau · d, of d, and of 1: C2, C1, C0 in seconds, or G2, G1, G0 in joules."""

    per_sample_update: float
    per_sample: float
    fixed: float


def seconds(group: LearnerGroup, task: Task | None, *, samples_travel: bool) -> Coefficients:
    """C2, C1, C0. `task` is there where something follows from it."""
    compute, per_sample, fixed = group.compute_s_per_sample_update, group.transfer_s_per_sample, group.fixed_s
    if group.cpu_hz is not None and task is not None and task.operations_per_sample is not None:
        compute = physical.compute_s(task.operations_per_sample, group.cpu_hz)
    if group.link is not None and task is not None:
        way = physical.transfer_s(task.size, group.link.rate, samples_travel=samples_travel)
        per_sample, fixed = way.per_sample, way.fixed
    return Coefficients(compute or 0.0, per_sample or 0.0, fixed or 0.0)


def joules(group: LearnerGroup, task: Task | None, *, samples_travel: bool) -> Coefficients:
    """G2, G1, G0; zeros for a group without an energy limit."""
    energy = group.energy
    if energy is None:
        return Coefficients(0.0, 0.0, 0.0)
    compute = energy.compute_j_per_sample_update
    if energy.compute_w is not None:
        compute = energy.compute_w * seconds(group, task, samples_travel=samples_travel).per_sample_update
    per_sample, fixed = energy.transfer_j_per_sample, energy.fixed_j
    if group.link is not None and task is not None:
        way = physical.transfer_j(
            task.size,
            group.link.rate,
            samples_travel=samples_travel,
            receive_w=energy.receive_w or 0.0,
            transmit_w=group.link.transmit_w if energy.transmit_w is None else energy.transmit_w,
        )
        per_sample = way.per_sample if per_sample is None else per_sample
        fixed = way.fixed if fixed is None else fixed
    return Coefficients(compute or 0.0, per_sample or 0.0, fixed or 0.0)
