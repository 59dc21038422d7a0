"""(i): what the solvers promise in the published setting, for 10 to 50 learners. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.reproduction import found
from benchmarks.reproduction.claims import Claim
from benchmarks.reproduction.found import Found
from benchmarks.reproduction.markdown import percent, table
from offbeat_core.config import read_yaml
from offbeat_scheduler.allocation import Allocation, Integer, Problem, Scheme, solve
from offbeat_scheduler.allocation.instance import Instance

NAME = "i-staleness"
PUBLISHED = Path(__file__).parents[2] / "examples" / "allocation" / "published.yaml"
CYCLES_S = (7.5, 15.0, 30.0)
LEARNERS = range(10, 51, 5)
SHOWN = range(10, 51, 10)
"""In the table; the plot and the result file have all."""

SOLVED: Mapping[str, tuple[Scheme, Integer]] = {
    "full-cycle": ("async", "full-cycle"),
    "maximal": ("async", "maximal"),
    "sync": ("sync", "maximal"),
    "eta": ("eta", "maximal"),
}

Row = Mapping[str, Any]


def run(folder: Path = found.RESULTS) -> Path:
    """Solve all and write the result file."""
    where = harness.measured_on()
    content = {
        "scenario": NAME,
        "quick": False,
        "results": [row(cycle_s, learners) for cycle_s in CYCLES_S for learners in LEARNERS],
        "made_with": {key: where[key] for key in ("date", "commit", "offbeat", "torch", "numpy", "python")},
    }
    return found.write(content, folder)


def problem(cycle_s: float, learners: int) -> Problem:
    """The published setting with another T and K: learners of even index fast, the others slow."""
    values = read_yaml(PUBLISHED, "published.yaml")
    fast, slow = values["learners"]
    counts = (learners - learners // 2, learners // 2)
    groups = [{**group, "count": count} for group, count in zip((fast, slow), counts, strict=True)]
    return Instance.make({**values, "cycle_s": cycle_s, "learners": groups}, str(PUBLISHED)).problem()


def row(cycle_s: float, learners: int) -> dict[str, Any]:
    """One T and K: c, and the figures of each scheme."""
    asked = problem(cycle_s, learners)
    schemes = {name: _figures(solve(asked, *how)) for name, how in SOLVED.items()}
    relaxed = solve(asked, "async", "relaxed")
    return {"cycle_s": cycle_s, "learners": learners, "c": round(float(relaxed.tau.mean()), 4), **schemes}


def _figures(allocation: Allocation) -> dict[str, Any]:
    """None where there is no such allocation."""
    if not allocation.feasible:
        return {"max": None, "average": None, "updates": None, "idle": None}
    return {
        "max": allocation.max_staleness,
        "average": round(allocation.average_staleness or 0.0, 4),
        "updates": allocation.updates_total,
        "idle": round(allocation.idle_share or 0.0, 4),
    }


# ---- the page -------------------------------------------------------------------------------


def section(here: Mapping[str, Found]) -> tuple[list[str], list[Claim]]:
    """(i)"""
    if NAME not in here:
        return [], []
    rows: list[Row] = here[NAME].content["results"]
    lines = [*table(HEAD, [_cells(one) for one in rows if one["learners"] in SHOWN]), "", *_notes(rows), ""]
    return lines, [_claim(rows)]


HEAD = [
    "T, s",
    "Learners",
    "c",
    "Optimised: staleness max / average",
    "Equal: max / average",
    "Updates: optimised",
    "Synchronous",
    "Equal",
    "Idle: optimised",
    "Synchronous",
    "Equal",
]


def _cells(one: Row) -> list[str]:
    ours, sync, eta = one["full-cycle"], one["sync"], one["eta"]
    return [
        f"{one['cycle_s']:g}",
        str(one["learners"]),
        f"{one['c']:.2f}",
        *(f"{scheme['max']} / {scheme['average']:.2f}" for scheme in (ours, eta)),
        *(str(scheme["updates"]) for scheme in (ours, sync, eta)),
        *(percent(scheme["idle"]) for scheme in (ours, sync, eta)),
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """Where the gain over the synchronous scheme is, and where it vanishes; and the maximal rule."""
    gains = [(one["full-cycle"]["updates"] / one["sync"]["updates"] - 1, one) for one in rows]
    most, best = max(gains, key=lambda gain: gain[0])
    vain = [one for one in rows if one["full-cycle"]["max"] == 0]
    text = (
        f"The optimised allocation makes up to {percent(most)} more updates than the synchronous one: "
        f"{_where(best)}. What it gains is the part of c behind the point; the larger c, the less that is."
    )
    if vain:
        text += (
            " Where c is so little above a whole number that this part is under 2 % of c, the synchronous "
            "division fills the cycle as the rule asks, and is the optimised one: the gain vanishes, at "
            f"{_where(*vain)}."
        )
    alike = [one for one in rows if one["maximal"]["updates"] == one["sync"]["updates"]]
    maximal = (
        "With the maximal rule instead (nobody could make one more update) staleness is "
        f"{max(one['maximal']['max'] for one in rows)} at most; but in {len(alike)} of {len(rows)} settings "
        "it makes no more updates than the synchronous scheme, and idles as long."
    )
    return [text, "", maximal]


def _where(*rows: Row) -> str:
    """c by K and T: 5.05 (30 learners, T = 7.5 s), ..."""
    return ", ".join(
        f"c = {one['c']:.2f} ({one['learners']} learners, T = {one['cycle_s']:g} s)" for one in rows
    )


def _claim(rows: Sequence[Row]) -> Claim:
    ours = [one["full-cycle"]["max"] for one in rows]
    equal = [one["eta"]["max"] for one in rows]
    less = sum(a < b for a, b in zip(ours, equal, strict=True))
    here = (
        f"largest staleness {min(ours)} to {max(ours)}, with equal allocation {min(equal)} to {max(equal)}; "
        f"smaller in {less} of {len(rows)} settings"
    )
    return Claim(
        "i",
        "the allocation reduces the staleness, against asynchronous equal allocation",
        here,
        "yes" if less == len(rows) else "not everywhere",
    )
