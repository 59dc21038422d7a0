"""What `offbeat demo` will do, decided from its options before anything is started.

Options in, a run and the settings of its processes out. Bad values raise OffbeatError naming
option, value and remedy. Nothing is read but a synchronization model of the user's own.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat_cli import demo_sync
from offbeat_core.config import RunSettings, validate
from offbeat_core.errors import ExitCode, OffbeatError

STEP_S = 0.3
CHECK_PERIOD_STEPS = 20
UNPACED_CHECK_PERIOD_S = 4.0
MAX_WORKERS = 64


@dataclass(frozen=True)
class BuiltIn:
    """How the demo trains a task that Offbeat ships."""

    accuracy: float
    batch: int
    learning_rate: float
    momentum: float = 0.0


BUILT_IN = {
    "digits": BuiltIn(accuracy=0.95, batch=32, learning_rate=0.3),
    "fashion-mnist": BuiltIn(accuracy=0.85, batch=128, learning_rate=0.05, momentum=0.9),
}


@dataclass(frozen=True)
class DemoOptions:
    """The options of `offbeat demo`; None: not given."""

    task: str = "digits"
    speeds: str = "1,3,3"
    sync: str = "adsp"
    commit_delay: float = 0.0
    target_accuracy: float | None = None
    target_loss: float | None = None
    max_seconds: float = 300.0
    out: Path | None = None
    as_json: bool = False
    seed: int = 1
    step_seconds: float | None = None
    fixed_parts: str | None = None
    unpaced: bool = False
    data: Path | None = None
    check_period: float | None = None
    rate: int | None = None
    search: str | None = None
    no_overlap: bool = False
    batch: int | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    evaluate_every: float = 0.5
    confirm: int | None = None
    smooth: int | None = None
    partition: str = "iid"
    task_option: Sequence[str] = ()
    threads: int = 1


@dataclass(frozen=True)
class DemoPlan:
    """A demo that can be started.

    Args:
        name: of the run, and of its folder.
        task_file: the user's own task, or None for one that Offbeat ships.
        run: the run, checked.
        run_values: the same as it is submitted: only what was chosen, not the defaults.
        speeds: relative speed by worker's name.
        step_seconds: of each worker, by name; 0: as fast as it can.
        fixed_seconds: of these, what does not grow with the batch.
        link_delay_s: each way between workers and parameter server.
        parallelized: the workers load no data: the parameter server deals them.
    """

    name: str
    task_file: Path | None
    run: RunSettings
    run_values: dict[str, Any]
    speeds: dict[str, float]
    step_seconds: dict[str, float]
    fixed_seconds: dict[str, float]
    link_delay_s: float
    parallelized: bool = False


def plan(options: DemoOptions) -> DemoPlan:
    speeds = parse_speeds(options.speeds)
    name, task_file = find_task(options.task)
    _above_zero("--max-seconds", options.max_seconds, "give seconds, such as 120")
    _above_zero("--evaluate-every", options.evaluate_every, "give seconds, such as 0.5")
    if not (math.isfinite(options.commit_delay) and options.commit_delay >= 0):
        raise OffbeatError(
            f"--commit-delay: {options.commit_delay:g} is not 0 or more", "give seconds, such as 0.1"
        )
    for option, value in (("--step-seconds", options.step_seconds), ("--check-period", options.check_period)):
        if value is not None:
            _above_zero(option, value, "give seconds, such as 0.3")
    for option, seconds in (
        ("--commit-delay", options.commit_delay),
        ("--step-seconds", options.step_seconds),
    ):
        if seconds is not None and seconds >= options.max_seconds:
            limit = f"--max-seconds {options.max_seconds:g}"
            raise OffbeatError(
                f"{option}: {seconds:g} is as long as the demo trains ({limit})",
                "give less, or more for --max-seconds",
            )
    for option, whole in (
        ("--threads", options.threads),
        ("--rate", options.rate),
        ("--batch", options.batch),
    ):
        if whole is not None and whole < 1:
            raise OffbeatError(f"{option}: {whole} is not 1 or more", "give a whole number of 1 or more")
    if options.learning_rate is not None:
        _above_zero("--learning-rate", options.learning_rate, "give a rate, such as 0.05")
    if options.unpaced and options.step_seconds is not None:
        raise OffbeatError(
            "--unpaced: with it every worker runs as fast as it can, but --step-seconds sets a pace",
            "give one of the two",
            ExitCode.USAGE,
        )

    if options.unpaced and options.fixed_parts is not None:
        raise OffbeatError(
            "--unpaced: with it every worker runs as fast as it can, but --fixed-parts divides a pace",
            "give one of the two",
            ExitCode.USAGE,
        )
    parts = parse_fixed_parts(options.fixed_parts, list(speeds))

    base_s = options.step_seconds or STEP_S
    slowest = min(speeds.values())
    paces = {worker: 0.0 if options.unpaced else base_s * slowest / speed for worker, speed in speeds.items()}
    default_period = UNPACED_CHECK_PERIOD_S if options.unpaced else CHECK_PERIOD_STEPS * base_s
    built_in = BUILT_IN.get(options.task)
    training = {"batch": options.batch, "learning_rate": options.learning_rate, "momentum": options.momentum}
    if built_in:
        for key, value in training.items():
            training[key] = getattr(built_in, key) if value is None else value
    values: dict[str, Any] = {
        "name": name,
        "task": _without_none(
            name=name,
            partition=options.partition if options.partition != "iid" else None,
            options=task_options(options.task_option) or None,
        ),
        "workers": len(speeds),
        "sync": demo_sync.read(options.sync),
        "check_period_s": options.check_period or default_period,
        "training": _without_none(**training, seed=options.seed),
        "target": _target(options, built_in),
        "limits": {"seconds": options.max_seconds},
        "evaluate": {"every_s": options.evaluate_every, "required": True},
    }
    values = _without_none(**values)
    run, values["sync"] = _choose_model(values, options)
    from offbeat_cli.simulator import sync_models

    return DemoPlan(
        name=name,
        task_file=task_file,
        run=run,
        run_values=values,
        speeds=speeds,
        step_seconds=paces,
        fixed_seconds={worker: parts[worker] * pace for worker, pace in paces.items()},
        link_delay_s=options.commit_delay / 2,
        parallelized=sync_models.parallelized(run),
    )


def parse_speeds(text: str) -> dict[str, float]:
    """'1,3,3' -> {'worker-1': 1.0, 'worker-2': 3.0, 'worker-3': 3.0}."""
    remedy = "give one relative speed per worker, such as 1,3,3"
    speeds = {}
    for number, word in enumerate(text.split(","), start=1):
        try:
            speed = float(word)
        except ValueError:
            speed = math.nan
        if not (math.isfinite(speed) and speed > 0):
            raise OffbeatError(f"--speeds: {text!r}: {word.strip()!r} is not a number above 0", remedy)
        speeds[f"worker-{number}"] = speed
    if len(speeds) > MAX_WORKERS:
        raise OffbeatError(f"--speeds: {len(speeds)} workers are more than {MAX_WORKERS}", remedy)
    return speeds


def parse_fixed_parts(text: str | None, workers: Sequence[str]) -> dict[str, float]:
    """'0,0.95' -> {'worker-1': 0.0, 'worker-2': 0.95}; None: 0 for all."""
    if text is None:
        return dict.fromkeys(workers, 0.0)
    remedy = "give one part from 0 to 1 per worker of --speeds, such as 0,0,0.95"
    parts = []
    for word in text.split(","):
        try:
            part = float(word)
        except ValueError:
            part = math.nan
        if not 0 <= part <= 1:
            raise OffbeatError(f"--fixed-parts: {text!r}: {word.strip()!r} is not from 0 to 1", remedy)
        parts.append(part)
    if len(parts) != len(workers):
        raise OffbeatError(f"--fixed-parts: {len(parts)} parts for {len(workers)} workers", remedy)
    return dict(zip(workers, parts, strict=True))


def find_task(task: str, option: str = "--task") -> tuple[str, Path | None]:
    """A name that Offbeat ships, or a Python file: (name, file)."""
    if task in BUILT_IN:
        return task, None
    file = Path(task)
    known = ", ".join(BUILT_IN)
    if not file.exists():
        if file.suffix == ".py" or len(file.parts) > 1:
            raise OffbeatError(
                f"{option}: {task}: there is no such file", f"give its path, or one of {known}"
            )
        near = difflib.get_close_matches(task, BUILT_IN, 1)
        raise OffbeatError(
            f"{option}: '{task}' is neither a task of Offbeat nor a file",
            f"did you mean '{near[0]}'?" if near else f"give one of {known}, or the path of your own task",
        )
    if not file.is_file() or file.suffix != ".py":
        raise OffbeatError(f"{option}: {task}: this is not a Python file", "a task is one .py file")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", file.stem):
        raise OffbeatError(
            f"{option}: {task}: '{file.stem}' can't name a task",
            "rename the file: letters, digits, - and _ only",
        )
    return file.stem, file.resolve()


def _target(options: DemoOptions, built_in: BuiltIn | None) -> dict[str, Any] | None:
    accuracy, loss = options.target_accuracy, options.target_loss
    if accuracy is not None and loss is not None:
        raise OffbeatError(
            f"--target-accuracy {accuracy:g} and --target-loss {loss:g}: a run has one target",
            "give one of the two",
            ExitCode.USAGE,
        )
    if accuracy is not None and not 0 < accuracy <= 1:
        remedy = (
            f"did you mean {accuracy / 100:g}?" if 1 < accuracy <= 100 else "give a fraction, such as 0.95"
        )
        raise OffbeatError(f"--target-accuracy: {accuracy:g} is not above 0 and at most 1", remedy)
    if loss is not None:
        _above_zero("--target-loss", loss, "give a loss, such as 0.3")
    if accuracy is None and loss is None:
        if built_in is None:
            return None
        accuracy = built_in.accuracy
    return _without_none(accuracy=accuracy, loss=loss, confirm=options.confirm, smooth=options.smooth)


def _choose_model(values: dict[str, Any], options: DemoOptions) -> tuple[RunSettings, Any]:
    """The run with its synchronization model, and its `sync` as it is submitted; both are checked."""
    from offbeat_cli.simulator import sync_models  # numpy takes a moment to import

    flags = _without_none(
        rate=options.rate, search=options.search, overlap=False if options.no_overlap else None
    )

    def check(run: RunSettings) -> Any:
        try:
            return sync_models.check(run)
        except OffbeatError as error:
            raise demo_sync.explain(error, flags) from error

    run = validate(RunSettings, values, "offbeat demo")
    model = check(run)
    if not flags:
        return run, values["sync"]
    if options.rate is not None and options.search is not None:
        raise OffbeatError(
            f"--rate {options.rate} and --search {options.search}: a fixed rate is not searched",
            "give one of the two",
            ExitCode.USAGE,
        )
    known, short = model.Options.model_fields, model.short_option
    sync = {run.sync.model: demo_sync.merge(run.sync.model, run.sync.options, flags, known, short)}
    run = validate(RunSettings, {**values, "sync": sync}, "offbeat demo")
    check(run)
    return run, sync


def task_options(items: Sequence[str]) -> dict[str, Any]:
    """['hidden=64'] -> {'hidden': 64}: numbers as numbers, the rest as text."""
    found: dict[str, Any] = {}
    for item in items:
        key, separator, text = item.partition("=")
        if not separator or not key.isidentifier():
            raise OffbeatError(f"--task-option: '{item}' is not KEY=VALUE", "for example hidden=64")
        found[key] = _number(text)
    return found


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _above_zero(option: str, value: float, remedy: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise OffbeatError(f"{option}: {value:g} is not above 0", remedy)


def _without_none(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
