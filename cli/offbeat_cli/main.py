"""The operator's command `offbeat`.

Options and help stand here; each command's own module is imported when it runs, so that
`offbeat --help` answers at once.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from offbeat_core import __version__
from offbeat_core.errors import ExitCode, guard

SCHEDULER = "127.0.0.1:50050"
TUNING = "Tuning, for experiments"

app = typer.Typer(
    name="offbeat",
    help="Train one PyTorch model across devices of very different speed; nobody waits for the slowest.",
    epilog="Begin with: offbeat demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

SchedulerOption = Annotated[
    str, typer.Option("--scheduler", metavar="HOST:PORT", help="Where the scheduler listens.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _finish(command: Callable[[], int]) -> None:
    """Run a command; errors become a line or two and an exit code."""
    raise typer.Exit(guard(lambda: _piped(command)))


def _piped(command: Callable[[], int]) -> int:
    """Run a command whose reader may have read enough: `offbeat status --watch | head`."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        stdout = sys.stdout.fileno()
        watched = select.poll()
        watched.register(stdout, 0)
        if not watched.poll(0):
            raise  # it was another pipe
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stdout)
        return ExitCode.FAILED


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"offbeat {__version__}")
        raise typer.Exit


@app.callback()
def offbeat(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error happened (may stand anywhere).")
    ] = False,
) -> None:
    """What every command has."""


@app.command()
def demo(
    task: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="digits, fashion-mnist, or the Python file of your own task."),
    ] = "digits",
    speeds: Annotated[
        str, typer.Option(metavar="1,3,3", help="Relative speeds: one worker is started for each.")
    ] = "1,3,3",
    sync: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="adsp (nobody waits), bsp (all wait each step), or another model of docs/models.md: NAME, "
            "NAME:VALUE, '{NAME: {OPTION: VALUE}}', or FILE.py:CLASS for one of your own.",
        ),
    ] = "adsp",
    commit_delay: Annotated[
        float, typer.Option(metavar="S", help="Slow network: a commit's round trip takes S seconds longer.")
    ] = 0.0,
    target_accuracy: Annotated[
        float | None,
        typer.Option(metavar="A", help="End at this held-out accuracy. digits: 0.95, fashion-mnist: 0.85."),
    ] = None,
    target_loss: Annotated[
        float | None,
        typer.Option(metavar="L", help="End at this held-out loss instead."),
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(metavar="S", help="Train no longer than this; exit code 3 if it came first.")
    ] = 300.0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for report and model. Default: a new one in offbeat-out."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object last; all else goes to stderr.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the model and of the data's order.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with data sets. Default: offbeat-data."),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="The slowest worker's local update. Default: 0.3.", rich_help_panel=TUNING
        ),
    ] = None,
    fixed_parts: Annotated[
        str | None,
        typer.Option(
            metavar="P,P,...",
            help="Of each worker's local update, what does not grow with the batch, such as 0,0,0.95.",
            rich_help_panel=TUNING,
        ),
    ] = None,
    unpaced: Annotated[
        bool, typer.Option("--unpaced", help="Every worker as fast as it can.", rich_help_panel=TUNING)
    ] = False,
    check_period: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds between adjustments of commit counts. Default: 20 of the slowest updates.",
            rich_help_panel=TUNING,
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="adsp: N commits per check period, no search.", rich_help_panel=TUNING
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="robust|formula|source", help="adsp: how the rate is found.", rich_help_panel=TUNING
        ),
    ] = None,
    no_overlap: Annotated[
        bool,
        typer.Option(
            "--no-overlap", help="adsp: stand still while a commit travels.", rich_help_panel=TUNING
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", help="Samples per local update.", rich_help_panel=TUNING),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="X", rich_help_panel=TUNING),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(metavar="X", rich_help_panel=TUNING),
    ] = None,
    partition: Annotated[
        str,
        typer.Option(metavar="iid|dirichlet:ALPHA", help="How the data is divided.", rich_help_panel=TUNING),
    ] = "iid",
    task_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="For the task; may be given again.", rich_help_panel=TUNING),
    ] = None,
    evaluate_every: Annotated[
        float, typer.Option(metavar="S", help="Seconds between evaluations.", rich_help_panel=TUNING)
    ] = 0.5,
    confirm: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="So many evaluations in a row confirm the target.", rich_help_panel=TUNING
        ),
    ] = None,
    smooth: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The target is compared with the mean of the last N.", rich_help_panel=TUNING
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(metavar="N", help="Threads of each worker.", rich_help_panel=TUNING)
    ] = 1,
) -> None:
    """Train a model across unequal devices on this machine, and leave a report.

    Real processes: a scheduler, a parameter server, an evaluator, one worker per speed. Ctrl-C ends them all.

    Exit codes: 0 target reached, 3 a limit came first, 1 failure, 2 wrong usage, 130 Ctrl-C.
    """

    def command() -> int:
        from offbeat_cli.demo import DemoOptions
        from offbeat_cli.demo import demo as run_demo

        return run_demo(
            DemoOptions(
                task=task,
                speeds=speeds,
                sync=sync,
                commit_delay=commit_delay,
                target_accuracy=target_accuracy,
                target_loss=target_loss,
                max_seconds=max_seconds,
                out=out,
                as_json=as_json,
                seed=seed,
                step_seconds=step_seconds,
                fixed_parts=fixed_parts,
                unpaced=unpaced,
                data=data,
                check_period=check_period,
                rate=rate,
                search=search,
                no_overlap=no_overlap,
                batch=batch,
                learning_rate=learning_rate,
                momentum=momentum,
                evaluate_every=evaluate_every,
                confirm=confirm,
                smooth=smooth,
                partition=partition,
                task_option=task_option or (),
                threads=threads,
            )
        )

    _finish(command)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="See: offbeat example run")],
    scheduler: SchedulerOption = SCHEDULER,
    wait: Annotated[bool, typer.Option("--wait", help="Show the run until it has ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Submit a run to a scheduler.

    Exit codes: 0 submitted (with --wait: target reached), 3 a limit came first, 1 failure, 2 wrong usage.
    """

    def command() -> int:
        from offbeat_cli.run import run as submit

        return submit(file, scheduler, wait=wait, as_json=as_json)

    _finish(command)


@app.command()
def status(
    scheduler: SchedulerOption = SCHEDULER,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing it, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a scheduler, its devices and its run are doing."""

    def command() -> int:
        from offbeat_cli.status import status as show

        return show(scheduler, watch=watch, as_json=as_json)

    _finish(command)


@app.command()
def stop(
    scheduler: SchedulerOption = SCHEDULER,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="Only if this is the current run.")] = "",
    as_json: JsonOption = False,
) -> None:
    """End the current run; its model is written, and the devices stay attached for the next one."""

    def command() -> int:
        from offbeat_cli.stop import stop as end

        return end(scheduler, run_id, as_json=as_json)

    _finish(command)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that offbeat demo has left.")],
) -> None:
    """Make DIR/report.html anew from a run's event log."""

    def command() -> int:
        from offbeat_cli.report import write

        print(write(folder))
        return 0

    _finish(command)


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(metavar="SCENARIO.yaml", help="See: docs/simulate.md")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object last; all else goes to stderr.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for report, plots and finished runs: it also resumes there."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with data sets. Default: the scenario's.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="So many seeds instead of the scenario's.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes at a time. Default: one per core.")
    ] = None,
) -> None:
    """Compare synchronization models on a fleet of devices, in virtual time with real gradients.

    The decisions are those of the services; only time, devices and network are virtual.

    Exit codes: 0 every model reached the target, 3 some did not within the limit, 1 failure,
    2 wrong usage, 130 Ctrl-C (what is finished stays in --out).
    """

    def command() -> int:
        from offbeat_cli.simulate import simulate as compare

        return compare(file, as_json=as_json, out=out, data=data, seeds=seeds, workers=workers)

    _finish(command)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(metavar="INSTANCE.yaml|json", help="See: docs/plan.md")],
    scheme: Annotated[
        str,
        typer.Option(
            metavar="async|sync|eta|sai",
            help="async (least staleness, exact), or a baseline: sync (equal updates), eta (equal samples), "
            "sai (suggest and improve).",
        ),
    ] = "async",
    integer: Annotated[
        str,
        typer.Option(
            metavar="maximal|full-cycle|relaxed",
            help="Whole numbers with which nobody could make one more update; with which all work "
            "98 % of the cycle; or real numbers.",
        ),
    ] = "maximal",
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw how each learner spends the cycle: .png or .svg."),
    ] = None,
) -> None:
    """Allot samples and local updates to unequal learners, so that all work the whole cycle.

    Exit codes: 0 feasible, 4 infeasible, 1 bad input, 2 wrong usage.
    """

    def command() -> int:
        from offbeat_cli.plan import plan as solve

        return solve(file, scheme=scheme, integer=integer, as_json=as_json, plot=plot)

    _finish(command)


@app.command()
def samples(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="digits, fashion-mnist, or the Python file of your own task."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write (safetensors).")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder with data sets.")] = Path("offbeat-data"),
    task_option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the task; may be given again.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of what the task draws by chance.")] = 1,
) -> None:
    """Write a task's training data to FILE, for a parameter server that deals them to devices without data.

    Start the server with --samples FILE, and the run with sync: {mel-async: {mode: parallelized}}.
    """

    def command() -> int:
        from offbeat_cli.samples import samples as write

        return write(task, out, data=data, options=task_option or (), seed=seed)

    _finish(command)


@app.command()
def replay(
    log: Annotated[
        Path, typer.Argument(metavar="EVENTS.jsonl", help="A run's event log, or the folder that has it.")
    ],
) -> None:
    """Feed a run's event log to the decisions again; they must be those that were recorded.

    Exit codes: 0 the same, 1 different (the first difference is shown), or no event log.
    """

    def command() -> int:
        from offbeat_cli.simulator.replaying import replay as run_replay

        return run_replay(log)

    _finish(command)


@app.command()
def example(
    kind: Annotated[str, typer.Argument(metavar="run|scheduler|parameter-server|worker", help="Which file.")],
) -> None:
    """Print a commented configuration file with every key and its default."""

    def command() -> int:
        from offbeat_cli.examples import text

        print(text(kind), end="")
        return 0

    _finish(command)


def main() -> int:
    """The console script's entry."""
    # guard looks for --debug itself, wherever it stands.
    words = [word for word in sys.argv[1:] if word != "--debug"]
    return guard(lambda: app(words, prog_name="offbeat"))


if __name__ == "__main__":
    sys.exit(main())
