"""Local SGD with a barrier: tau local updates, then the mean (Stich 2019; Fixed ADACOMM in the source)."""

from __future__ import annotations

from typing import cast

from pydantic import Field

from offbeat_core.config import MOST_32, Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


class LocalSGD(SyncModel):
    """Commit after tau local updates; the mean of all enters the model when the last one is there."""

    name = "local-sgd"
    short_option = "tau"

    class Options(Settings):
        tau: int = Field(8, ge=1, le=MOST_32, description="Local updates between two barriers.")

    def decide(self, fleet: Fleet) -> Plan:
        return barrier_plan(fleet, cast(LocalSGD.Options, self.options).tau, self.run.check_period_s)
