"""A comparison in a terminal: its progress while it runs, its table at the end."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from offbeat_cli.simulator.compare import Comparison, EntryResult, Progress
from offbeat_cli.simulator.scenario import Scenario

HEAD = ("model", "time s", "95 %", "metric", "loss", "compute", "commit", "wait", "steps", "commits", "MB")
LEFT_OUT = ("95 %", "steps", "metric")
"""Of a terminal's table where it is narrow."""

NARROW = 100
PLAIN_EVERY_S = 10.0


def goal(scenario: Scenario) -> str:
    """The target for a person."""
    target = scenario.target
    what = f"loss <= {target.loss:g}" if target.loss is not None else f"accuracy >= {target.accuracy:g}"
    return f"{what}, mean of {target.smooth}" if target.smooth > 1 else what


def cells(result: EntryResult) -> list[str]:
    """One model's row, in the order of `HEAD`."""
    low, high = result.interval_s
    return [
        result.label,
        f"{result.time_s:.1f}" if result.reached else f"> {result.time_s:.0f}",
        f"{low:.1f}-{high:.1f}" if len(result.runs) > 1 else "",
        f"{result.mean('value'):.4f}",
        f"{result.mean('loss'):.4f}",
        *(f"{result.mean(f'{name}_share'):.1%}" for name in ("compute", "commit", "wait")),
        f"{result.mean('steps'):.0f}",
        f"{result.mean('commits'):.0f}",
        _short(result.mean("bytes") / 1e6),
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(comparison: Comparison, width: int) -> Table:
    """The comparison for a terminal of so many columns."""
    scenario = comparison.scenario
    shown = Table(
        title=Text(
            f"{scenario.name}: {goal(scenario)}; H = {scenario.heterogeneity:.2f}, "
            f"{len(scenario.seeds)} seeds"
        ),
        box=None,
        padding=(0, 1),
    )
    kept = [place for place, name in enumerate(HEAD) if width >= NARROW or name not in LEFT_OUT]
    for place in kept:
        shown.add_column(HEAD[place], justify="right" if place else "left", no_wrap=place > 0)
    for result in comparison.results:
        row = cells(result)
        shown.add_row(*(Text(row[place]) for place in kept))  # a label's brackets are no markup
    return shown


class View:
    """Shows how far a comparison is: bars in a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, limit_s: float) -> None:
        self._console = console
        self._limit_s = limit_s
        self._bars = (
            Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[what]}", markup=False),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self._runs: dict[tuple[str, int], TaskID] = {}
        self._all: TaskID | None = None
        self._said_at = time.monotonic()

    def __enter__(self) -> View:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def say(self, text: str) -> None:
        """A line above the bars."""
        (self._bars.console if self._bars else self._console).print(
            text, markup=False, highlight=False, soft_wrap=True
        )

    def show(self, progress: Progress) -> None:
        if self._bars is None:
            self._say(progress)
            return
        if self._all is None:
            self._all = self._bars.add_task("runs", total=progress.total, what="")
        self._bars.update(self._all, completed=progress.finished)
        note, at = progress.note, (progress.label, progress.seed)
        if note is None:
            return
        if note.figures is not None:
            if at in self._runs:
                self._bars.remove_task(self._runs.pop(at))
            self.say(_ended(progress))
            return
        if at not in self._runs:
            name = f"{progress.label}, seed {progress.seed}"
            self._runs[at] = self._bars.add_task(name, total=round(self._limit_s), what="")
        self._bars.update(self._runs[at], completed=round(note.at_s), what=f"s, loss {note.loss:.3f}")

    def _say(self, progress: Progress) -> None:
        note, now = progress.note, time.monotonic()
        if note is None:
            return
        if note.figures is not None:
            line = _ended(progress)
        elif now - self._said_at >= PLAIN_EVERY_S:
            line = f"  {progress.label}, seed {progress.seed}: at {note.at_s:.0f} s, loss {note.loss:.4f}"
        else:
            return
        self._said_at = now
        self.say(f"{progress.finished}/{progress.total} {line}")


def _ended(progress: Progress) -> str:
    assert progress.note is not None
    figures = progress.note.figures
    assert figures is not None
    end = "reached the target after" if figures["reached"] else "did not reach the target within"
    return f"{progress.label}, seed {progress.seed}: {end} {figures['time_s']:.1f} s"
