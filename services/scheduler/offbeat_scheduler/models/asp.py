"""ASP: commit after each step and wait for nobody (Dean et al., "Large Scale Distributed Deep Networks",
NeurIPS 2012, as Downpour SGD with n_fetch = n_push = 1)."""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field

from offbeat_core.config import Settings
from offbeat_scheduler.models.barrier import longest_s, window_s
from offbeat_scheduler.sync import Fleet, Fold, Plan, Steps, SyncModel


class ASP(SyncModel):
    """Each update enters at once. A device that is three times as fast counts three times as much."""

    name = "asp"
    short_option = "weight"

    class Options(Settings):
        weight: Literal["equal", "samples", "per_step"] = Field(
            "equal",
            description="What a commit counts: equal (1/M), samples (its share of the samples), per_step (a "
            "device with many local updates in it pulls no further than one with few).",
        )
        overlap: bool = Field(
            False,
            description="Go on training while a commit travels; the next one holds what was made meanwhile. "
            "false: wait for the fresh model, as in the source.",
        )

    def decide(self, fleet: Fleet) -> Plan:
        options = cast(ASP.Options, self.options)
        interval_s = longest_s(fleet, 1)
        return Plan(
            triggers={name: Steps(1) for name in fleet.devices},
            fold=Fold(when="at_once", weight=options.weight),
            overlap=options.overlap,
            membership_window_s=window_s(self.run.check_period_s, interval_s),
            interval_s=interval_s,
        )
