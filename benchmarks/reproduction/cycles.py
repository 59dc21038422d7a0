"""(j): accuracy after the same number of cycles, allotted in three ways."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.reproduction.build_allocation import (
    COMMIT_S,
    CYCLE_S,
    CYCLED,
    FAST_S,
    SCHEMES,
    SLOW_S,
    Cycled,
)
from benchmarks.reproduction.claims import Claim
from benchmarks.reproduction.found import Found
from benchmarks.reproduction.markdown import percent, table
from benchmarks.reproduction.workloads import WORKLOADS
from offbeat_scheduler.allocation import Allocation, Integer, Problem, Scheme, solve

OURS, *OTHERS = SCHEMES
AFTER = (5, 10, 20)
"""Cycles; the last one is judged."""

MEASURED = 1
"""Cycles in which learners are only measured, before those that count."""

SMOOTH = 3
"""The accuracy after n cycles is the mean over the models of so many, the n-th the last."""

TRAINED_ON = 60_000
SOLVED_BY: Mapping[str, tuple[Scheme, Integer]] = {
    "Optimised": ("async", "full-cycle"),
    "Synchronous": ("sync", "maximal"),
    "Equal": ("eta", "maximal"),
}


@dataclass(frozen=True)
class Difference:
    """Of two means over paired seeds, in points of accuracy, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    @property
    def verdict(self) -> str:
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "as good"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """ours - theirs over paired seeds. By Student's t: of few seeds a bootstrap would make too much."""
    gaps = np.asarray(ours, float) - np.asarray(theirs, float)
    mean = float(gaps.mean())
    half = float(stats.t.ppf(0.975, gaps.size - 1) * gaps.std(ddof=1) / math.sqrt(gaps.size))
    return Difference(mean, mean - half, mean + half)


def after_cycles(run: Mapping[str, Sequence[float]], number: int) -> float:
    """Accuracy after `number` cycles, beside those of measurement and the initial model."""
    end = 1 + MEASURED + number
    if len(run["value"]) < end:
        raise ValueError(f"{len(run['value']) - 1 - MEASURED} cycles were made, and not {number}")
    return float(np.mean(run["value"][end - SMOOTH : end]))


def after_seconds(run: Mapping[str, Sequence[float]], seconds: float) -> float:
    """Accuracy of the models of the last cycles until then."""
    until = [value for at_s, value in zip(run["time_s"], run["value"], strict=True) if at_s <= seconds]
    return float(np.mean(until[-SMOOTH:]))


# ---- what the solver promises ---------------------------------------------------------------


def planned(what: Cycled, label: str) -> Allocation:
    """The allocation by the exact coefficients, which the run's scheduler has to measure."""
    step_s = np.repeat((FAST_S, SLOW_S), what.counts)
    learners = what.learners
    batch = WORKLOADS["mlp"].batch
    problem = Problem(
        names=tuple(f"learner-{k}" for k in range(learners)),
        compute=step_s / batch,
        transfer=np.zeros(learners),
        fixed=np.full(learners, COMMIT_S),
        min_samples=np.full(learners, batch),
        max_samples=np.full(learners, TRAINED_ON // learners),
        samples=what.samples,
        cycle_s=CYCLE_S,
    )
    return solve(problem, *SOLVED_BY[label])


# ---- the page -------------------------------------------------------------------------------


def title(name: str) -> str:
    """Of a scenario's panel."""
    return f"{CYCLED[name].learners} learners, c = {CYCLED[name].updates:g}"


def section(found: Mapping[str, Found]) -> tuple[list[str], list[Claim]]:
    """(j)"""
    lines: list[str] = []
    judged: dict[str, Difference] = {}
    later: dict[str, Difference] = {}
    last = AFTER[-1]
    for name, what in CYCLED.items():
        here = found.get(name)
        if not here:
            continue
        lines += [
            f"**{title(name)}** ({name}): d = {what.samples:,} samples a cycle",
            "",
            *_planned(what, here),
            "",
            *_accuracies(here),
            "",
        ]
        for other in _others(here):
            judged[f"{title(name)}, {other.lower()}"] = _gap(here, other, last)
            ours, theirs = (
                [after_seconds(run, last * CYCLE_S) for run in here[label]["models"]]
                for label in (OURS, other)
            )
            later[f"{title(name)}, {other.lower()}"] = difference(ours, theirs)
    if later:
        lines += [*_same_time(later), ""]
    return lines, _claims(judged)


def _others(here: Found) -> list[str]:
    """What the optimised allocation is compared with; a quick run may leave something out."""
    return [label for label in OTHERS if here.has(label)]


def _same_time(gaps: Mapping[str, Difference]) -> list[str]:
    """What is left of a lead where the clock counts instead of cycles."""
    verdicts = [gap.verdict for gap in gaps.values()]
    shown = "; ".join(f"{name}: {gap.text}" for name, gap in gaps.items())
    return [
        "Offbeat closes a cycle as soon as all have committed: one that leaves learners idle is shorter than "
        "T (in the source every cycle lasts T), and more of them fit the same time. So after "
        f"{AFTER[-1] * CYCLE_S:g} s, whatever the number of cycles, the optimised allocation is ahead in "
        f"{verdicts.count('ahead')} and behind in {verdicts.count('behind')} of {len(verdicts)} comparisons "
        f"(points more than with {shown}). A lead by "
        "cycles that is none by the clock is work won per exchange of models."
    ]


def _claims(judged: Mapping[str, Difference]) -> list[Claim]:
    """Where more updates are promised, against both others; and where not, against the synchronous scheme."""
    vain = title("j-no-gain")
    promised = {name: gap for name, gap in judged.items() if not name.startswith(vain)}
    none = {name: gap for name, gap in judged.items() if name == f"{vain}, synchronous"}
    claims = []
    if promised:
        source = "the allocation can offer better accuracy than the synchronous scheme and equal allocation"
        claims.append(Claim("j", source, _shown(promised), _verdict(promised)))
    if none:
        source = "(not in the source) where c is just above a whole number nothing is gained"
        chance = all(gap.verdict == "as good" for gap in none.values())
        verdict = "yes: no difference that the seeds show" if chance else "no"
        claims.append(Claim("j", source, _shown(none), verdict))
    return claims


def _shown(gaps: Mapping[str, Difference]) -> str:
    here = "; ".join(f"{name}: {gap.text}" for name, gap in gaps.items())
    return f"points of accuracy more after {AFTER[-1]} cycles than with: {here}"


def _verdict(gaps: Mapping[str, Difference]) -> str:
    verdicts = [gap.verdict for gap in gaps.values()]
    if "behind" in verdicts:
        return f"no: behind in {verdicts.count('behind')} of {len(verdicts)}"
    ahead = verdicts.count("ahead")
    return "yes" if ahead == len(verdicts) else f"at least as good: ahead in {ahead} of {len(verdicts)}"


def _gap(here: Found, other: str, number: int) -> Difference:
    ours, theirs = ([after_cycles(run, number) for run in here[label]["models"]] for label in (OURS, other))
    return difference(ours, theirs)


def _planned(what: Cycled, here: Found) -> list[str]:
    rows = []
    for label in here.labels:
        plan = planned(what, label)
        rows.append(
            [
                label,
                f"{plan.tau.min()} to {plan.tau.max()}" if plan.max_staleness else f"{plan.tau.min()}",
                f"{plan.updates_total}",
                f"{plan.average_staleness:.2f}",
                percent(plan.idle_share or 0.0),
                f"{_cycle_s(here, label):.1f}",
                f"{here[label]['lr']:g}",
            ]
        )
    head = [
        "",
        "Updates of a learner",
        "Of all, a cycle",
        "Average staleness",
        "Idle in T",
        "Cycle made, s",
        "Rate",
    ]
    return table(head, rows)


def _cycle_s(here: Found, label: str) -> float:
    """Mean seconds of a cycle that was made."""
    runs = here[label]["models"]
    first = 1 + MEASURED
    lengths = [(run["time_s"][-1] - run["time_s"][first]) / (len(run["time_s"]) - 1 - first) for run in runs]
    return sum(lengths) / len(lengths)


def _accuracies(here: Found) -> list[str]:
    rows = []
    for number in AFTER:
        means = [
            np.mean([after_cycles(run, number) for run in here[label]["models"]]) for label in here.labels
        ]
        gaps = [_gap(here, other, number).text for other in _others(here)]
        rows.append([str(number), *(f"{100 * mean:.1f} %" for mean in means), *gaps])
    head = ["Cycles", *here.labels, *(f"{OURS} more than {other.lower()}, points" for other in _others(here))]
    return table(head, rows)
