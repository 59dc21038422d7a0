"""A plan that can't be followed is refused with a message that names the device and the value."""

import math
from dataclasses import replace

import numpy as np
import pytest

from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Allotment, Device, Fleet, Fold, Gate, Grid, Group, Passes, Plan, Steps

FLEET = Fleet(1.0, {name: Device(name) for name in ("a", "b", "c")})
STEPS = {name: Steps(2) for name in ("a", "b", "c")}
FREE = Plan(STEPS)
BARRIER = Plan(STEPS, Gate(slack=0), Fold("at_gate"), ("a", "b", "c"))
AB = Group(("a", "b"), Gate(slack=0))
C = Group(("c",), Gate(slack=1, deadline_s=3.0))
GROUPS = Plan(STEPS, fold=Fold("at_gate"), groups=(AB, C))
ROUND = Plan(
    {"a": Passes(1), "b": Steps(3)},
    Gate(slack=0),
    Fold("at_gate", "data"),
    ("a", "b"),
    resting=frozenset({"c"}),
    round=4,
)


PROMISED = Allotment(5.0, {"a": 4.9}, 1.0, 0.5, 0.1, {"a": 3.5})


@pytest.mark.parametrize(
    "plan",
    [
        FREE,
        replace(FREE, allotment=PROMISED, gradient_noise=True),
        BARRIER,
        GROUPS,
        ROUND,
        replace(FREE, overlap=True, gate=Gate(deadline_s=2.0)),
        replace(FREE, triggers={"a": Grid(1.5, -2)}, resting=frozenset({"b", "c"})),
        replace(FREE, triggers={}, resting=frozenset(STEPS), wake_at_s=9.0),
        replace(FREE, batches={"a": 1, "c": 2**32 - 1}),
        replace(ROUND, gate=Gate(deadline_s=5.0)),
        replace(GROUPS, round=1, triggers={"a": Steps(1), "b": Steps(1)}, groups=(AB,), resting={"c"}),
        replace(FREE, fold=Fold("every_k", "per_step", every_k=2, server_rate=0.5, staleness_power=0.5)),
        replace(BARRIER, cohort=()),
    ],
)
def test_a_plan_that_can_be_followed_passes(plan):
    check(plan, FLEET)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "decide gave NoneType instead of a Plan"),
        # who trains and who rests
        (replace(FREE, triggers={"a": Steps(1)}), r"missing \['b', 'c'\], unknown \[\]"),
        (replace(FREE, triggers={**STEPS, "x": Steps(1)}), r"unknown \['x'\]"),
        (replace(FREE, resting={"x"}), r"unknown \['x'\]"),
        (replace(FREE, resting={"b"}), "gives 'b' a trigger and lets it rest"),
        (replace(FREE, triggers={}, resting=set(STEPS)), "all devices rest"),
        # what an allocation promises
        (replace(FREE, gradient_noise=1), "gradient_noise is 1, not True or False"),
        (replace(FREE, allotment=replace(PROMISED, cycle_s=float("nan"))), "cycle_s is nan"),
        (replace(FREE, allotment=replace(PROMISED, busy_s={"a": "x"})), "busy_s of 'a' is 'x'"),
        (replace(FREE, allotment=replace(PROMISED, updates={"a": float("inf")})), "updates of 'a' is inf"),
        # triggers and batches
        (replace(FREE, triggers={**STEPS, "b": Grid(0.0)}), "interval for 'b' is 0.0"),
        (replace(FREE, triggers={**STEPS, "b": Grid(float("nan"))}), "interval for 'b' is nan"),
        (replace(FREE, triggers={**STEPS, "b": Grid(1.0, float("inf"))}), "grid for 'b' is inf"),
        (replace(FREE, triggers={**STEPS, "b": Steps(0)}), "steps for 'b' is 0"),
        (replace(FREE, triggers={**STEPS, "b": Steps(2**32)}), "steps for 'b' is 4294967296"),
        (replace(FREE, triggers={**STEPS, "b": Steps(1.5)}), r"steps for 'b' is 1.5 \(float\), not an int"),
        (
            replace(FREE, triggers={**STEPS, "b": Steps(np.int64(3))}),
            r"steps for 'b' is .*int64\), not an int",
        ),
        (replace(FREE, triggers={**STEPS, "b": Passes(-1)}), "passes for 'b' is -1"),
        (replace(FREE, triggers={**STEPS, "b": 7}), "trigger for 'b' is 7"),
        (replace(FREE, batches={"b": 0}), "batch for 'b' is 0"),
        (replace(FREE, batches={"b": True}), "batch for 'b' is True"),
        (replace(FREE, batches={"x": 3}), "batches name 'x'"),
        (replace(FREE, samples={"b": 0}), "samples for 'b' is 0"),
        (replace(FREE, samples={"x": 3}), "samples name 'x'"),
        (replace(FREE, rates={"b": 0.0}), "rate for 'b' is 0.0"),
        (replace(FREE, rates={"b": math.inf}), "rate for 'b' is inf"),
        # gates, groups, rounds
        (replace(BARRIER, gate=Gate(slack=-1)), "gate: slack is -1"),
        (replace(BARRIER, gate=Gate(0, deadline_s=0.0)), "gate: deadline_s is 0.0"),
        (replace(BARRIER, cohort=("a", "x")), "cohort names 'x', which is no device"),
        (replace(ROUND, cohort=("a", "c")), "cohort names 'c', which rests"),
        (replace(ROUND, cohort=()), "a gate and no cohort"),
        (replace(BARRIER, overlap=True), "overlap .* behind a gate"),
        (replace(GROUPS, overlap=True), "overlap .* behind a gate"),
        (replace(GROUPS, gate=Gate(slack=0)), "groups as well as a gate"),
        (replace(GROUPS, gate=Gate(deadline_s=2.0)), "groups as well as a gate"),
        (replace(GROUPS, cohort=("a",)), "groups as well as a gate or a cohort"),
        (replace(GROUPS, groups=(AB,)), r"missing \['c'\]"),
        (replace(GROUPS, groups=(AB, C, Group(("x",), Gate(0)))), r"unknown or resting \['x'\]"),
        (replace(GROUPS, groups=(AB, Group(("c", "a"), Gate(0)))), "name 'a' more than once"),
        (replace(GROUPS, groups=(AB, C, Group((), Gate(0)))), "group 3 of the plan has no members"),
        (replace(GROUPS, groups=(AB, Group(("c",), Gate(slack=1.0)))), "group 2 .* slack is 1.0"),
        (
            replace(GROUPS, fold=Fold(), round=1, groups=(AB, Group(("c",), Gate()))),
            "round 1 .* never closes",
        ),
        (replace(ROUND, fold=Fold(), gate=Gate()), "round 4 has a gate that never closes"),
        (replace(ROUND, round=-1), "round is -1"),
        (replace(ROUND, gate=Gate(deadline_s=1.0), overlap=True), "round 4 has overlap"),
        # folds and the rest
        (replace(FREE, fold=Fold("at_gate")), "a gate that never closes"),
        (replace(FREE, fold=Fold("soon")), "fold.when is 'soon'"),
        (replace(FREE, fold=Fold(weight="heavy")), "fold.weight is 'heavy'"),
        (replace(FREE, fold=Fold("every_k")), "every_k is 0"),
        (replace(FREE, fold=Fold(server_rate=0.0)), "server_rate is 0.0"),
        (replace(FREE, fold=Fold(staleness_power=-0.5)), "staleness_power is -0.5"),
        (replace(FREE, membership_window_s=0.0), "membership_window_s is 0.0"),
        (replace(FREE, wake_at_s=float("nan")), "wake_at_s is nan"),
        (replace(FREE, commit_rate=np.float32(1)), "commit_rate is .*float32"),
        (replace(FREE, interval_s=-1.0), "interval_s is -1.0"),
        (replace(FREE, probes=(1.5,)), "probes hold 1.5, which is no Probe"),
        (replace(FREE, notes=("fine", 7)), "notes hold 7, which is no str"),
    ],
)
def test_a_plan_that_cannot_be_followed_says_what_is_wrong(plan, message):
    with pytest.raises(ValueError, match=message):
        check(plan, FLEET)
