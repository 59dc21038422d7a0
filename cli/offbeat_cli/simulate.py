"""`offbeat simulate`: compare synchronization models on a fleet in virtual time."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from rich.console import Console

from offbeat_cli.simulator.compare import Comparison, compare, dumps
from offbeat_cli.simulator.scenario import MOST_SEEDS, Scenario
from offbeat_cli.simulator.table import View, table
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
    stdout = sys.stdout
    # What a user's own task or model prints is no result.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        comparison = _simulate(file, as_json, out, data, seeds, workers)
    if as_json:
        print(dumps(comparison.to_json()), file=stdout, flush=True)
    return ExitCode.DONE if comparison.reached else ExitCode.LIMIT


def _simulate(
    file: Path, as_json: bool, out: Path | None, data: Path | None, seeds: int | None, workers: int | None
) -> Comparison:
    scenario = Scenario.read(file)
    text = file.read_text(encoding="utf-8")  # as it is now: it may be edited while it runs
    if data is not None:
        scenario = scenario.model_copy(update={"data": data})
    if seeds is not None:
        scenario = scenario.model_copy(
            update={"seeds": tuple(range(1, _positive("--seeds", seeds, MOST_SEEDS) + 1))}
        )
    if workers is not None:
        _positive("--workers", workers)
    console = Console(stderr=as_json)
    runs = out / RUNS if out else None
    with View(console, scenario.limit_s) as view:
        try:
            comparison = compare(scenario, folder=runs, workers=workers, progress=view.show)
        except KeyboardInterrupt:
            kept = (
                f"finished runs are in {runs}: the same command goes on there" if runs else "nothing is kept"
            )
            view.say(f"{kept}{'' if runs else '; with --out DIR it would be'}")
            raise
    console.print(table(comparison, console.width))
    if comparison.peak_bytes:
        console.print(f"most memory of a process: {comparison.peak_bytes / 2**20:.0f} MiB", highlight=False)
    if out:
        _write(comparison, out, text)
        console.print(f"report: {out / 'report.html'}", highlight=False, soft_wrap=True)
    return comparison


def _positive(option: str, value: int, most: int = 2**31) -> int:
    if value < 1:
        raise OffbeatError(f"{option}: {value} is not positive", "give 1 or more")
    if value > most:
        raise OffbeatError(f"{option}: {value} is too many", f"give up to {most}")
    return value


def _write(comparison: Comparison, folder: Path, scenario_text: str) -> None:
    """The report, its plots, and the figures."""
    from offbeat_cli.simulator import figures, page  # matplotlib takes a moment to import

    try:
        (folder / "result.json").write_text(dumps(comparison.to_json()) + "\n", encoding="utf-8")
        plots = figures.write(comparison, folder)
        (folder / "report.html").write_text(page.page(comparison, plots, scenario_text), encoding="utf-8")
    except OSError as error:
        raise OffbeatError(
            f"--out: {folder}: {error.strerror}", "name a folder that you may write to"
        ) from error
