"""BSP: a barrier at each step. The baseline in which everyone waits for the slowest (Valiant 1990)."""

from __future__ import annotations

from offbeat_core.config import Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


class BSP(SyncModel):
    """Commit after each local update; the mean of all enters the model when the last one is there."""

    name = "bsp"

    class Options(Settings):
        """None."""

    def decide(self, fleet: Fleet) -> Plan:
        return barrier_plan(fleet, 1, self.run.check_period_s)
