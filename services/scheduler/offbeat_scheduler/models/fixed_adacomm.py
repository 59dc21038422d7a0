"""Fixed ADACOMM, also known as local SGD: tau local updates, then the mean (Stich, ICLR 2019).

The name is that of Hu, Wang, Wu (AAAI 2020), who use tau = 40: ADACOMM with a tau that stands.
"""

from __future__ import annotations

from typing import cast

from pydantic import Field

from offbeat_core.config import MOST_32, Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


class FixedAdaComm(SyncModel):
    """Commit after tau local updates; the mean of all enters the model when the last one is there."""

    name = "fixed-adacomm"
    aliases = ("local-sgd",)
    short_option = "tau"

    class Options(Settings):
        tau: int = Field(8, ge=1, le=MOST_32, description="Local updates between two barriers.")

    def decide(self, fleet: Fleet) -> Plan:
        return barrier_plan(fleet, cast(FixedAdaComm.Options, self.options).tau, self.run.check_period_s)
