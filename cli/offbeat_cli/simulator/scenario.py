"""A scenario: which task on which devices under which synchronization models, as in SCENARIO.yaml.

All that can be said without training is said here, before anything runs: each error
names the field, its value and what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from offbeat_cli.simulator.devices import VirtualDevice, heterogeneity
from offbeat_cli.simulator.scenario_parts import (
    MOST_DEVICES,
    DeviceGroup,
    Entry,
    Target,
    Training,
    partition_text,
)
from offbeat_core.config import SHORTEST_PERIOD_S, RunSettings, Settings, TaskSpec, read_yaml, validate
from offbeat_core.errors import OffbeatError

MOST_SEEDS = 1000
MOST_EVALUATIONS = 1_000_000
EXAMPLES = {"devices": "[{count: 3, step_s: 1.0}]", "compare": "[bsp, adsp]"}


class Scenario(Settings):
    """What `offbeat simulate` runs."""

    name: str = Field("", max_length=64, description="Of the scenario. Default: the file's name.")
    task: TaskSpec
    tasks: tuple[Path, ...] = Field((), description="Your own task files, relative to the scenario's file.")
    data: Path = Field(Path("offbeat-data"), description="Folder with data sets; handed to the task.")
    devices: tuple[DeviceGroup, ...]
    training: Training = Field(Training())
    check_period_s: float = Field(
        60.0, ge=SHORTEST_PERIOD_S, description="Γ: seconds between two adjustments of counts."
    )
    target: Target
    limit_s: float = Field(description="Virtual seconds after which a run ends without its target.")
    evaluate_every_s: float = Field(1.0, description="Virtual seconds between evaluations.")
    seeds: tuple[int, ...] = Field((1, 2, 3, 4, 5), description="How many (1, 2, ...), or which.")
    overlap: bool = Field(
        True, description="The commit travels while training goes on, for models that can do so."
    )
    server_s: float = Field(0.0, description="Seconds that the parameter server is busy with one commit.")
    report_every_s: float = Field(1.0, ge=0, description="How often the scheduler hears of the devices.")
    compare: tuple[Entry, ...]

    @field_validator("task", mode="before")
    @classmethod
    def _task_by_name(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and "partition" in value:
            return {**value, "partition": partition_text(value["partition"])}
        return value

    @field_validator("devices", "compare", mode="before")
    @classmethod
    def _lists(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"is no list; give one, such as {EXAMPLES[info.field_name]}")
        return value

    @field_validator("devices", "compare")
    @classmethod
    def _not_empty(cls, value: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        if not value:
            raise ValueError(f"there are none; give some, such as {EXAMPLES[info.field_name]}")
        return value

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 1 <= value <= MOST_SEEDS:
                raise ValueError(f"give 1 to {MOST_SEEDS}, or a list of seeds")
            return tuple(range(1, value + 1))
        if not isinstance(value, (list, tuple)):
            raise ValueError("give how many, such as 5, or a list of seeds")
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) < len(value) or min(value) < 0:
            raise ValueError("give one seed or more, each once, from 0")
        return value

    @field_validator("compare", mode="before")
    @classmethod
    def _entries(cls, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        plain = (str, Mapping)
        return [
            {"sync": item}
            if isinstance(item, plain) and not (isinstance(item, Mapping) and "sync" in item)
            else item
            for item in value
        ]

    @field_validator("limit_s", "evaluate_every_s")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("is not positive; give seconds above 0")
        return value

    @field_validator("server_s")
    @classmethod
    def _not_negative(cls, value: float) -> float:
        if value < 0:
            raise ValueError("is negative; give 0 or more seconds")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        needed_s = self.evaluate_every_s * self.target.smooth
        if self.limit_s < self.evaluate_every_s:
            raise ValueError(
                f"limit_s: {self.limit_s:g} ends before the first evaluation at {self.evaluate_every_s:g} s; "
                "give a longer limit, or evaluate more often"
            )
        if self.limit_s / self.evaluate_every_s > MOST_EVALUATIONS:
            raise ValueError(
                f"evaluate_every_s: {self.evaluate_every_s:g} makes more than {MOST_EVALUATIONS} evaluations "
                f"in limit_s {self.limit_s:g}; evaluate less often, or give a shorter limit"
            )
        if self.limit_s < needed_s:
            raise ValueError(
                f"limit_s: {self.limit_s:g} ends before {self.target.smooth} evaluations are made, at "
                f"{needed_s:g} s, so the target can't be reached; give a longer limit, or a smaller "
                "target.smooth"
            )
        if self.task.partition != "iid" and self.training.partition != "iid":
            raise ValueError(
                f"task.partition: '{self.task.partition}' and training.partition: "
                f"'{self.training.partition}' are two divisions of the data; give one"
            )
        if all(group.joins_at > 0 for group in self.devices):
            raise ValueError(
                f"devices: the first joins at {min(g.joins_at for g in self.devices):g} s; "
                "give one that is there from the beginning (joins_at: 0)"
            )
        for index, group in enumerate(self.devices):
            if group.joins_at >= self.limit_s:
                raise ValueError(
                    f"devices.{index}.joins_at: {group.joins_at:g} is not before limit_s {self.limit_s:g}; "
                    "give an earlier time, or leave the group out"
                )
        if (count := sum(group.count for group in self.devices)) > MOST_DEVICES:
            raise ValueError(f"devices: {count} are too many; give up to {MOST_DEVICES}")
        names = Counter(device.name for device in self.virtual_devices())
        if twice := next((name for name, count in names.items() if count > 1), None):
            raise ValueError(f"devices: two are called '{twice}'; give the groups different names")
        labels = [entry.shown for entry in self.compare]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise ValueError(f"compare: '{twice}' is there twice; leave one out, or give it another label")
        return self

    # ---- what follows from it ----------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Scenario:
        """The scenario in a YAML file, with its models' options checked. Raises OffbeatError."""
        return cls.make(read_yaml(path, "SCENARIO.yaml"), str(path), folder=path.parent, name=path.stem)

    @classmethod
    def make(
        cls, values: Mapping[str, Any], source: str, *, folder: Path = Path(), name: str = "scenario"
    ) -> Scenario:
        """A scenario of these values; paths in it are relative to `folder`. Raises OffbeatError."""
        scenario = validate(cls, values, source)
        from offbeat_cli.simulator.entries import check, located  # they need this module

        scenario = scenario.model_copy(
            update={
                "name": scenario.name or name,
                "tasks": tuple(folder / path for path in scenario.tasks),
                "compare": tuple(located(entry, folder) for entry in scenario.compare),
            }
        )
        try:
            check(scenario)
        except OffbeatError as error:
            raise OffbeatError(f"{source}: {error.problem}", error.remedy) from error
        return scenario

    @property
    def partition(self) -> str:
        """iid or dirichlet:ALPHA."""
        return self.task.partition if self.task.partition != "iid" else self.training.partition

    def virtual_devices(self) -> list[VirtualDevice]:
        """The fleet, in the order of the file."""
        fleet = []
        for number, group in enumerate(self.devices, start=1):
            name = group.name or f"g{number}"
            width = len(str(group.count))
            for index in range(1, group.count + 1):
                fleet.append(
                    VirtualDevice(
                        name=f"{name}-{index:0{width}}" if group.count > 1 else name,
                        step_s=group.step_s,
                        commit_s=group.commit_s,
                        hold_s=group.hold_s,
                        jitter=group.jitter,
                        joins_s=group.joins_at,
                        leaves_s=group.leaves_at,
                        speeds=group.speeds,
                        fixed_s=group.fixed_s,
                        max_batch=group.max_batch,
                        sample_s=group.sample_s,
                    )
                )
        return fleet

    @property
    def labels(self) -> list[tuple[int, ...]]:
        """Which classes each device's data holds, in the order of `virtual_devices`; empty: all."""
        return [group.labels for group in self.devices for _ in range(group.count)]

    @property
    def heterogeneity(self) -> float:
        """H = mean(v) / min(v) over the devices' speeds v at the beginning."""
        return heterogeneity([device.step_s for device in self.virtual_devices()])

    def run_settings(self, entry: Entry, seed: int) -> RunSettings:
        """The run of one entry and seed, as a run's file would give it. Raises OffbeatError."""
        training = validate(Training, {**self.training.model_dump(), **entry.training}, "training")
        partition = self.task.partition if self.task.partition != "iid" else training.partition
        target = self.target.model_dump(exclude_none=True)
        values = {
            "name": "simulated",
            "task": {**self.task.model_dump(), "partition": partition},
            "workers": len(self.virtual_devices()),
            "sync": entry.sync,
            "check_period_s": entry.check_period_s or self.check_period_s,
            "training": {
                "batch": training.batch,
                "learning_rate": training.lr,
                "momentum": training.momentum,
                "weight_decay": training.weight_decay,
                "seed": seed,
            },
            "target": {**target, "confirm": 1},
            "limits": {"seconds": self.limit_s},
            "evaluate": {"every_s": self.evaluate_every_s},
        }
        return validate(RunSettings, values, "run")
