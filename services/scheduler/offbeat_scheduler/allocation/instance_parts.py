"""The parts of an instance's file: the task's size, a link, an energy limit, a group of like learners."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from offbeat_core.config import NAME, PATTERNS, Settings
from offbeat_scheduler.allocation import physical
from offbeat_scheduler.allocation.physical import TaskSize
from offbeat_scheduler.allocation.problem import MOST_WHOLE
from offbeat_scheduler.allocation.quantities import (
    BitRate,
    Bits,
    DBm,
    DBmPerHertz,
    Decibels,
    Hertz,
    Joules,
    Metres,
    Seconds,
    SomeJoules,
    SomeSeconds,
    SomeWatts,
    Watts,
    above_zero,
    not_negative,
    whole,
)

MOST_LEARNERS = 1_000_000
Learners = Annotated[int, whole("learners", MOST_LEARNERS)]
Samples = Annotated[int, whole("samples", MOST_WHOLE)]


class Task(Settings):
    """What travels and what is computed: for learners with `cpu_hz` or a `link`."""

    parameters: Annotated[float, above_zero("parameters")] = Field(description="S_m: of the model.")
    bits_per_parameter: Bits = Field(32, description="P_m: on the wire.")
    parameters_per_sample: Annotated[float, not_negative("parameters")] = Field(
        0, description="S_d: by so many the model grows with each sample."
    )
    features: Annotated[float, not_negative("features")] = Field(
        0, description="F: of one sample; they travel when parallelized."
    )
    bits_per_feature: Bits = Field(8, description="P_d: on the wire.")
    operations_per_sample: Annotated[float, above_zero("operations")] | None = Field(
        None, description="C_m: clock cycles per sample and update; for learners with cpu_hz."
    )

    @property
    def size(self) -> TaskSize:
        return TaskSize(**self.model_dump(exclude={"operations_per_sample"}))


class Link(Settings):
    """A learner's link to the hub, the same both ways: its bit rate, or what determines it."""

    bit_rate: BitRate | None = Field(None, description="R: measured, bit/s.")
    bandwidth_hz: Hertz | None = Field(None, description="W: instead of bit_rate, with the next ones.")
    transmit_dbm: DBm | None = Field(None, description="P: transmit power.")
    noise_dbm_per_hz: DBmPerHertz = Field(-174, description="N0: noise density; thermal, at 17 °C.")
    path_loss_db: Decibels | None = Field(None, description="1/h: measured; or distance_m.")
    distance_m: Metres | None = Field(None, description="From it the path loss follows, by the next two.")
    path_loss_at_1m_db: Decibels = Field(physical.PATH_LOSS_AT_1M_DB)
    path_loss_per_decade_db: Decibels = Field(
        physical.PATH_LOSS_PER_DECADE_DB, description="More at each tenfold distance."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Link:
        if self.bit_rate is not None:
            beside = [
                name
                for name in ("bandwidth_hz", "path_loss_db", "distance_m")
                if getattr(self, name) is not None
            ]
            if beside:
                raise ValueError(
                    f"bit_rate stands beside {', '.join(beside)}; give bit_rate alone, or leave it out"
                )
            return self
        missing = [name for name in ("bandwidth_hz", "transmit_dbm") if getattr(self, name) is None]
        if (self.path_loss_db is None) == (self.distance_m is None):
            missing.append("one of distance_m and path_loss_db")
        if missing:
            raise ValueError(f"give bit_rate (measured); without it {' and '.join(missing)}")
        if self.rate <= 0:
            raise ValueError("no signal arrives; give more transmit_dbm, a shorter distance_m, or a bit_rate")
        return self

    @property
    def rate(self) -> float:
        """Bit/s, each way."""
        if self.bit_rate is not None:
            return self.bit_rate
        assert self.bandwidth_hz is not None
        assert self.transmit_dbm is not None
        loss_db = self.path_loss_db
        if loss_db is None:
            assert self.distance_m is not None
            loss_db = physical.path_loss_db(
                self.distance_m, self.path_loss_at_1m_db, self.path_loss_per_decade_db
            )
        return physical.link_rate(self.bandwidth_hz, self.transmit_dbm, self.noise_dbm_per_hz, loss_db)

    @property
    def transmit_w(self) -> float:
        """0 where it is not known."""
        return 0.0 if self.transmit_dbm is None else physical.watts(self.transmit_dbm)


class EnergyLimit(Settings):
    """What a learner may use in a cycle, and what its work uses: measured joules, or watts."""

    max_j: SomeJoules = Field(description="E_max: joules per cycle.")
    compute_j_per_sample_update: SomeJoules | None = Field(None, description="G2: measured; or compute_w.")
    compute_w: SomeWatts | None = Field(None, description="What computing draws.")
    transfer_j_per_sample: Joules | None = Field(
        None, description="G1: measured. Default: by the link, or 0."
    )
    fixed_j: Joules | None = Field(None, description="G0: measured. Default: by the link, or 0.")
    transmit_w: Watts | None = Field(
        None, description="What sending draws. Default: the link's transmit power, or 0."
    )
    receive_w: Watts | None = Field(None, description="What receiving draws. Default: 0.")

    @model_validator(mode="after")
    def _one_way(self) -> EnergyLimit:
        if (self.compute_j_per_sample_update is None) == (self.compute_w is None):
            raise ValueError("give one of compute_j_per_sample_update (measured) and compute_w")
        return self

    @property
    def radio_draws(self) -> list[str]:
        """The fields given that a link's energy follows from."""
        return [name for name in ("transmit_w", "receive_w") if getattr(self, name) is not None]


class LearnerGroup(Settings):
    """Learners that are alike: with measured coefficients, or with what these follow from."""

    name: str = Field(
        "", max_length=64, description="Of the group; of several, its learners are name-1, name-2."
    )
    count: Learners = Field(1, description="So many alike.")
    compute_s_per_sample_update: SomeSeconds | None = Field(None, description="C2: measured; or cpu_hz.")
    cpu_hz: Hertz | None = Field(None, description="f: operations of the task per second.")
    transfer_s_per_sample: Seconds | None = Field(
        None, description="C1: measured. Default: by the link, or 0."
    )
    fixed_s: Seconds | None = Field(None, description="C0: measured, the model both ways; or a link.")
    link: Link | None = None
    min_samples: Samples = Field(1, description="d_l.")
    max_samples: Samples | None = Field(None, description="d_u. Default: all samples.")
    energy: EnergyLimit | None = Field(None, description="Its limit per cycle. Default: none.")

    @field_validator("name")
    @classmethod
    def _word(cls, value: str) -> str:
        if value and not re.match(NAME, value):
            raise ValueError(f"use {PATTERNS[NAME]}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> LearnerGroup:
        if (self.compute_s_per_sample_update is None) == (self.cpu_hz is None):
            raise ValueError("give one of compute_s_per_sample_update (measured) and cpu_hz")
        if (self.fixed_s is None) == (self.link is None):
            raise ValueError("give one of fixed_s (measured) and link")
        if self.link is not None and self.transfer_s_per_sample is not None:
            raise ValueError("transfer_s_per_sample follows from link; leave one out")
        if self.link is None and self.energy is not None and self.energy.radio_draws:
            raise ValueError(
                f"energy.{self.energy.radio_draws[0]}: without a link nothing follows from it; "
                "give transfer_j_per_sample and fixed_j"
            )
        if self.max_samples is not None and self.min_samples > self.max_samples:
            raise ValueError(
                f"min_samples: {self.min_samples} is above max_samples {self.max_samples}; "
                "give a lower min_samples or a higher max_samples"
            )
        return self

    @property
    def is_physical(self) -> bool:
        """Does it need the task's size?"""
        return self.cpu_hz is not None or self.link is not None
