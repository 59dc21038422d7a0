"""The report's plots, each as an SVG that stands inside an HTML page."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from offbeat_cli.history import DeviceHistory, History
from offbeat_core.config import TargetSpec

WIDTH_IN = 7.4
POINTS = 1500
DEVICES = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#0891b2", "#ca8a04", "#db2777", "#64748b")
SHARES = {"compute": "#2563eb", "paced": "#cbd5e1", "commit": "#f59e0b", "wait": "#dc2626"}
SHARE_NAMES = {
    "compute": "computing",
    "paced": "paced (emulated slowness)",
    "commit": "held by commits",
    "wait": "waiting",
}
LOSS, METRIC, TARGET, SEARCH = "#475569", "#2563eb", "#16a34a", "#fefaeb"
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Segoe UI", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,  # a label's dollars are no formula
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#94a3b8",
    "axes.labelcolor": "#334155",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7,
    "xtick.color": "#475569",
    "ytick.color": "#475569",
    "legend.frameon": False,
}


def quality(history: History, target: TargetSpec | None) -> str:
    """Loss and metric against time, the target as a line, the search's time shaded."""
    both = bool(history.evaluations) and any(point.metric for point in history.evaluations)
    with plt.rc_context(STYLE):
        figure, rows = plt.subplots(
            2 if both else 1, 1, figsize=(WIDTH_IN, 4.6 if both else 2.8), sharex=True
        )
        axes: list[Axes] = list(rows) if both else [rows]
        loss = axes[-1]
        if history.evaluations:
            points = thinned(history.evaluations)
            at = [point.at_s for point in points]
            loss.plot(at, [point.loss for point in points], color=LOSS, lw=1.5)
            loss.set_ylabel("held-out loss")
            if both:
                axes[0].plot(at, [point.metric for point in points], color=METRIC, lw=1.5)
                axes[0].set_ylabel(f"held-out {history.metric_name}")
                if target and target.accuracy:
                    _level(axes[0], target.accuracy)
        else:
            for number, device in enumerate(history.devices.values()):
                series = thinned(device.losses_at)
                loss.plot(
                    [at_s for at_s, _ in series],
                    [value for _, value in series],
                    color=DEVICES[number % len(DEVICES)],
                    lw=1.3,
                    label=device.name,
                )
            loss.set_ylabel("training loss")
            if history.devices:
                loss.legend(loc="upper right")
        if target and target.loss:
            _level(loss, target.loss)
        for one in axes:
            _shade_search(one, history)
        loss.set_xlabel("seconds of training")
        loss.set_xlim(0, max(history.trained_s, 1e-3))
        return _svg(figure, "quality")


def commits(history: History) -> str:
    """Cumulative commits of each device against time: parallel lines are equal rates."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 2.8))
        styles = ("-", "--", ":", "-.")
        for number, device in enumerate(_sorted(history)):
            series = thinned([(0.0, 0), *device.commits_at])
            axes.step(
                [at_s for at_s, _ in series],
                [count for _, count in series],
                where="post",
                color=DEVICES[number % len(DEVICES)],
                # Under ADSP the lines lie on each other: dashes let each be seen.
                ls=styles[number % len(styles)],
                lw=1.8,
                label=device.name,
            )
        _shade_search(axes, history)
        axes.set_ylabel("commits")
        axes.set_xlabel("seconds of training")
        axes.set_xlim(0, max(history.trained_s, 1e-3))
        axes.set_ylim(bottom=0)
        if history.devices:
            axes.legend(loc="upper left")
        return _svg(figure, "commits")


def time_shares(history: History) -> str:
    """Where each device's training thread spent its time, as one bar per device."""
    devices = [device for device in _sorted(history) if device.seconds]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.9 + 0.38 * max(1, len(devices))))
        left = [0.0] * len(devices)
        for name, colour in SHARES.items():
            widths = [100 * device.share(name) for device in devices]
            axes.barh(
                [device.name for device in devices],
                widths,
                left=left,
                color=colour,
                height=0.62,
                label=SHARE_NAMES[name],
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of the training thread's time")
        axes.grid(axis="y", visible=False)
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="upper center",
            ncol=len(SHARES),
            bbox_to_anchor=(0.5, 1.06),
        )
        return _svg(figure, "shares")


def local_updates(history: History) -> str:
    """Local updates between two commits of each device against time."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 2.4))
        styles = ("-", "--", ":", "-.")
        names = sorted({name for plan in history.plans for name in plan.steps})
        for number, name in enumerate(names):
            series = thinned([(plan.at_s, plan.steps.get(name)) for plan in history.plans])
            series.append((history.trained_s, series[-1][1]))
            axes.step(
                [at_s for at_s, _ in series],
                [math.nan if steps is None else steps for _, steps in series],
                where="post",
                color=DEVICES[number % len(DEVICES)],
                ls=styles[number % len(styles)],
                lw=1.8,
                label=name,
            )
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("local updates a commit")
        axes.set_xlabel("seconds of training")
        axes.set_xlim(0, max(history.trained_s, 1e-3))
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper right")
        return _svg(figure, "updates")


def search(history: History) -> str:
    """The interval in force against time, and the reward of each probe."""
    with plt.rc_context(STYLE):
        figure, (above, below) = plt.subplots(
            1, 2, figsize=(WIDTH_IN, 2.7), gridspec_kw={"width_ratios": [1.35, 1]}, layout="constrained"
        )
        at = [rate.at_s for rate in history.rates] + [history.trained_s]
        intervals = [rate.interval_s for rate in history.rates]
        above.step(at, [*intervals, *intervals[-1:]], where="post", color=METRIC, lw=1.6)
        _shade_search(above, history)
        above.set_ylabel("seconds between commits")
        above.set_xlabel("seconds of training")
        above.set_ylim(bottom=0)
        above.set_xlim(0, max(history.trained_s, 1e-3))
        numbers = range(1, len(history.probes) + 1)
        below.bar(
            list(numbers),
            [probe.reward for probe in history.probes],
            color=[TARGET if probe.chosen else "#cbd5e1" for probe in history.probes],
            width=0.6,
        )
        below.set_xticks(
            list(numbers),
            [f"{number}\n{probe.rate:.3g}" for number, probe in zip(numbers, history.probes, strict=True)],
        )
        below.set_xlabel("probe, and its rate")
        below.set_ylabel("reward")
        below.grid(axis="x", visible=False)
        return _svg(figure, "search")


def thinned(points: Sequence[Any], limit: int = POINTS) -> list[Any]:
    """At most about `limit` of the points, the last among them."""
    stride = max(1, len(points) // limit)
    kept = list(points[::stride])
    if points and kept[-1] is not points[-1]:
        kept.append(points[-1])
    return kept


def _sorted(history: History) -> list[DeviceHistory]:
    return sorted(history.devices.values(), key=lambda device: device.name)


def _level(axes: Axes, value: float) -> None:
    axes.axhline(value, color=TARGET, lw=1, ls="--")
    axes.annotate(
        f"target {value:g}",
        (0.01, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="left",
        va="bottom",
        color=TARGET,
        fontsize=8.5,
    )


def _shade_search(axes: Axes, history: History) -> None:
    """A light band wherever a search was going on."""
    for number, rate in enumerate(history.rates):
        if rate.searching:
            later = history.rates[number + 1 :]
            axes.axvspan(
                rate.at_s, later[0].at_s if later else history.trained_s, color=SEARCH, lw=0, zorder=0
            )


def _svg(figure: Figure, salt: str) -> str:
    """The figure as an <svg> element; `salt` keeps its ids apart from those of other figures."""
    text = io.StringIO()
    with plt.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
