"""Configuration: one YAML file per service and one per run; the models here are the only place of defaults.

What holds, from weakest to strongest: the default, the `--config` file, an
`OFFBEAT_<FIELD>` variable (containers), the option on the command line. Unknown keys are errors.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import socket
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from offbeat_core import __version__
from offbeat_core.addresses import split_address
from offbeat_core.errors import ExitCode, OffbeatError

PREFIX = "OFFBEAT_"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"
DIGEST = r"^([0-9a-f]{64})?$"
PATTERNS = {
    NAME: "letters, digits, . _ and - only, the first a letter or a digit",
    TASK_NAME: "letters, digits, _ and - only, the first a letter or a digit",
    DEVICE: "give auto, cpu, cuda or cuda:N",
    DIGEST: "give a SHA-256: 64 digits of 0-9 and a-f",
}
"""What each asks for, in words."""

MOST_32 = 2**32 - 1
MOST_64 = 2**64 - 1
"""What the protocol's whole numbers hold."""

LONGEST_STEP_S = 86_400.0
SHORTEST_PERIOD_S = 0.01
"""Of a check period: models look at each one that has passed."""

PROBLEMS_SHOWN = 8
"""Of one file: the first ones say what is wrong with a long list."""


class Settings(BaseModel):
    """Base of all configuration: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


M = TypeVar("M", bound=Settings)


def _check_address(value: str, info: Any) -> str:
    try:
        split_address(value, info.field_name or "address")
    except OffbeatError as error:
        raise ValueError(f"{error.problem.partition(': ')[2]}; {error.remedy}") from error
    return value


class ServiceSettings(Settings):
    """What every service has."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much to log.")
    ready_file: Path | None = Field(
        None, description="Written as JSON (ports, pid) once the service is ready: for scripts and tests."
    )
    grpc_proxy: bool = Field(False, description="Use http_proxy for gRPC calls. Off: the hub is near.")


class HubSettings(ServiceSettings):
    """What the two that listen have."""

    allow_plaintext: bool = Field(
        False,
        description="Listen unencrypted where other machines can connect. Only on a network you trust.",
    )


class ParameterServerSettings(HubSettings):
    """Configuration of `offbeat-ps`."""

    name: str = Field("parameter-server", description="Name in the scheduler's status.")
    listen: str = Field("127.0.0.1:50051", description="HOST:PORT for workers; port 0 takes a free one.")
    scheduler: str = Field("127.0.0.1:50050", description="HOST:PORT of the scheduler to attend.")
    metrics_listen: str = Field(
        "127.0.0.1:9101", description="HOST:PORT of the Prometheus endpoint; empty: none."
    )
    folder: Path = Field(Path("offbeat-data/ps"), description="Checkpoints and models, one folder per run.")
    commit_memory_mb: int = Field(
        1024, ge=1, description="Memory for commits being received; more of them wait their turn."
    )
    samples: Path | None = Field(
        None,
        description="A data set to deal to learners that hold none (mode: parallelized), in a file that "
        "`offbeat samples` writes.",
    )

    _addresses = field_validator("listen", "scheduler")(_check_address)


class SchedulerSettings(HubSettings):
    """Configuration of `offbeat-scheduler`."""

    listen: str = Field(
        "127.0.0.1:50050", description="HOST:PORT for everyone else; port 0 takes a free one."
    )
    metrics_listen: str = Field(
        "127.0.0.1:9100", description="HOST:PORT of the Prometheus endpoint; empty: none."
    )
    folder: Path = Field(
        Path("offbeat-data/scheduler"), description="Event logs and effective configs, one folder per run."
    )
    run: Path | None = Field(None, description="A run file to submit at the start.")
    fetch_command: str = Field(
        "",
        description="Logged when a run ends, with the model's path for {path}: how to fetch it.",
    )
    lease_s: float = Field(10.0, gt=0, description="An agent that reported nothing for so long has left.")
    report_every_s: float = Field(1.0, gt=0, description="How often agents report.")
    keep_runs: int = Field(20, ge=1, description="Event logs of so many runs are kept.")
    models: list[Path] = Field(
        [],
        description="Your own synchronization models: files, or folders of them. A run can name no others.",
    )

    _addresses = field_validator("listen")(_check_address)

    @model_validator(mode="after")
    def _lease_is_longer(self) -> SchedulerSettings:
        if self.lease_s < 2 * self.report_every_s:
            raise ValueError(f"lease_s: {self.lease_s} is less than two reports of {self.report_every_s} s")
        return self


class WorkerSettings(ServiceSettings):
    """Configuration of `offbeat-worker` (as a trainer, or with `role: evaluator`)."""

    name: str = Field(
        default_factory=socket.gethostname,
        min_length=1,
        max_length=64,
        pattern=NAME,
        description="This device's name, unique in the fleet. Default: the host's name.",
    )
    role: Literal["worker", "evaluator"] = Field("worker", description="Train, or evaluate held-out data.")
    scheduler: str = Field("127.0.0.1:50050", description="HOST:PORT of the scheduler.")
    parameter_server: str = Field("127.0.0.1:50051", description="HOST:PORT of the parameter server.")
    shard: int = Field(0, ge=0, description="Which part of the data this device holds, from 0.")
    shards: int = Field(1, ge=1, description="Into how many parts the data is divided.")
    tasks: list[Path] = Field([], description="Your own task files (Python).")
    data: Path = Field(Path("offbeat-data"), description="Folder with data sets; handed to the task.")
    device: str = Field("auto", pattern=DEVICE, description="auto, cpu, cuda or cuda:N.")
    threads: int = Field(
        0, ge=0, description="Threads to compute with; 0: what the machine or container allows."
    )
    max_batch: int = Field(
        0,
        ge=0,
        le=MOST_32,
        description="Samples at a time at most, as this device's memory allows. 0: found once it runs out.",
    )
    step_seconds: float = Field(
        0.0,
        ge=0,
        le=LONGEST_STEP_S,
        description="Emulate a slow device: no local update takes less than this. 0: off.",
    )
    step_fixed_seconds: float = Field(
        0.0,
        ge=0,
        le=LONGEST_STEP_S,
        description="Of step_seconds, what does not grow with the batch.",
    )
    step_seconds_file: Path | None = Field(
        None, description="Read step_seconds from this file whenever it changes, while running."
    )
    metrics_listen: str = Field("", description="HOST:PORT of an optional Prometheus endpoint; empty: none.")
    health_file: Path | None = Field(
        None, description="Touched while the worker is alive; `offbeat-worker --health` reads it."
    )

    _addresses = field_validator("scheduler", "parameter_server")(_check_address)

    @model_validator(mode="after")
    def _shard_exists(self) -> WorkerSettings:
        if self.shard >= self.shards:
            raise ValueError(
                f"shard: {self.shard} does not exist; of {self.shards} shards the last is {self.shards - 1}"
            )
        return self

    @model_validator(mode="after")
    def _fixed_is_a_part(self) -> WorkerSettings:
        # What a file will say is not known; of less than this all is fixed.
        if self.step_fixed_seconds > self.step_seconds and self.step_seconds_file is None:
            raise ValueError(
                f"step_fixed_seconds: {self.step_fixed_seconds:g} is more than step_seconds: "
                f"{self.step_seconds:g}; give the part of it that does not grow with the batch"
            )
        return self


# ---- a run -------------------------------------------------------------------


class TaskSpec(Settings):
    """Which task, with what options."""

    name: str = Field(
        pattern=TASK_NAME,
        description="Built in (digits, fashion-mnist), or your file's name without .py.",
    )
    options: dict[str, str | int | float | bool] = Field(
        {}, description="Keyword arguments for the task's functions."
    )
    partition: str = Field("iid", description="iid, or dirichlet:ALPHA by label.")
    digest: str = Field(
        "",
        pattern=DIGEST,
        description="SHA-256 of the task's file; empty: that of the first device.",
    )

    @field_validator("partition")
    @classmethod
    def _partition(cls, value: str) -> str:
        kind, _, alpha = value.partition(":")
        if kind == "iid" and not alpha:
            return value
        try:
            if kind == "dirichlet" and float(alpha) > 0:
                return value
        except ValueError:
            pass
        raise ValueError(f"'{value}' is neither iid nor dirichlet:ALPHA with ALPHA above 0")


class TrainingSpec(Settings):
    """Local training on each device."""

    batch: int = Field(32, ge=1, le=MOST_32, description="Samples per local update.")
    learning_rate: float = Field(0.05, gt=0, description="Of the local updates (SGD).")
    momentum: float = Field(0.0, ge=0, lt=1, description="Of the local updates; kept across commits.")
    weight_decay: float = Field(0.0, ge=0, description="Of the local updates.")
    seed: int = Field(1, ge=0, le=MOST_64, description="Of the initial model and of the order of the data.")
    max_lone_steps: int = Field(
        0,
        ge=0,
        le=MOST_64,
        description="Without a fresh model for so many steps a worker stops accumulating; 0: chosen.",
    )


class TargetSpec(Settings):
    """When the run has reached what it is for."""

    accuracy: float | None = Field(
        None, gt=0, le=1, description="Held-out accuracy (the task's metric); needs an evaluator."
    )
    loss: float | None = Field(
        None, gt=0, description="Held-out loss (or the workers' own where no evaluator attends)."
    )
    confirm: int = Field(3, ge=1, description="So many evaluations in a row must confirm it.")
    smooth: int = Field(1, ge=1, description="Compare the mean of the last so many evaluations.")

    @model_validator(mode="after")
    def _one(self) -> TargetSpec:
        if (self.accuracy is None) == (self.loss is None):
            raise ValueError("give either accuracy or loss")
        return self


class LimitSpec(Settings):
    """When to stop short of the target."""

    seconds: float | None = Field(None, gt=0, description="Seconds of training.")
    commits: int | None = Field(None, ge=1, description="Commits of all workers together.")


class ConvergedSpec(Settings):
    """Stop when the loss stands still."""

    variance: float = Field(
        gt=0, description="Variance of the last `window` losses below which the run has converged."
    )
    window: int = Field(10, ge=2, description="So many losses are looked at.")


class EvaluateSpec(Settings):
    """What the evaluator does."""

    every_s: float = Field(1.0, gt=0, description="Seconds between evaluations.")
    batch: int = Field(256, ge=1, le=MOST_32, description="Samples at a time; all held-out samples are used.")
    required: bool | None = Field(
        None, description="Wait for an evaluator before training. Default: if the target is an accuracy."
    )


OWN_MODEL = re.compile(r"(?P<file>[^:]*\.py)(?::(?P<name>[^:]*))?(?::(?P<value>.*))?", re.DOTALL)
"""A user's own synchronization model: the file, the class in it, and a value as in `ssp:3`."""


class SyncSpec(Settings):
    """Which synchronization model, with its options.

    `adsp`, `{adsp: {rate: 4}}`, `fixed-adacomm:8`, or one of the user's own: `my_model.py:Name`,
    `{"my_model.py:Name": {OPTION: VALUE}}`. The value of a short form has the key "" in `options`.
    """

    model: str = Field(description="adsp, bsp, fixed-adacomm, ..., or FILE.py:CLASS for your own.")
    options: dict[str, Any] = Field({}, description="Of the model, by name.")
    digest: str = Field(
        "",
        pattern=DIGEST,
        description="SHA-256 of your own model's file; empty: as it is found.",
    )

    @property
    def own(self) -> tuple[str, str] | None:
        """(file, class) of a user's own model; the class is "" where the file has only one."""
        match = OWN_MODEL.fullmatch(self.model)
        return (match["file"], match["name"] or "") if match else None

    def seen_from(self, folder: Path) -> SyncSpec:
        """The same with an own model's file as an absolute path; a relative one starts at `folder`."""
        if self.own is None:
            return self
        file, name = self.own
        path = str((folder / file).resolve())
        return self.model_copy(update={"model": f"{path}:{name}" if name else path})


class RunSettings(Settings):
    """A run, as in RUN.yaml."""

    name: str = Field(
        "run",
        pattern=NAME,
        max_length=64,
        description="Of the run; its folder is the name and a short suffix.",
    )
    task: TaskSpec
    workers: int = Field(1, ge=1, description="Training begins when so many workers are ready.")
    sync: SyncSpec = Field(SyncSpec(model="adsp"))
    check_period_s: float = Field(
        60.0, ge=SHORTEST_PERIOD_S, description="Seconds between two adjustments of commit counts (Γ)."
    )
    training: TrainingSpec = Field(TrainingSpec())
    target: TargetSpec | None = None
    limits: LimitSpec = Field(LimitSpec())
    converged: ConvergedSpec | None = None
    evaluate: EvaluateSpec = Field(EvaluateSpec())
    checkpoint_every_s: float = Field(
        30.0, gt=0, description="Seconds between checkpoints on the parameter server's disk."
    )
    initial_model: str = Field(
        "", description="A safetensors file on the parameter server's machine to start from."
    )

    @model_validator(mode="before")
    @classmethod
    def _allocation_beside_sync(cls, values: Any) -> Any:
        """`sync: adsp` with `allocation: on` beside it is `sync: {adsp: {allocation: true}}`."""
        if not isinstance(values, Mapping) or "allocation" not in values:
            return values
        rest = {name: value for name, value in values.items() if name != "allocation"}
        on, sync = values["allocation"], cls._sync_short_forms(rest.get("sync", "adsp"))
        if not isinstance(on, bool):
            raise ValueError(f"allocation: {on!r} is neither on nor off")
        if isinstance(sync, SyncSpec):
            sync = sync.model_dump()
        if not isinstance(sync, Mapping) or not isinstance(sync.get("options", {}), Mapping):
            return rest  # what is wrong with it is said elsewhere
        if on and sync.get("model") != "adsp":
            raise ValueError(
                f"allocation: on is of use with sync: adsp only, not with {sync.get('model')}; leave it out"
            )
        options = sync.get("options", {})
        if options.get("allocation", on) != on:
            raise ValueError(
                f"allocation: {'on' if on else 'off'} contradicts sync.adsp.allocation: "
                f"{options['allocation']!r}; give one of the two"
            )
        return {**rest, "sync": {**sync, "options": {**options, "allocation": True}}} if on else rest

    @field_validator("task", mode="before")
    @classmethod
    def _task_by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("sync", mode="before")
    @classmethod
    def _sync_short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            if own := OWN_MODEL.fullmatch(value.strip()):
                model, argument = own["file"], own["value"]
                model = f"{model}:{own['name']}" if own["name"] else model
            else:
                model, _, argument = value.partition(":")
            return {"model": model, "options": {"": argument} if argument else {}}
        if isinstance(value, Mapping) and len(value) == 1 and "model" not in value:
            model, options = next(iter(value.items()))
            return {"model": model, "options": options or {}}
        return value

    @model_validator(mode="after")
    def _ends(self) -> RunSettings:
        if self.target and self.target.accuracy is not None and self.evaluate.required is False:
            raise ValueError(
                "target.accuracy: an accuracy is measured by an evaluator, but evaluate.required is false; "
                "attach one, or give target.loss"
            )
        return self

    @property
    def needs_evaluator(self) -> bool:
        if self.evaluate.required is not None:
            return self.evaluate.required
        return self.target is not None and self.target.accuracy is not None


# ---- reading -----------------------------------------------------------------


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file. Raises OffbeatError that names the file and what is wrong."""
    return parse_yaml(_read_text(path, what, "a YAML file"), str(path))


def read_json_or_yaml(path: Path, what: str) -> dict[str, Any]:
    """The mapping in a file: JSON if its name ends so, else YAML. Raises OffbeatError as `read_yaml`."""
    text = _read_text(path, what, "a JSON or YAML file")
    return (parse_json if path.suffix.lower() == ".json" else parse_yaml)(text, str(path))


def _read_text(path: Path, what: str, kind: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OffbeatError(
            f"{what}: cannot read {path}: {error.strerror}", f"give the path of {kind}"
        ) from error
    except UnicodeDecodeError as error:
        raise OffbeatError(
            f"{what}: {path} is not text in UTF-8 (byte {error.start})", f"give the path of {kind}"
        ) from error


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise OffbeatError(
            f"{source}{where}: not valid YAML: {getattr(error, 'problem', error)}",
            "mind indentation and colons",
        ) from error
    except (ValueError, RecursionError) as error:  # of a date that is none, of ten thousand brackets
        raise OffbeatError(f"{source}: not valid YAML: {error}", "mind indentation and colons") from error
    return _mapping({} if content is None else content, source)


def parse_json(text: str, source: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        content = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise OffbeatError(
            f"{source}, line {error.lineno}: not valid JSON: {error.msg}", "mind quotes, commas and brackets"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OffbeatError(
            f"{source}: not valid JSON: {error}", "mind quotes, commas and brackets"
        ) from error
    return _mapping(content, source)


def _mapping(content: Any, source: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise OffbeatError(f"{source}: a mapping of keys to values is expected, not {type(content).__name__}")
    return content


def validate(model: type[M], values: Mapping[str, Any], source: str) -> M:
    """Make a settings object. Raises OffbeatError naming each field, its value and the remedy."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise OffbeatError(*_explain(model, error, source)) from error


def _explain(model: type[BaseModel], error: ValidationError, source: str) -> tuple[str, str]:
    problems = []
    remedy = ""
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = _fields_at(model, item["loc"][:-1])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, 1)
            problems.append(f"{field}: unknown key")
            remedy = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(sorted(known))}"
        elif item["type"] == "missing":
            problems.append(f"{field}: is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            if item["type"] == "string_pattern_mismatch":
                message = PATTERNS.get(item["ctx"]["pattern"], message)
            value = item.get("input")
            shown = f" {value!r}:" if isinstance(value, (str, int, float, bool)) else ""
            problems.append(f"{field}:{shown} {message}" if field else message)
    if len(problems) > PROBLEMS_SHOWN:
        problems[PROBLEMS_SHOWN - 1 :] = [f"and {len(problems) - PROBLEMS_SHOWN + 1} problems more"]
    return f"{source}: " + "; ".join(problems), remedy


def _fields_at(model: Any, path: Sequence[int | str]) -> list[str]:
    """The keys that are known where an unknown one was found."""
    for part in path:
        if isinstance(part, int):
            continue  # a place in a list: the model is that of its items
        if (
            not (isinstance(model, type) and issubclass(model, BaseModel))
            or str(part) not in model.model_fields
        ):
            return []
        model = _settings_in(model.model_fields[str(part)].annotation)
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _settings_in(annotation: Any) -> Any:
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


# ---- a service's command line ---------------------------------------------------


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) is list


def _is_bool(annotation: Any) -> bool:
    return annotation is bool


def _environment(model: type[Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        text = environ.get(PREFIX + name.upper())
        if text is None:
            continue
        values[name] = [part for part in text.split(",") if part] if _is_list(field.annotation) else text
    return values


def _nullable(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType) and type(None) in typing.get_args(
        annotation
    )


def service_parser(model: type[Settings], command: str, description: str) -> argparse.ArgumentParser:
    """The options of a service, made from its settings: names, defaults and help stand in one place."""
    parser = argparse.ArgumentParser(
        prog=command,
        description=description,
        epilog=f"Each option is also a key of the --config file (with _ for -) and a variable {PREFIX}<KEY>; "
        "the option wins over the variable, the variable over the file.",
    )
    parser.add_argument("--version", action="version", version=f"offbeat {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the keys below.")
    parser.add_argument("--debug", action="store_true", help="Show where an error happened.")
    for name, field in model.model_fields.items():
        option = "--" + name.replace("_", "-")
        default = field.get_default(call_default_factory=True)
        shown = ",".join(map(str, default)) if isinstance(default, list) else default
        note = (
            f"{field.description or ''} [default: {shown}]"
            if shown not in (None, "")
            else field.description or ""
        )
        note = note.replace("%", "%%")
        if _is_bool(field.annotation):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=note)
        elif _is_list(field.annotation):
            parser.add_argument(
                option, action="append", default=None, metavar="ITEM", help=note + " (may be given again)"
            )
        else:
            parser.add_argument(option, default=None, metavar="VALUE", help=note)
    return parser


def load_service_settings(
    model: type[M], arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> M:
    """Settings from file, environment and command line. Raises OffbeatError on bad input."""
    values: dict[str, Any] = {}
    config = arguments.config or (Path(environ["OFFBEAT_CONFIG"]) if environ.get("OFFBEAT_CONFIG") else None)
    if config is not None:
        values |= read_yaml(config, "--config")
    values |= _environment(model, environ)
    values |= {
        name: value for name in model.model_fields if (value := getattr(arguments, name, None)) is not None
    }
    # An empty variable or option clears an optional field.
    for name, value in list(values.items()):
        if value == "" and name in model.model_fields and _nullable(model.model_fields[name].annotation):
            values[name] = None
    try:
        return validate(model, values, str(config) if config else arguments_name(arguments))
    except OffbeatError as error:
        error.code = ExitCode.FAILED
        raise


def arguments_name(arguments: argparse.Namespace) -> str:
    return "options"
