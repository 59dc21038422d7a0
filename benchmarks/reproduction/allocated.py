"""(k): ADSP with a batch of its own for each device, against the same batch for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.reproduction.build_allocation import COSTS, DIVISIONS, HETEROGENEITY, OWN
from benchmarks.reproduction.claims import Claim
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.markdown import number, table
from benchmarks.reproduction.trends import OURS

DIVIDED = {"iid": "evenly", "dirichlet": "Dirichlet(0.3)"}
STEP = {"proportional": "proportional to the batch", "fixed-part": "half of it fixed on the faster half"}


def names() -> dict[str, tuple[str, str, str]]:
    """Scenario -> H, how the data is divided, what a step's time is made of."""
    return {
        f"k-{h}-{division}-{cost}": (h, division, cost)
        for cost in COSTS
        for division in DIVISIONS
        for h in HETEROGENEITY
    }


def ratios(found: Mapping[str, Found]) -> dict[tuple[str, str, str], Ratio]:
    """H, division, cost -> the time with own batches, of that with one batch."""
    return {what: found[name].ratio(OWN, OURS) for name, what in names().items() if name in found}


def section(found: Mapping[str, Found]) -> tuple[list[str], list[Claim]]:
    """(k)"""
    rows = []
    here_ratios = ratios(found)
    for name, (h, division, cost) in names().items():
        if name not in found:
            continue
        here = found[name]
        rows.append(
            [
                STEP[cost],
                DIVIDED[division],
                f"{float(h):g}",
                f"{here[OURS]['lr']:g}",
                f"{here[OURS]['reached']} and {here[OWN]['reached']} of {here.seeds}",
                here.time(OURS),
                here.time(OWN),
                here_ratios[h, division, cost].text,
                number(here[OURS]["steps"]),
                number(here[OWN]["steps"]),
            ]
        )
    head = [
        "A step's time",
        "Data",
        "H",
        "Rate",
        "Reached",
        "Seconds: one batch",
        "Own batches",
        "Ratio",
        "Steps: one batch",
        "Own batches",
    ]
    by_cost = {cost: [ratio for what, ratio in here_ratios.items() if what[2] == cost] for cost in COSTS}
    said = [f"{_judged(some)} where a step's time is {STEP[cost]}" for cost, some in by_cost.items() if some]
    return [*table(head, rows), "", f"Batches of their own: {'; '.join(said)}.", ""], []


def _judged(ratios: Sequence[Ratio]) -> str:
    """By whole intervals below or above 1."""
    quicker = sum(not ratio.open_above and (ratio.open_below or ratio.high < 1) for ratio in ratios)
    slower = sum(not ratio.open_below and (ratio.open_above or ratio.low > 1) for ratio in ratios)
    means = [ratio.mean for ratio in ratios]
    return (
        f"quicker in {quicker}, slower in {slower} of {len(ratios)} scenarios "
        f"({min(means):.2f} to {max(means):.2f} of the time)"
    )
