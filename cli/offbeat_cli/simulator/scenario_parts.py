"""The parts of a scenario: devices, training, target, and the models to compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from offbeat_core.config import MOST_32, SHORTEST_PERIOD_S, Settings, TaskSpec


def partition_text(value: Any) -> Any:
    """`{dirichlet: 0.3}` is `dirichlet:0.3`."""
    if isinstance(value, Mapping) and len(value) == 1:
        kind, argument = next(iter(value.items()))
        return f"{kind}:{argument}" if argument is not None else str(kind)
    return value


MOST_DEVICES = 10_000
SHORTEST_S = 1e-6
"""Of a local update: virtual time must move on."""

Partition = Annotated[str, BeforeValidator(partition_text)]


class DeviceGroup(Settings):
    """Devices that are alike."""

    count: int = Field(1, description="So many of them.")
    name: str = Field("", max_length=48, description="Of the group. Default: g1, g2, ...")
    step_s: float = Field(description="Seconds per local update, at the scenario's batch size.")
    fixed_s: float = Field(0.0, description="Of that, what does not grow with the batch.")
    commit_s: float = Field(0.0, description="Seconds that a commit travels, both ways together.")
    sample_s: float = Field(
        0.0, description="Seconds that a sample travels, where the hub deals them (mode: parallelized)."
    )
    hold_s: float = Field(0.0, description="Seconds that a commit holds the training thread.")
    jitter: float = Field(
        0.0, le=2, description="Standard deviation of the logarithm of each step's and travel's time."
    )
    speeds: tuple[tuple[float, float], ...] = Field((), description="[[at_s, step_s], ...]: it changes.")
    joins_at: float = Field(0.0, description="Seconds after the beginning.")
    leaves_at: float | None = Field(None, description="It vanishes then, without a word.")
    max_batch: int = Field(
        0, ge=0, le=MOST_32, description="Samples that fit its memory at a time. 0: any number."
    )
    labels: tuple[int, ...] = Field((), description="Its data holds only these classes. Default: all.")

    @field_validator("count")
    @classmethod
    def _some(cls, value: int) -> int:
        if value < 1:
            raise ValueError("is not positive; give 1 or more devices, or leave the group out")
        if value > MOST_DEVICES:
            raise ValueError(f"is too many; give up to {MOST_DEVICES}")
        return value

    @field_validator("name")
    @classmethod
    def _word(cls, value: str) -> str:
        if value and not (value[0].isalnum() and all(c.isalnum() or c in "._-" for c in value)):
            raise ValueError("use letters, digits, . _ and - only, the first a letter or a digit")
        return value

    @field_validator("step_s")
    @classmethod
    def _takes_time(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("is not positive; give the seconds of one local update")
        if value < SHORTEST_S:
            raise ValueError(f"no local update is so short; give {SHORTEST_S:.6f} s or more")
        return value

    @field_validator("fixed_s", "commit_s", "sample_s", "hold_s", "jitter", "joins_at")
    @classmethod
    def _not_negative(cls, value: float) -> float:
        if value < 0:
            raise ValueError("is negative; give 0 or more")
        return value

    @field_validator("speeds")
    @classmethod
    def _in_order(cls, value: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if any(at_s < 0 or step_s <= 0 for at_s, step_s in value):
            raise ValueError("a time is negative or a step time not positive; give [[at_s, step_s], ...]")
        if any(step_s < SHORTEST_S for _, step_s in value):
            raise ValueError(f"no local update is so short; give {SHORTEST_S:.6f} s or more")
        return tuple(sorted(value))

    @model_validator(mode="after")
    def _consistent(self) -> DeviceGroup:
        fastest = min((self.step_s, *(step_s for _, step_s in self.speeds)))
        if self.fixed_s > fastest:
            raise ValueError(
                f"fixed_s: {self.fixed_s:g} is more than a whole step of {fastest:g} s; "
                "give the part of step_s that does not grow with the batch"
            )
        if self.leaves_at is not None and self.leaves_at <= self.joins_at:
            raise ValueError(
                f"leaves_at: {self.leaves_at:g} is not after joins_at {self.joins_at:g}; give a later time"
            )
        return self


class Training(Settings):
    """Local training, the same on each device."""

    batch: int = Field(32, ge=1, le=MOST_32, description="Samples per local update.")
    lr: float = Field(0.05, gt=0, description="Learning rate of the local updates (SGD).")
    momentum: float = Field(0.0, ge=0, lt=1, description="Of the local updates; kept across commits.")
    weight_decay: float = Field(0.0, ge=0, description="Of the local updates.")
    partition: Partition = Field("iid", description="iid, or {dirichlet: ALPHA} by label.")

    @field_validator("partition")
    @classmethod
    def _is_one(cls, value: str) -> str:
        try:
            TaskSpec(name="task", partition=value)
        except ValidationError:
            raise ValueError(
                f"{value} is no division of data; give iid, or {{dirichlet: ALPHA}} with ALPHA above 0"
            ) from None
        return value


class Target(Settings):
    """What each model must reach: the mean of the last `smooth` evaluations."""

    accuracy: float | None = Field(None, description="Held-out accuracy (the task's first metric).")
    loss: float | None = Field(None, description="Held-out loss.")
    smooth: int = Field(10, description="So many evaluations are averaged: one crossing is noise.")

    @field_validator("accuracy")
    @classmethod
    def _share(cls, value: float | None) -> float | None:
        if value is not None and not 0 < value <= 1:
            raise ValueError("no model reaches that; give a share of right answers, such as 0.85")
        return value

    @field_validator("loss")
    @classmethod
    def _above_zero(cls, value: float | None) -> float | None:
        if value is not None and value <= 0:
            raise ValueError("no model reaches that; give a loss above 0")
        return value

    @field_validator("smooth")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError("is not positive; give 1 or more evaluations")
        return value

    @model_validator(mode="after")
    def _one(self) -> Target:
        if (self.accuracy is None) == (self.loss is None):
            raise ValueError("give either accuracy or loss")
        return self


class Entry(Settings):
    """One of the models to compare: `bsp`, `{ssp: {staleness: 3}}`, or with `sync:` and what differs."""

    sync: str | dict[str, Any] = Field(description="The synchronization model, as in a run's file.")
    label: str = Field("", max_length=80, description="In tables and plots. Default: made of the rest.")
    training: dict[str, Any] = Field({}, description="What differs from the scenario's training.")
    overlap: bool | None = Field(None, description="Default: the scenario's.")
    check_period_s: float | None = Field(None, ge=SHORTEST_PERIOD_S, description="Default: the scenario's.")

    @field_validator("label")
    @classmethod
    def _can_be_shown(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("holds what can't be shown; give one line of text")
        return value

    @property
    def shown(self) -> str:
        """The label, or one made of model, options and what differs."""
        if self.label:
            return self.label
        if isinstance(self.sync, str):
            parts = [self.sync]
        elif len(self.sync) == 1 and "model" not in self.sync:
            name, options = next(iter(self.sync.items()))
            parts = [_named(str(name), options or {})]
        else:
            parts = [_named(str(self.sync.get("model", "?")), self.sync.get("options") or {})]
        differs = {**self.training, "overlap": self.overlap, "check_period_s": self.check_period_s}
        return " ".join([*parts, *(f"{key}={_short(v)}" for key, v in differs.items() if v is not None)])


def _named(name: str, options: Any) -> str:
    if not isinstance(options, Mapping) or not options:
        return name
    return f"{name}({', '.join(f'{key}={_short(value)}' for key, value in options.items())})"


def _short(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else str(value).lower()
        if value is True or value is False
        else str(value)
    )
