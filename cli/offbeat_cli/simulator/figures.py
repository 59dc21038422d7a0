"""The plots of a comparison: quality against time, time to the target, and where the time went."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offbeat_cli import plots
from offbeat_cli.plots import plt
from offbeat_cli.simulator.compare import Comparison, EntryResult

COLOURS = (*plots.DEVICES, "#7c3aed", "#0d9488", "#b45309", "#be123c", "#4d7c0f", "#1d4ed8")
STYLES = ("-", "--", ":")
SHARES = {"compute": "computing", "commit": "its own commits", "wait": "waiting for others"}
DPI = 150


def write(comparison: Comparison, folder: Path) -> dict[str, str]:
    """Write each plot as PNG and SVG; returns the SVG elements by name."""
    made = {}
    for name, draw in PLOTS.items():
        with plt.rc_context({**plots.STYLE, "svg.hashsalt": name}):
            figure = draw(comparison)
            figure.savefig(folder / f"{name}.png", dpi=DPI, bbox_inches="tight")
            text = io.StringIO()
            figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
            plt.close(figure)
        (folder / f"{name}.svg").write_text(text.getvalue(), encoding="utf-8")
        made[name] = text.getvalue()[text.getvalue().index("<svg") :]
    return made


def quality(comparison: Comparison) -> Figure:
    """Metric and loss against virtual time: a thin line per seed, a bold one for their mean."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(plots.WIDTH_IN, 5.4), sharex=True)
    for number, result in enumerate(comparison.results):
        look = {"color": COLOURS[number % len(COLOURS)], "ls": STYLES[number // len(COLOURS) % len(STYLES)]}
        for axes, name in ((above, "value"), (below, "loss")):
            _curves(axes, result, name, look)
    target = comparison.scenario.target
    if target.accuracy is not None:
        _level(above, target.accuracy)
    if target.loss is not None:
        _level(below, target.loss)
    above.set_ylabel("held-out metric")
    below.set_ylabel("held-out loss")
    below.set_xlabel("virtual seconds")
    losses = [value for result in comparison.results for run in result.runs for value in _known(run, "loss")]
    if losses:  # a run that diverged must not flatten all others
        below.set_ylim(0.9 * min(losses), min(max(losses), 4 * float(np.median(losses))))
    above.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def times(comparison: Comparison) -> Figure:
    """Mean time to the target per model, with its interval; pale where it was not always reached."""
    results = comparison.results
    figure, axes = plt.subplots(figsize=(plots.WIDTH_IN, 0.9 + 0.34 * len(results)))
    for number, result in enumerate(results):
        low, high = result.interval_s
        axes.barh(
            number,
            result.time_s,
            height=0.6,
            color=COLOURS[number % len(COLOURS)],
            alpha=1.0 if result.reached else 0.35,
        )
        axes.plot([low, high], [number, number], color="#0f172a", lw=1.3)
        axes.plot(result.times_s, [number] * len(result.runs), ".", color="#0f172a", ms=3)
        note = f"{result.time_s:.0f} s" if result.reached else f"> {result.time_s:.0f} s: not always reached"
        axes.annotate(
            note, (high, number), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    axes.set_yticks(range(len(results)), [result.label for result in results])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(result.interval_s[1] for result in results))
    axes.set_xlabel("virtual seconds to the target")
    axes.grid(axis="y", visible=False)
    return figure


def shares(comparison: Comparison) -> Figure:
    """Where the devices' time went, per model."""
    results = comparison.results
    figure, axes = plt.subplots(figsize=(plots.WIDTH_IN, 0.9 + 0.34 * len(results)))
    left = [0.0] * len(results)
    for name, shown in SHARES.items():
        widths = [100 * result.mean(f"{name}_share") for result in results]
        axes.barh(range(len(results)), widths, left=left, height=0.6, color=plots.SHARES[name], label=shown)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(results)), [result.label for result in results])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the devices' time")
    axes.grid(axis="y", visible=False)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="upper center", ncol=len(SHARES), bbox_to_anchor=(0.5, 1.06)
    )
    return figure


PLOTS: dict[str, Callable[[Comparison], Figure]] = {"quality": quality, "times": times, "shares": shares}


def _curves(axes: Axes, result: EntryResult, name: str, look: dict[str, Any]) -> None:
    for run in result.runs:
        at, values = _series(run, name)
        axes.plot(at, values, lw=0.6, alpha=0.35, **look)
    shortest = min(len(run["curve"][name]) for run in result.runs)
    stacked = np.array([_numbers(run["curve"][name][:shortest]) for run in result.runs])
    at = result.runs[0]["curve"]["time_s"][:shortest]
    label = f" {result.label}"  # a legend leaves out what begins with an underscore
    axes.plot(plots.thinned(at), plots.thinned(list(stacked.mean(axis=0))), lw=1.7, label=label, **look)


def _series(run: dict[str, Any], name: str) -> tuple[list[float], list[float]]:
    curve = run["curve"]
    return plots.thinned(curve["time_s"]), plots.thinned(_numbers(curve[name]))


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _known(run: dict[str, Any], name: str) -> list[float]:
    return [value for value in run["curve"][name] if value is not None]


def _level(axes: Axes, value: float) -> None:
    axes.axhline(value, color=plots.TARGET, lw=1, ls="--")
