"""`offbeat simulate`: compare synchronization models on a fleet in virtual time."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from offbeat_cli.simulator.compare import Comparison, Progress, compare, dumps
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.errors import ExitCode, OffbeatError

RUNS = "runs"
"""Folder of finished runs, in the folder that was asked for."""


def simulate(
    file: Path,
    *,
    as_json: bool = False,
    out: Path | None = None,
    data: Path | None = None,
    seeds: int | None = None,
    workers: int | None = None,
) -> int:
    """Run the scenario in `file`; returns the exit code."""
    scenario = Scenario.read(file)
    changes: dict[str, object] = {}
    if data is not None:
        changes["data"] = data
    if seeds is not None:
        changes["seeds"] = _seeds(seeds)
    scenario = scenario.model_copy(update=changes)
    console = Console(stderr=as_json)
    comparison = compare(
        scenario, folder=out / RUNS if out else None, workers=workers, progress=_Lines(console).show
    )
    console.print(table(comparison))
    if as_json:
        print(dumps(comparison.to_json()), flush=True)
    return ExitCode.DONE if comparison.reached else ExitCode.LIMIT


def _seeds(count: int) -> tuple[int, ...]:
    if count < 1:
        raise OffbeatError(f"--seeds: {count} is not positive", "give 1 or more")
    return tuple(range(1, count + 1))


class _Lines:
    """Progress as lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, progress: Progress) -> None:
        if progress.note is None or progress.note.figures is not None:
            self._console.print(
                f"{progress.finished}/{progress.total}  {progress.label}  seed {progress.seed}",
                markup=False,
                highlight=False,
            )


def table(comparison: Comparison) -> Table:
    """The comparison for a terminal."""
    shown = Table(title=f"{comparison.scenario.name}, H = {comparison.scenario.heterogeneity:.2f}")
    shown.add_column("model")
    for column in ("time s", "95 %", "metric", "loss", "computing", "commits", "waiting", "commits", "MB"):
        shown.add_column(column, justify="right")
    for result in comparison.results:
        low, high = result.interval_s
        late = "" if result.reached else "> "
        shown.add_row(
            result.label,
            f"{late}{result.time_s:.1f}",
            f"{low:.1f} – {high:.1f}",
            f"{result.mean('value'):.4f}",
            f"{result.mean('loss'):.4f}",
            f"{result.mean('compute_share'):.1%}",
            f"{result.mean('commit_share'):.1%}",
            f"{result.mean('wait_share'):.1%}",
            f"{result.mean('commits'):.0f}",
            f"{result.mean('bytes') / 1e6:.0f}",
        )
    return shown
