"""The scheduler's message as rules."""

from __future__ import annotations

from offbeat.v1 import common_pb2 as common
from offbeat_ps.fold import FoldRule, Weight, When
from offbeat_ps.rules import GroupRule, Rules

_WHEN = {
    common.Fold.WHEN_UNSPECIFIED: When.AT_ONCE,
    common.Fold.AT_ONCE: When.AT_ONCE,
    common.Fold.EVERY_K: When.EVERY_K,
    common.Fold.AT_GATE: When.AT_GATE,
}
_WEIGHT = {
    common.Fold.WEIGHT_UNSPECIFIED: Weight.EQUAL,
    common.Fold.EQUAL: Weight.EQUAL,
    common.Fold.SAMPLES: Weight.SAMPLES,
    common.Fold.DATA: Weight.DATA,
    common.Fold.PER_STEP: Weight.PER_STEP,
}


def rules_of(directive: common.ServerDirective) -> Rules:
    """A duration of 0 means its default.

    Raises:
        ValueError: the rules contradict themselves, or are of a newer scheduler; names the field.
    """
    default = Rules()
    return Rules(
        generation=directive.generation,
        slack=_slack(directive.gate),
        deadline_s=_deadline_s(directive.gate),
        cohort=tuple(directive.cohort),
        groups=tuple(_group(number, group) for number, group in enumerate(directive.groups)),
        once=directive.once,
        fold=_fold(directive.fold),
        membership_window_s=directive.membership_window_s or default.membership_window_s,
        lease_s=directive.lease_s or default.lease_s,
        checkpoint_every_s=directive.checkpoint_every_s or default.checkpoint_every_s,
        shares=dict(directive.shares),
        seed=directive.seed,
    )


def _fold(fold: common.Fold) -> FoldRule:
    if fold.when not in _WHEN:
        raise ValueError(f"fold.when: {fold.when} is not known here; update the parameter server")
    if fold.weight not in _WEIGHT:
        raise ValueError(f"fold.weight: {fold.weight} is not known here; update the parameter server")
    return FoldRule(
        when=_WHEN[fold.when],
        weight=_WEIGHT[fold.weight],
        every_k=fold.every_k,
        server_rate=fold.server_rate or FoldRule.server_rate,
        staleness_power=fold.staleness_power,
    )


def _group(number: int, group: common.Group) -> GroupRule:
    members = frozenset(group.members)
    if len(members) < len(group.members):
        twice = next(name for name in group.members if list(group.members).count(name) > 1)
        raise ValueError(f"groups[{number}].members: '{twice}' is named twice")
    return GroupRule(members, _slack(group.gate), _deadline_s(group.gate))


def _slack(gate: common.Gate) -> int | None:
    return gate.slack if gate.HasField("slack") else None


def _deadline_s(gate: common.Gate) -> float | None:
    return gate.deadline_s if gate.HasField("deadline_s") else None
