"""A run's event log as series over time.

The log (events.jsonl, one JSON object per line) holds what went into the scheduler's
decisions and what came out; fields at zero are left out. Times here are seconds since
training began; a log that stops in the middle of a line is read up to there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat_core.errors import OffbeatError

TRAINING = {"searching", "training"}
ENDED = {"finishing", "idle"}


@dataclass(frozen=True)
class Evaluation:
    at_s: float
    loss: float
    metric: float
    version: int = 0


@dataclass(frozen=True)
class Rate:
    """A rate that came into force: commits per check period, and seconds between two commits."""

    at_s: float
    rate: float
    interval_s: float
    searching: bool


@dataclass(frozen=True)
class PlanSeen:
    """What a plan said beside its rate; devices by name.

    Args:
        steps: local updates between two commits, of those that count them.
        trains: who trained; the others rested.
        groups: members of each, where devices wait only for their own group.
        round: its number, where everyone commits once and then rests.
        batches: samples per local update, where they are not the run's.
        passes, samples: in a commit, and in each of its passes, where samples are allotted.
        solve_s: seconds that the allocation took; 0: not measured, or there was none.
    """

    at_s: float
    steps: Mapping[str, int]
    trains: frozenset[str]
    groups: tuple[frozenset[str], ...] = ()
    round: int | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    passes: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    allotment: Mapping[str, Any] | None = None
    solve_s: float = 0.0

    @property
    def updates(self) -> Mapping[str, float]:
        """Local updates in a commit interval, as planned, where batches are allotted."""
        return (self.allotment or {}).get("updates", {})


@dataclass(frozen=True)
class ProbeResult:
    rate: float
    interval_s: float
    start_s: float
    end_s: float
    loss_start: float
    loss_end: float
    reward: float
    chosen: bool


@dataclass
class DeviceHistory:
    """One worker: its totals, and its commits over time, with the local updates in them, as the parameter
    server counted them.

    `seconds` are those of its training thread: compute, paced, commit, wait.
    """

    name: str
    steps: int = 0
    commits: int = 0
    step_s: float = 0.0
    commit_s: float = 0.0
    train_loss: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    commits_at: list[tuple[float, int]] = field(default_factory=list)
    steps_at: list[int] = field(default_factory=list)
    losses_at: list[tuple[float, float]] = field(default_factory=list)
    error: str = ""

    def share(self, name: str) -> float:
        total = sum(self.seconds.values())
        return self.seconds.get(name, 0.0) / total if total else 0.0

    def local_updates(self, from_s: float) -> float | None:
        """Mean of the commits that were counted after `from_s`; None: there were none."""
        counted = [
            (commits, steps)
            for (at_s, commits), steps in zip(self.commits_at, self.steps_at, strict=True)
            if at_s >= from_s
        ]
        if not counted or counted[-1][0] <= counted[0][0]:
            return None
        return (counted[-1][1] - counted[0][1]) / (counted[-1][0] - counted[0][0])


@dataclass
class History:
    """A whole run. `trained_s` is how long it trained so far."""

    run_id: str = ""
    batch: int = 0  # the run's
    metric_name: str = "metric"
    trained_s: float = 0.0
    phase: str = ""
    outcome: str = ""
    message: str = ""
    devices: dict[str, DeviceHistory] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    probes: list[ProbeResult] = field(default_factory=list)
    plans: list[PlanSeen] = field(default_factory=list)

    def device(self, name: str) -> DeviceHistory:
        return self.devices.setdefault(name, DeviceHistory(name))


def read(path: Path) -> History:
    """Read events.jsonl. Raises OffbeatError if it is not there or holds no run."""
    try:
        return _read(_lines(path))
    except OSError as error:
        raise OffbeatError(
            f"{path}: {error.strerror}", "name a folder with the event log of a run, events.jsonl"
        ) from error


def _read(lines: Iterator[dict[str, Any]]) -> History:
    """Line by line: a log may be larger than memory."""
    history = History()
    began: float | None = None
    solve_s = 0.0
    for line in lines:
        at = float(line.get("t", 0.0))
        if "event" in line:
            solve_s = float(line.get("solve_s", 0.0))
        if line.get("decision") == "PhaseChanged":
            history.phase = str(line.get("phase", "")).lower()
            history.outcome = str(line.get("outcome") or history.outcome).lower()
            history.message = str(line.get("message", ""))
            if history.phase in TRAINING:
                began = at if began is None else began
            elif history.phase in ENDED and began is not None and not history.trained_s:
                history.trained_s = at - began
        elif line.get("event") == "RunSubmitted":
            history.run_id = str(line.get("run_id", ""))
            history.batch = int(line.get("settings", {}).get("training", {}).get("batch", 0))
        elif (report := line.get("report")) is not None and _of_run(report, history):
            _add_report(history, line, report, at - began if began is not None else None)
        elif line.get("decision") == "PlanMade":
            # The first plan is made just before training begins.
            _add_plan(history, line["plan"], at - began if began is not None else 0.0, solve_s)
        elif line.get("decision") == "ProbeEnded":
            _add_probe(history, line["probe"])
        if began is not None and history.phase in TRAINING:
            last = at - began
    if began is not None and not history.trained_s:
        history.trained_s = last
    return history


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                content = json.loads(line)
            except ValueError:
                continue  # the last line of a scheduler that was killed
            if isinstance(content, dict):
                yield content


def _of_run(report: dict[str, Any], history: History) -> bool:
    """Reports of agents that still speak of the run before are not of this one."""
    return not history.run_id or report.get("run_id") == history.run_id


def _add_report(history: History, line: dict[str, Any], report: dict[str, Any], at: float | None) -> None:
    kind = line["event"]
    if kind == "WorkerReported":
        device = history.device(line["name"])
        device.error = report.get("error", "")
        if report.get("steps"):
            device.steps = int(report["steps"])
            device.step_s = float(report.get("step_s", 0.0))
            device.commit_s = float(report.get("commit_s", 0.0))
            device.train_loss = float(report.get("train_loss", 0.0))
            time = report.get("time", {})
            device.seconds = {key.removesuffix("_s"): float(value) for key, value in time.items()}
            if at is not None:
                device.losses_at.append((at, device.train_loss))
    elif kind == "ServerReported":
        for count in report.get("counts", ()):
            device = history.device(count["worker"])
            device.commits = int(count.get("commits", 0))
            if at is not None:
                device.commits_at.append((at, device.commits))
                device.steps_at.append(int(count.get("steps", 0)))
    elif kind == "Evaluated" and at is not None and "loss" in report and not report.get("error"):
        # Between two evaluations the evaluator says the last one again: that is no second one.
        version = int(report.get("version", 0))
        if not history.evaluations or history.evaluations[-1].version != version:
            history.metric_name = report.get("metric_name") or history.metric_name
            history.evaluations.append(
                Evaluation(at, float(report.get("loss", 0.0)), float(report.get("metric", 0.0)), version)
            )


def _add_plan(history: History, plan: dict[str, Any], at: float, solve_s: float) -> None:
    made = Rate(at, float(plan["commit_rate"]), float(plan["interval_s"]), bool(plan.get("searching", False)))
    before = history.rates[-1] if history.rates else None
    if before is None or (before.rate, before.interval_s, before.searching) != (
        made.rate,
        made.interval_s,
        made.searching,
    ):
        history.rates.append(made)
    triggers = plan.get("triggers", {})
    history.plans.append(
        PlanSeen(
            at,
            steps={name: int(kind["Steps"]["steps"]) for name, kind in triggers.items() if "Steps" in kind},
            trains=frozenset(triggers),
            groups=tuple(frozenset(group["members"]) for group in plan.get("groups", ())),
            round=plan.get("round"),
            batches=plan.get("batches", {}),
            passes={
                name: int(kind["Passes"]["passes"]) for name, kind in triggers.items() if "Passes" in kind
            },
            samples=plan.get("samples", {}),
            allotment=plan.get("allotment"),
            solve_s=solve_s,
        )
    )


def _add_probe(history: History, probe: dict[str, Any]) -> None:
    """A later word on the same probe (that it was chosen) takes the place of the earlier one."""
    made = ProbeResult(
        **{
            name: float(probe.get(name, 0.0)) for name in ProbeResult.__dataclass_fields__ if name != "chosen"
        },
        chosen=bool(probe.get("chosen", False)),
    )
    history.probes = [item for item in history.probes if item.start_s != made.start_s] + [made]
