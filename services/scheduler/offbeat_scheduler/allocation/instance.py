"""An instance: which learners share how many samples in cycles of what length, as in INSTANCE.yaml or .json.

All that is wrong in a file by itself is said here, field by field. Whether there is an
allocation at all is the solver's to say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from offbeat_core.config import Settings, read_json_or_yaml, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation.coefficients import joules, seconds
from offbeat_scheduler.allocation.instance_parts import MOST_LEARNERS, LearnerGroup, Samples, Task
from offbeat_scheduler.allocation.problem import Energy, Problem
from offbeat_scheduler.allocation.quantities import SomeSeconds

LEARNERS = "[{count: 3, compute_s_per_sample_update: 1e-3, fixed_s: 0.1}]"
WHERE = "docs/plan.md says what an instance holds"


class Instance(Settings):
    """What `offbeat plan` solves."""

    name: str = Field("", max_length=200, description="Default: the file's name.")
    mode: Literal["federated", "parallelized"] = Field(
        description="Samples stay on the devices, or travel to them in each cycle."
    )
    cycle_s: SomeSeconds = Field(description="T: seconds of a cycle.")
    samples: Samples = Field(description="d: of all learners together.")
    task: Task | None = Field(None, description="For learners with cpu_hz or a link.")
    learners: tuple[LearnerGroup, ...]
    expected: dict[str, Any] | None = Field(None, description="A test case's known optimum; not read.")

    @field_validator("name")
    @classmethod
    def _one_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("holds a control character; give a name that can be printed")
        return value

    @field_validator("learners", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"is no list; give one, such as {LEARNERS}")
        if not value:
            raise ValueError(f"there are none; give some, such as {LEARNERS}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Instance:
        for index, group in enumerate(self.learners):
            if group.is_physical and self.task is None:
                raise ValueError(
                    f"task: is missing, and learners.{index} has {'cpu_hz' if group.cpu_hz else 'a link'}; "
                    "give a task, or measured coefficients"
                )
            if group.cpu_hz and self.task and self.task.operations_per_sample is None:
                raise ValueError(
                    f"task.operations_per_sample: is missing, and learners.{index} has cpu_hz; "
                    "give it, or compute_s_per_sample_update"
                )
            if group.link and self.task and self.mode == "parallelized" and not self.task.features:
                raise ValueError(
                    f"task.features: is 0 or missing, and samples travel to learners.{index}; "
                    "give the features of a sample, or mode: federated"
                )
        if self.size > MOST_LEARNERS:
            raise ValueError(f"learners: {self.size} are too many; give up to {MOST_LEARNERS}")
        name, times = Counter(self.names).most_common(1)[0]
        if times > 1:
            raise ValueError(f"learners: {times} are called '{name}'; give the groups different names")
        return self

    # ---- reading -----------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Instance:
        """The instance in a JSON or YAML file. Raises OffbeatError."""
        try:
            values = read_json_or_yaml(path, "INSTANCE")
            if not values:
                raise OffbeatError(f"{path}: is empty")
            return cls.make(values, str(path), name=path.stem)
        except OffbeatError as error:
            raise OffbeatError(error.problem, error.remedy or WHERE) from error

    @classmethod
    def make(cls, values: Mapping[str, Any], source: str, *, name: str = "instance") -> Instance:
        """An instance of these values. Raises OffbeatError."""
        instance = validate(cls, values, source)
        return instance.model_copy(update={"name": instance.name or name})

    # ---- what follows from it ------------------------------------------------------------

    @property
    def size(self) -> int:
        """K: how many learners there are."""
        return sum(group.count for group in self.learners)

    @property
    def names(self) -> list[str]:
        """The learners' names, in the order of the file."""
        names = []
        for number, group in enumerate(self.learners, start=1):
            name, width = group.name or f"g{number}", len(str(group.count))
            names += (
                [f"{name}-{index:0{width}}" for index in range(1, group.count + 1)]
                if group.count > 1
                else [name]
            )
        return names

    def problem(self) -> Problem:
        """The same as arrays, one element per learner. Raises OffbeatError."""
        counts = [group.count for group in self.learners]

        def each(values: Sequence[float]) -> npt.NDArray[Any]:
            return np.repeat(np.asarray(values), counts)

        travel = self.mode == "parallelized"
        times = [seconds(group, self.task, samples_travel=travel) for group in self.learners]
        energy = None
        if any(group.energy for group in self.learners):
            uses = [joules(group, self.task, samples_travel=travel) for group in self.learners]
            energy = Energy(
                per_sample_update=each([use.per_sample_update for use in uses]),
                per_sample=each([use.per_sample for use in uses]),
                fixed=each([use.fixed for use in uses]),
                limit=each([group.energy.max_j if group.energy else math.inf for group in self.learners]),
            )
        return Problem(
            names=tuple(self.names),
            compute=each([time.per_sample_update for time in times]),
            transfer=each([time.per_sample for time in times]),
            fixed=each([time.fixed for time in times]),
            min_samples=each([group.min_samples for group in self.learners]),
            max_samples=each(
                [group.max_samples or max(self.samples, group.min_samples) for group in self.learners]
            ),
            samples=self.samples,
            cycle_s=self.cycle_s,
            energy=energy,
        )
