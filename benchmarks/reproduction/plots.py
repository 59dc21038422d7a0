"""The document's plots, as SVG files of a few kilobytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.reproduction.found import SHARES, Found, Ratio
from offbeat_cli.plots import DEVICES, STYLE, WIDTH_IN

COLORS = {"compute_share": "#2563eb", "commit_share": "#f59e0b", "wait_share": "#dc2626"}
NAMES = {
    "compute_share": "computing",
    "commit_share": "held by its own commits",
    "wait_share": "waiting for others",
}
OURS, THEIRS = "#2563eb", "#94a3b8"


def curves(found: Found, path: Path, labels: Sequence[str]) -> None:
    """Mean held-out loss against virtual time."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
        for number, label in enumerate(labels):
            points = found[label]["curve"]
            axes.plot(
                [at_s for at_s, _ in points],
                [loss for _, loss in points],
                color=DEVICES[number % len(DEVICES)],
                ls=("-", "--")[number // len(DEVICES) % 2],
                lw=2.2 if label.startswith("ADSP") else 1.2,
                label=label,
            )
        target = found.content["target"].get("loss")
        if target:
            axes.axhline(target, color="#16a34a", lw=0.9, ls=":")
            highest = [loss for label in labels for _, loss in found[label]["curve"][:3]]
            axes.set_ylim(target * 0.9, min(max(highest, default=target), 4 * target))
        axes.set_xlabel("virtual seconds")
        axes.set_ylabel("held-out loss")
        axes.set_xlim(left=0)
        axes.legend(loc="upper right", fontsize=8, ncols=2)
        save(figure, path)


def shares(found: Found, path: Path) -> None:
    """Where the devices' time went, one bar per model."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.6 + 0.27 * len(found.labels)))
        left = [0.0] * len(found.labels)
        rows = list(range(len(found.labels)))[::-1]
        for share in SHARES:
            values = [100 * found[label][share] for label in found.labels]
            axes.barh(rows, values, 0.7, left, color=COLORS[share], label=NAMES[share])
            left = [a + b for a, b in zip(left, values, strict=True)]
        axes.set_yticks(rows, found.labels)
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of the devices' time")
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
        save(figure, path)


def leads(points: Sequence[tuple[float, Ratio]], path: Path, xlabel: str, *, log: bool = False) -> None:
    """How much less time ADSP took, against what was varied, with intervals."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN * 0.62, 2.6))
        at = [x for x, _ in points]
        means = [100 * lead.mean for _, lead in points]
        below = [100 * max(0.0, lead.mean - lead.low) for _, lead in points]
        above = [100 * max(0.0, lead.high - lead.mean) for _, lead in points]
        axes.errorbar(at, means, [below, above], color=OURS, marker="o", capsize=3, lw=1.8)
        axes.axhline(0, color="#475569", lw=0.9)
        if log:
            axes.set_xscale("log")
            axes.set_xticks(at, [f"{x:g}" for x in at])
            axes.minorticks_off()
        axes.set_xlabel(xlabel)
        axes.set_ylabel("% less time than\nFixed ADACOMM")
        save(figure, path)


def rates(panels: Sequence[tuple[str, Found]], path: Path) -> None:
    """Time against the fixed rate, with the searches as lines."""
    with plt.rc_context(STYLE):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH_IN, 2.7), squeeze=False)
        for axes, (title, found) in zip(row[0], panels, strict=True):
            _rates(axes, found)
            axes.set_title(title, fontsize=9.5)
            axes.set_xlabel("commits per check period")
        row[0][0].set_ylabel("virtual seconds")
        row[0][-1].legend(fontsize=8)
        save(figure, path)


def _rates(axes: Axes, found: Found) -> None:
    fixed = [(float(label.rpartition(" ")[2]), label) for label in found.labels if " rate " in label]
    axes.plot(
        [rate for rate, _ in fixed],
        [found[label]["time_s"] for _, label in fixed],
        color="#475569",
        marker="o",
        ms=4,
        label="fixed",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks([rate for rate, _ in fixed], [f"{rate:g}" for rate, _ in fixed])
    searches = [label for label in found.labels if "search" in label]
    for label, color in zip(searches, DEVICES, strict=False):
        axes.axhline(found[label]["time_s"], color=color, lw=1.4, label=label.rpartition(" ")[2])
    axes.set_ylim(bottom=0)


def groups(panels: Sequence[tuple[str, Found]], path: Path, labels: Sequence[str]) -> None:
    """Times of a few models in several scenarios, side by side; no bar where a scenario has not the model."""
    with plt.rc_context(STYLE):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH_IN, 2.6), squeeze=False)
        for axes, (title, found) in zip(row[0], panels, strict=True):
            rows = list(range(len(labels)))[::-1]
            times = [found[label]["time_s"] if found.has(label) else 0.0 for label in labels]
            colors = [OURS if label.startswith("ADSP") else THEIRS for label in labels]
            axes.barh(rows, times, 0.7, color=colors)
            axes.set_yticks(rows, labels if axes is row[0][0] else [""] * len(labels))
            axes.set_title(title, fontsize=9.5)
            axes.set_xlabel("virtual seconds")
            axes.grid(axis="y", visible=False)
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """The same figures give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    with plt.rc_context({**STYLE, "svg.hashsalt": path.stem}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
