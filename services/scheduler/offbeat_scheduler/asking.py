"""Asking a synchronization model: its plan, checked; what of it all share; its errors in words.

The live scheduler and the simulator ask in the same way. A model may be the user's own file.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

from offbeat_core.usercode import line_of
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


def checked(model: SyncModel, fleet: Fleet) -> Plan:
    """What the model decides. Raises what it raises, or ValueError where the plan can't be followed."""
    plan = model.decide(fleet)
    check(plan, fleet, parallelized=model.parallelized)
    return _frozen(plan)


def said(model: SyncModel, name: str, error: BaseException) -> str:
    """What went wrong in a model, with the line where the file is the user's own."""
    line = line_of(error, inspect.getfile(type(model))) if model.digest else ""
    where = f" ({line})" if line else ""
    return f"sync model '{name}': {type(error).__name__}: {error}{where}"


def _frozen(plan: Plan) -> Plan:
    """Of its own: a model that goes on changing what it gave would hide what is new in its next plan."""
    return replace(
        plan,
        triggers=dict(plan.triggers),
        batches=dict(plan.batches),
        rates=dict(plan.rates),
        samples=dict(plan.samples),
        allotment=plan.allotment
        and replace(plan.allotment, busy_s=dict(plan.allotment.busy_s), updates=dict(plan.allotment.updates)),
        shares=dict(plan.shares),
        cohort=tuple(plan.cohort),
        groups=tuple(replace(group, members=tuple(group.members)) for group in plan.groups),
        resting=frozenset(plan.resting),
        notes=tuple(plan.notes),
        probes=tuple(plan.probes),
    )


def shared(plan: Plan) -> tuple[object, ...]:
    """What the fleet shares: a change of it begins a new generation.

    Within a round who takes part is no such change: the gate waits for whoever is left, and
    those that have committed would commit a second time under another generation.
    """
    groups = frozenset((frozenset(group.members), group.gate) for group in plan.groups)
    cohort = plan.round is None and frozenset(plan.cohort)
    return plan.gate, plan.fold, groups, plan.round, cohort, frozenset(plan.shares.items())
