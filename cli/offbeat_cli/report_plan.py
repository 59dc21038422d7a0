"""What the plans of a run said about who trains how much, for the report.

Under plain ADSP or a plain barrier there is nothing to say: all devices train all the time, by one
rule. Rounds, groups, batches by speed or goodput, allotted samples, and local updates that change are shown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations, pairwise

from offbeat_cli.history import History, PlanSeen


@dataclass(frozen=True)
class PlanTable:
    """`changes`: the local updates between commits changed while the run went on."""

    text: str
    head: list[str]
    rows: list[list[str]]
    changes: bool


def read(history: History) -> PlanTable | None:
    """None where every plan let all devices train alike."""
    plans = history.plans
    if not plans:
        return None
    last = plans[-1]
    names = sorted({name for plan in plans for name in plan.trains})
    steps = {name: [plan.steps[name] for plan in plans if name in plan.steps] for name in names}
    rounds = {plan.round: plan.trains for plan in plans if plan.round is not None}
    changes = any(len(set(found)) > 1 for found in steps.values())
    differ = len({found[-1] for found in steps.values() if found}) > 1
    batches = {name: plan.batches[name] for plan in plans for name in names if name in plan.batches}
    text, columns = [], {"device": names}
    if changes or differ:
        text.append("How many local updates a device makes for a commit is set while the run goes on.")
        columns["local updates a commit"] = [_shown(steps[name]) for name in names]
    if rounds:
        took_part = Counter(name for trained in rounds.values() for name in trained)
        text.append(f"{len(rounds)} rounds: whoever takes part commits once and then rests.")
        columns["rounds"] = [str(took_part[name]) for name in names]
    if last.groups:
        text.append("Devices wait for those of their own group only; the table shows the last groups.")
        groups = sorted(last.groups, key=min)
        columns["group"] = [
            ", ".join(str(number) for number, group in enumerate(groups, 1) if name in group) or "-"
            for name in names
        ]
    if any(plan.updates for plan in plans):
        found, more = _by_goodput(history, names)
        text.append(found)
        columns |= more
    elif batches:
        text.append("The batch follows each device's speed.")
        columns["batch"] = [str(batches.get(name, "-")) for name in names]
    if any(plan.samples for plan in plans):
        text.append(_promised([plan for plan in plans if plan.allotment]))
        columns["passes a cycle"] = [
            _shown([plan.passes[name] for plan in plans if name in plan.passes]) for name in names
        ]
        columns["samples a pass"] = [
            _shown([plan.samples[name] for plan in plans if name in plan.samples]) for name in names
        ]
    if len(columns) == 1:
        return None
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return PlanTable(" ".join(text), list(columns), rows, changes)


def _by_goodput(history: History, names: list[str]) -> tuple[str, dict[str, list[str]]]:
    """Batches, and the local updates in a commit interval: planned at last, and observed since the
    batches changed last."""
    last = next(plan for plan in reversed(history.plans) if plan.updates)
    assert last.allotment is not None
    changed = [after.at_s for before, after in pairwise(history.plans) if before.batches != after.batches]
    cycle_s = float(last.allotment["cycle_s"])
    # The first commits are partly of before.
    from_s = (changed[-1] if changed else 0.0) + cycle_s
    made = {name: history.device(name).local_updates(from_s) for name in names}
    seen = [value for value in made.values() if value is not None]
    text = (
        "Each device has the batch of the highest goodput, and its learning rate goes with that. At last a "
        f"commit interval was {cycle_s:.4g} s; the local updates in it differed, as planned, by "
        f"{float(last.allotment['max_staleness']):.3g} at most and "
        f"{float(last.allotment['average_staleness']):.3g} on average"
    )
    text += f"; observed: {max(seen) - min(seen):.3g} and {_mean_apart(seen):.3g}." if seen else "."
    return text, {
        "batch": [
            _shown([plan.batches.get(name, history.batch) for plan in history.plans]) for name in names
        ],
        "updates an interval, planned": [f"{last.updates.get(name, 0):.3g}" for name in names],
        "observed": ["-" if (value := made[name]) is None else f"{value:.3g}" for name in names],
    }


def _mean_apart(values: list[float]) -> float:
    """Mean over pairs."""
    pairs = [abs(one - other) for one, other in combinations(values, 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


def _promised(plans: list[PlanSeen]) -> str:
    text = "Samples and passes are allotted anew for each cycle, by each device's measured speed."
    found = [plan.allotment for plan in plans if plan.allotment]
    if not found:
        return text
    idle = sum(float(one["idle_share"]) for one in found) / len(found)
    most = max(float(one["max_staleness"]) for one in found)
    text += (
        f" A cycle is {float(found[-1]['cycle_s']):g} s; as planned, devices were idle for "
        f"{idle:.1%} of it, and their passes differed by {most:g} at most."
    )
    if slowest_s := max(plan.solve_s for plan in plans):
        text += f" Solving an allocation took {1000 * slowest_s:.3g} ms at most."
    return text


def _shown(steps: list[int]) -> str:
    """The first and the last, and the range where that says more."""
    if not steps:
        return "-"
    first, last, ends = steps[0], steps[-1], {steps[0], steps[-1]}
    shown = str(last) if first == last else f"{first} → {last}"
    inner = {min(steps), max(steps)} <= ends
    return shown if inner else f"{shown} ({min(steps)} – {max(steps)})"
