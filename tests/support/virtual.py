"""Runs and fleets for tests of what decides, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offbeat_core.config import RunSettings, validate
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Device, Fleet, Loss, Plan, SyncModel


def run_settings(sync: Any = "adsp", period_s: float = 6.0, **fields: Any) -> RunSettings:
    """A run as its file would give it."""
    values = {"task": "digits", "sync": sync, "check_period_s": period_s, **fields}
    return validate(RunSettings, values, "run")


def trio(commit_s: float = 0.05, hold_s: float = 0.005) -> dict[str, Device]:
    """Three devices with speeds 1, 3, 3, everything measured."""
    steps = {"fast-1": 0.1, "fast-2": 0.1, "slow": 0.3}
    return {
        name: Device(name, step_s=step_s, commit_s=commit_s, hold_s=hold_s) for name, step_s in steps.items()
    }


class Watched:
    """A model with a note of each fleet that it saw and each plan that it gave; each is checked."""

    def __init__(self, model: SyncModel) -> None:
        self.model, self.run, self.digest = model, model.run, model.digest
        self.parallelized = model.parallelized
        self.seen: list[tuple[Fleet, Plan]] = []

    def observe(self, loss: Loss) -> None:
        self.model.observe(loss)

    def decide(self, fleet: Fleet) -> Plan:
        plan = self.model.decide(fleet)
        if fleet.devices:
            check(plan, fleet, parallelized=self.parallelized)
        self.seen.append((fleet, plan))
        return plan


EVENTS_S = 0.5


class Hand:
    """Drives a model by hand: advances the time, counts commits, keeps the plans.

    Every device makes exactly the commits of its grid, unless `lose` is told of it.
    """

    def __init__(self, model: SyncModel, devices: Mapping[str, Device]) -> None:
        self.model = model
        self.devices = dict(devices)
        self.now_s = 0.0
        self.plans: list[Plan] = []
        self.grids: dict[str, Any] = {}
        self.decide()

    @property
    def plan(self) -> Plan:
        return self.plans[-1]

    def decide(self) -> Plan:
        fleet = Fleet(self.now_s, dict(self.devices), counted_at_s=self.now_s)
        self.plans.append(self.model.decide(fleet))
        return self.plan

    def change(self, name: str, **fields: Any) -> None:
        self.devices[name] = replace(self.devices[name], **fields)

    def to(self, when_s: float, losing: tuple[str, ...] = ()) -> Plan:
        """Advance to `when_s`; all but `losing` commit at their deadlines.

        The model decides at each wake, and in between as often as losses come.
        """
        while self.now_s < when_s:
            wake = self.plan.wake_at_s
            target = min(when_s, self.now_s + EVENTS_S)
            if wake is not None and self.now_s < wake < target:
                target = wake
            for name, grid in self.plan.triggers.items():
                due = _points(grid, target) - _points(grid, self.now_s)
                if name not in losing and name in self.devices:
                    self.change(name, commits=self.devices[name].commits + due)
            self.now_s = target
            self.decide()
        return self.plan

    def counts(self) -> dict[str, int]:
        return {name: device.commits for name, device in self.devices.items()}

    def loss(self, value: float, source: Any = "evaluator") -> None:
        self.model.observe(Loss(self.now_s, value, 0, source))


def _points(grid: Any, moment_s: float) -> int:
    return int((moment_s - grid.origin_s) / grid.interval_s + 1e-6)
