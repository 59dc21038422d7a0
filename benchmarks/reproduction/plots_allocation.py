"""The plots of (i), (j) and (k)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.reproduction.cycles import MEASURED, OURS
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.plots import save
from offbeat_cli.plots import STYLE, WIDTH_IN

SCHEMES = {
    "eta": ("equal", "#dc2626"),
    "sync": ("synchronous", "#94a3b8"),
    "full-cycle": ("optimised", "#2563eb"),
}
COLORS = {OURS: "#2563eb", "Synchronous": "#94a3b8", "Equal": "#dc2626"}
DIVIDED = {"iid": ("even data", "#2563eb"), "dirichlet": ("Dirichlet(0.3)", "#f59e0b")}


def staleness(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Against the number of learners, one panel per T: the maximum, and dotted the average."""
    cycles_s = sorted({row["cycle_s"] for row in rows})
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(cycles_s), figsize=(WIDTH_IN, 2.7), squeeze=False)
        for axes, cycle_s in zip(panels[0], cycles_s, strict=True):
            mine = [row for row in rows if row["cycle_s"] == cycle_s]
            learners = [row["learners"] for row in mine]
            for scheme, (name, color) in SCHEMES.items():
                most, mean = ([row[scheme][kind] for row in mine] for kind in ("max", "average"))
                axes.plot(learners, most, color=color, marker="o", ms=3, lw=1.6, label=f"{name}, max")
                if scheme != "sync":
                    axes.plot(learners, mean, color=color, lw=1.2, ls=":", label=f"{name}, average")
            axes.set_title(f"T = {cycle_s:g} s", fontsize=9.5)
            axes.set_xlabel("learners")
            axes.set_ylim(bottom=-0.02 * max(row["eta"]["max"] for row in mine))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        panels[0][0].set_ylabel("staleness, updates")
        panels[0][-1].legend(fontsize=7, loc="upper left")
        save(figure, path)


def cycles(panels: Sequence[tuple[str, Found]], path: Path) -> None:
    """Mean accuracy over seeds against the number of cycles."""
    with plt.rc_context(STYLE):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH_IN, 2.8), squeeze=False, sharey=True)
        for axes, (title, found) in zip(row[0], panels, strict=True):
            values = {
                label: [run["value"][MEASURED:] for run in found[label]["models"]] for label in found.labels
            }
            length = min(len(run) for runs in values.values() for run in runs)
            for label, runs in values.items():
                mean = 100 * np.mean([run[:length] for run in runs], axis=0)
                axes.plot(range(length), mean, color=COLORS.get(label), lw=1.6, label=label.lower())
            axes.set_title(title, fontsize=9.5)
            axes.set_xlabel("cycles")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0][0].set_ylabel("% right")
        row[0][0].legend(fontsize=8, loc="lower right")
        save(figure, path)


def ratios(points: Mapping[tuple[str, str, str], Ratio], path: Path) -> None:
    """Time with own batches, of that with one batch, against H: one panel per kind of step."""
    costs = list(dict.fromkeys(cost for _, _, cost in points))
    titles = {
        "proportional": "step time proportional to the batch",
        "fixed-part": "half of it fixed on the faster half",
    }
    with plt.rc_context(STYLE):
        figure, row = plt.subplots(1, len(costs), figsize=(WIDTH_IN, 2.7), squeeze=False, sharey=True)
        for axes, cost in zip(row[0], costs, strict=True):
            for shift, (division, (name, color)) in enumerate(DIVIDED.items()):
                mine = [
                    (float(h), ratio) for (h, d, c), ratio in points.items() if (d, c) == (division, cost)
                ]
                if not mine:
                    continue
                means = [ratio.mean for _, ratio in mine]
                spans = [
                    [max(0.0, ratio.mean - ratio.low) for _, ratio in mine],
                    [max(0.0, ratio.high - ratio.mean) for _, ratio in mine],
                ]
                at = [h + 0.03 * shift for h, _ in mine]
                axes.errorbar(at, means, spans, color=color, marker="o", ms=4, capsize=3, lw=1.4, label=name)
            axes.axhline(1, color="#475569", lw=0.9)
            axes.set_title(titles.get(cost, cost), fontsize=9.5)
            axes.set_xlabel("heterogeneity H")
        row[0][0].set_ylabel("time with own batches,\nof that with one")
        row[0][-1].legend(fontsize=8)
        save(figure, path)
