"""FedAvg: in each round a sample of the devices trains, and the mean of theirs, by data, is the next model.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS
2017: their C is `fraction`, their E `passes`. Who is in a round depends on the run's seed, the
round's number and who is there, so a replay draws the same.

A device that leaves in the middle of its round is not replaced: the round closes without it. One that
joins rests until the next round; one that returns to the round that it was drawn for goes on.
"""

from __future__ import annotations

import random
from typing import cast

from pydantic import Field, model_validator

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_scheduler.models.barrier import longest_s, window_s
from offbeat_scheduler.sync import Fleet, Fold, Gate, Passes, Plan, Steps, SyncModel, Trigger

TAU = 8


class FedAvg(SyncModel):
    """Rounds: a sampled cohort trains, all others rest."""

    name = "fedavg"
    short_option = "fraction"

    class Options(Settings):
        fraction: float = Field(
            1.0, gt=0, le=1, description="The share of the devices that train in a round; one at least."
        )
        tau: int | None = Field(
            None, ge=1, le=MOST_32, description=f"Local updates in a round. Default: {TAU}, without passes."
        )
        passes: int | None = Field(
            None, ge=1, le=MOST_32, description="Instead of tau: passes over the device's own data."
        )

        @model_validator(mode="after")
        def _one(self) -> FedAvg.Options:
            if self.tau is not None and self.passes is not None:
                raise ValueError(
                    f"tau: {self.tau} and passes: {self.passes}: a round has one length; give one"
                )
            return self

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._options = cast(FedAvg.Options, options)
        self._round = 0
        self._drawn: frozenset[str] = frozenset()

    def decide(self, fleet: Fleet) -> Plan:
        present = self._drawn & fleet.devices.keys()
        if fleet.devices and (fleet.closed or not present):
            self._round += 1
            self._drawn = self._draw(sorted(fleet.devices))
            present = self._drawn
        trigger: Trigger = Steps(self._options.tau or TAU)
        if self._options.passes is not None:
            trigger = Passes(self._options.passes)
        round_s = self._round_s(fleet)
        return Plan(
            triggers=dict.fromkeys(sorted(present), trigger),
            gate=Gate(slack=0),
            fold=Fold(when="at_gate", weight="data"),
            cohort=tuple(sorted(present)),
            resting=frozenset(fleet.devices) - present,
            round=self._round,
            membership_window_s=window_s(self.run.check_period_s, round_s),
            interval_s=round_s,
        )

    def _draw(self, names: list[str]) -> frozenset[str]:
        count = min(len(names), max(1, round(self._options.fraction * len(names))))
        chance = random.Random(f"fedavg {self.run.training.seed} {self._round}")
        return frozenset(chance.sample(names, count))

    def _round_s(self, fleet: Fleet) -> float:
        if self._options.passes is None:
            return longest_s(fleet, self._options.tau or TAU)
        batch = self.run.training.batch
        most = max((-(-device.shard_samples // batch) for device in fleet.devices.values()), default=0)
        return longest_s(fleet, self._options.passes * most)
