"""A plan in a terminal: a row for each learner (of many the first and the last ones), and a summary."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.text import Text

from offbeat_cli.fitted import Column, FittedTable
from offbeat_cli.plan_cycle import Cycle

MOST_ROWS = 40
ENDS = 15  # of a larger fleet so many rows stay at either end
DIGITS = 4  # of a cycle's seconds


def show(console: Console, cycle: Cycle) -> None:
    """Print it, fitted to the console."""
    console.print(cycle.title, style="bold", markup=False, highlight=False)
    console.print(table(cycle))
    for line in _packed(summary(cycle), console.width):
        console.print(line, markup=False, highlight=False)
    if cycle.note:
        console.print(Text(f"! {cycle.note}", style="yellow"))


def table(cycle: Cycle) -> FittedTable:
    """One row per learner; in the middle of many, one says how many are left out."""
    shown = FittedTable(
        [
            Column("learner", right=False),
            Column("samples"),
            Column("updates"),
            Column("transfer s", 1),
            Column("compute s", 0),
            Column("time s", 2),
            Column("idle"),
        ]
        + ([Column("energy", 3)] if limited(cycle) else [])
    )
    count = len(cycle.names)
    ends = range(count) if count <= MOST_ROWS else [*range(ENDS), *range(count - ENDS, count)]
    for place, k in enumerate(ends):
        if count > MOST_ROWS and place == ENDS:
            shown.add(f"… {count - 2 * ENDS} more", *[""] * (len(_cells(cycle, k)) - 1))
        shown.add(*_cells(cycle, k))
    return shown


def summary(cycle: Cycle) -> list[str]:
    """The figures of the whole fleet."""
    least, most = (quantity(value) for value in (cycle.updates.min(), cycle.updates.max()))
    each = f"{least} each" if least == most else f"{least} to {most} each"
    return [
        f"staleness max {quantity(cycle.max_staleness)}, average {cycle.average_staleness:.2f}",
        f"updates {quantity(cycle.updates.sum())} ({each})",
        f"idle {cycle.idle_share.mean():.1%}",
        f"solved in {1000 * cycle.solve_s:.1f} ms",
    ]


def _packed(parts: list[str], width: int) -> list[str]:
    """In as few lines as hold them."""
    lines = parts[:1]
    for part in parts[1:]:
        together = f"{lines[-1]} · {part}"
        if len(together) <= width:
            lines[-1] = together
        else:
            lines.append(part)
    return lines


def quantity(value: float) -> str:
    """A number of samples or updates: a whole one as it is, a real one to two places."""
    return str(value) if isinstance(value, (int, np.integer)) else f"{value:.2f}"


def seconds(value: float, cycle_s: float) -> str:
    """With as many places as show `DIGITS` digits of the cycle."""
    places = min(max(DIGITS - 1 - math.floor(math.log10(cycle_s)), 0), 9)
    return f"{value:.{places}f}"


def _cells(cycle: Cycle, k: int) -> list[str | Text]:
    updates = cycle.updates[k]
    cells: list[str | Text] = [
        cycle.names[k],
        quantity(cycle.samples[k]),
        Text(quantity(updates), style="" if updates >= 1 else "red"),
        *(
            seconds(value, cycle.cycle_s)
            for value in (cycle.transfer_s[k], cycle.compute_s[k], cycle.busy_s[k])
        ),
        f"{cycle.idle_share[k]:.1%}",
    ]
    if limited(cycle):
        share = cycle.energy_share[k]
        cells.append("-" if math.isnan(share) else f"{share:.1%}")
    return cells


def limited(cycle: Cycle) -> bool:
    """Does energy limit any of the learners?"""
    return not np.isnan(cycle.energy_share).all()
