"""A run as a live table in a terminal, or as a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import outcome
from offbeat_cli.fitted import Column, FittedTable

PLAIN_EVERY_S = 5.0
PROBES_SHOWN = 6
WARNINGS_SHOWN = 6
NAMES_SHOWN = 3
WAITS = 0.02  # a larger share of waiting is shown in red
BAR = 48
AT_WORK = (pb.WorkerReport.TRAINING, pb.WorkerReport.RESTING)  # whatever went wrong before
STYLES = {"resting": "dim"}


class RunView:
    """Shows statuses as they come; a context manager.

    Args:
        console: where to; a terminal gets the table, anything else the plain lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._last_line_at = -float("inf")
        self._last_line = ""
        self._last_phase = -1

    def __enter__(self) -> RunView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line above the table."""
        (self._live.console if self._live else self._console).print(text, highlight=False, markup=False)

    def show(self, status: pb.Status) -> None:
        if self._live:
            self._live.update(render(status))
            return
        now = time.monotonic()
        if status.phase == self._last_phase and now - self._last_line_at < PLAIN_EVERY_S:
            return
        line = plain(status)
        if line != self._last_line:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._last_line, self._last_line_at, self._last_phase = line, now, status.phase


def render(status: pb.Status) -> RenderableType:
    """The whole picture: the run, its devices, the search's probes."""
    parts: list[RenderableType] = [_head(status)]
    if status.workers:
        parts.append(_devices(status))
    if status.probes:
        parts.append(_probes(status))
    parts += [Text(f"! {error}", style="red") for error in _errors(status)]
    warnings = list(status.warnings)
    if len(warnings) > WARNINGS_SHOWN:
        warnings[WARNINGS_SHOWN - 1 :] = [f"and {len(warnings) - WARNINGS_SHOWN + 1} warnings more"]
    parts += [Text(f"! {warning}", style="yellow") for warning in warnings]
    return Group(*parts)


def plain(status: pb.Status) -> str:
    """The same in one line, without colours."""
    parts = [f"{status.elapsed_s:6.1f} s", _phase(status)]
    if status.commit_rate:
        parts.append(_rate(status))
    if status.evaluations or status.loss:
        parts.append(_quality(status))
    if status.commits:
        parts.append(f"commits {status.commits}")
    if status.workers:
        parts.append(
            "; ".join(
                f"{worker.name} {worker.report.steps} steps {worker.commits} commits "
                f"waits {outcome.shares(worker.report)['wait']:.1%}"
                if worker.report.steps
                else f"{worker.name} {_worker_phase(worker)}"
                for worker in status.workers
            )
        )
    parts += _errors(status)
    return "  ".join(parts)


def _phase(status: pb.Status) -> str:
    name = outcome.PHASES.get(status.phase, "unknown")
    if status.phase == pb.Status.IDLE and status.outcome:
        return outcome.ending(status)
    if status.phase == pb.Status.WAITING and status.message:
        return f"{name}: {status.message}"
    if status.phase == pb.Status.SEARCHING:
        return f"{name} (probe {len(status.probes) + 1})"
    return name


def _rate(status: pb.Status) -> str:
    each = f"one every {status.interval_s:.2f} s"
    return f"{status.commit_rate:.3g} commits per {status.check_period_s:g} s, {each}"


def _quality(status: pb.Status) -> str:
    if not status.evaluations:
        return f"training loss {status.loss:.4f}" + (f" (target: {status.target})" if status.target else "")
    name = status.metric_name or "metric"
    shown = f"{name} {status.metric:.4f}  loss {status.loss:.4f}"
    return shown + (f" (target: {status.target})" if status.target else "")


def _worker_phase(worker: pb.WorkerStatus) -> str:
    if worker.error and worker.report.phase not in AT_WORK:
        return "failed"
    if not worker.attached:
        return "gone"
    return outcome.WORKER_PHASES.get(worker.report.phase, "attached")


def _errors(status: pb.Status) -> list[str]:
    """The first line of each worker's error; one that several have is said once."""
    names: dict[str, list[str]] = {}
    for worker in status.workers:
        if worker.error:
            names.setdefault(worker.error.splitlines()[0], []).append(worker.name)
    return [f"{_list(found)}: {error}" for error, found in names.items()]


def _list(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _head(status: pb.Status) -> RenderableType:
    title = Text.assemble(
        ("Offbeat ", "bold"),
        (status.run_name or "no run", "bold cyan"),
        (f"  {outcome.model_name(status.sync)}" if status.sync else ""),
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("phase", Text(f"{_phase(status)}   {status.elapsed_s:.0f} s"))
    if status.commit_rate:
        grid.add_row("rate", Text(_rate(status)))
    elif status.sync:
        grid.add_row("commits", Text(f"{status.commits}"))
    if status.HasField("allotment"):
        grid.add_row("cycle", Text(_cycle(status)))
    if status.evaluations or status.loss:
        grid.add_row("model", Text(_quality(status)))
        target = outcome.target_of(status)
        if target and target.accuracy and status.evaluations:
            bar = ProgressBar(total=target.accuracy, completed=min(status.metric, target.accuracy))
            grid.add_row("", Constrain(bar, BAR))
    return Group(title, grid)


def _cycle(status: pb.Status) -> str:
    """What the allocation promises, what was made in the last commits, and how long solving took."""
    found = status.allotment
    text = (
        f"{found.cycle_s:.4g} s; planned: idle {found.idle_share:.1%}, staleness at most "
        f"{found.max_staleness:g}, {found.average_staleness:.2f} on average"
    )
    made = [worker.local_updates for worker in status.workers if worker.local_updates and worker.attached]
    if made:
        text += (
            f"; observed: staleness at most {found.observed_max_staleness:.3g}, "
            f"{found.observed_average_staleness:.2f} on average, "
            f"{min(made):.3g} to {max(made):.3g} local updates a commit"
        )
    if found.max_solve_s:
        text += f"; solved in {1000 * found.solve_s:.3g} ms, at most {1000 * found.max_solve_s:.3g}"
    return text


def _devices(status: pb.Status) -> RenderableType:
    table = FittedTable(
        [
            Column("device", right=False),
            Column("steps/s", 3),
            Column("steps", 5),
            Column("commits"),
            Column("compute", 2),
            Column("paced", 0),
            Column("commit", 1),
            Column("wait"),
            Column("loss", 4),
            *([Column("allotted", 6)] if status.HasField("allotment") else []),
            Column("state", right=False),
        ]
    )
    for worker in status.workers:
        share = outcome.shares(worker.report)
        phase = _worker_phase(worker)
        table.add(
            worker.name,
            f"{worker.steps_per_s:.1f}" if worker.steps_per_s else "-",
            str(worker.report.steps),
            str(worker.commits),
            *(f"{share[name]:.1%}" for name in ("compute", "paced", "commit")),
            Text(f"{share['wait']:.1%}", style="red" if share["wait"] > WAITS else "green"),
            f"{worker.report.train_loss:.4f}" if worker.report.steps else "-",
            *([_allotted(worker)] if status.HasField("allotment") else []),
            Text(phase, style="red" if worker.error or not worker.attached else STYLES.get(phase, "")),
        )
    return table


def _allotted(worker: pb.WorkerStatus) -> str:
    """tau_k × d_k, or tau_k × b_k."""
    if worker.allotted_passes:
        return f"{worker.allotted_passes} × {worker.allotted_samples}"
    return f"{worker.allotted_updates:.3g} × {worker.batch}" if worker.allotted_updates else "-"


def _probes(status: pb.Status) -> RenderableType:
    table = FittedTable(
        [
            Column("probe"),
            Column("rate"),
            Column("interval", 1),
            Column("loss", 2),
            Column("reward", 0),
            Column("", right=False),
        ]
    )
    first = max(0, len(status.probes) - PROBES_SHOWN)
    for number, probe in list(enumerate(status.probes, start=1))[first:]:
        cells = (
            str(number),
            f"{probe.rate:.3g}",
            f"{probe.interval_s:.2f} s",
            f"{probe.loss_start:.3f} → {probe.loss_end:.3f}",
            f"{probe.reward:.4g}",
            "chosen" if probe.chosen else "",
        )
        table.add(*(Text(cell, style="bold" if probe.chosen else "") for cell in cells))
    return table
