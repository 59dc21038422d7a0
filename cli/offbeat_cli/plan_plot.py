"""A plan as a picture: how each learner spends the cycle, and how many local updates that makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from offbeat_cli import plots
from offbeat_cli.plan_cycle import Cycle, Floats
from offbeat_cli.plan_table import quantity
from offbeat_cli.plots import plt
from offbeat_core.errors import OffbeatError

DPI = 150
MOST_NAMED = 60
"""Up to so many learners each has a bar with its name; a larger fleet is drawn as areas."""

MOST_DRAWN = 2000
ROOM_FOR_TEXT = 1.7  # right of the longest bar
TRANSFER, COMPUTE, IDLE, UPDATES = plots.SHARES["commit"], plots.SHARES["compute"], "#e2e8f0", "#475569"


def write(cycle: Cycle, file: Path) -> None:
    """Draw into a .png or .svg file. Raises OffbeatError where it can't be written."""
    with plt.rc_context({**plots.STYLE, "svg.hashsalt": "plan"}):
        figure = draw(cycle)
        # Its own dates and versions would make a different file each time.
        metadata = {"Date": None, "Creator": None} if file.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(file, dpi=DPI, bbox_inches="tight", metadata=metadata)
        except OSError as error:
            raise OffbeatError(
                f"--plot: {file}: {error.strerror}", "name a file in a folder that you may write to"
            ) from error
        finally:
            plt.close(figure)


def draw(cycle: Cycle) -> Figure:
    """Left a bar of the cycle for each learner: transfer, compute, idle. Right its updates."""
    count = len(cycle.names)
    height = 1.3 + 0.24 * count if count <= MOST_NAMED else 7.0
    figure, (left, right) = plt.subplots(
        1,
        2,
        sharey=True,
        figsize=(plots.WIDTH_IN, height),
        gridspec_kw={"width_ratios": [2.4, 1]},
        layout="constrained",
    )
    (_bars if count <= MOST_NAMED else _areas)(cycle, left, right)
    left.invert_yaxis()
    left.set_xlim(0, max(cycle.cycle_s, cycle.busy_s.max()))
    left.set_xlabel("seconds of the cycle")
    right.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
    figure.suptitle(cycle.title, fontsize=9.5, wrap=True, parse_math=False)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return figure


def _segments(cycle: Cycle) -> list[tuple[str, str, Floats]]:
    return [
        ("transfer", TRANSFER, cycle.transfer_s),
        ("compute", COMPUTE, cycle.compute_s),
        ("idle", IDLE, cycle.idle_s),
    ]


def _bars(cycle: Cycle, left: Axes, right: Axes) -> None:
    """One for each learner, with its name, updates and samples."""
    places = np.arange(len(cycle.names))
    start = np.zeros(len(places))
    for name, colour, widths in _segments(cycle):
        left.barh(places, widths, left=start, color=colour, height=0.7, label=name)
        start = start + widths
    left.set_yticks(places, cycle.names)
    right.barh(places, cycle.updates, color=UPDATES, height=0.7)
    for k in places:
        right.annotate(
            f"{quantity(cycle.updates[k])} × {quantity(cycle.samples[k])}",
            (cycle.updates[k], k),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    right.set_xlim(0, ROOM_FOR_TEXT * max(cycle.updates.max(), 1))
    right.set_xlabel("local updates × samples")


def _areas(cycle: Cycle, left: Axes, right: Axes) -> None:
    """Of a fleet without room for names, sorted by updates; of a very large one, learners at even steps."""
    count = len(cycle.names)
    order = np.lexsort((cycle.busy_s, cycle.updates))
    if count > MOST_DRAWN:
        order = order[np.linspace(0, count - 1, MOST_DRAWN).round().astype(int)]
    edges = np.linspace(0, count, len(order) + 1)
    start = np.zeros(len(order))
    for name, colour, widths in _segments(cycle):
        ends = start + widths[order]
        left.stairs(
            ends, edges, baseline=start, orientation="horizontal", fill=True, color=colour, label=name
        )
        start = ends
    left.set_ylabel("learners, by their updates")
    left.set_ylim(0, count)
    right.stairs(cycle.updates[order], edges, orientation="horizontal", fill=True, color=UPDATES)
    right.set_xlim(0, 1.05 * max(cycle.updates.max(), 1))
    right.set_xlabel("local updates")
