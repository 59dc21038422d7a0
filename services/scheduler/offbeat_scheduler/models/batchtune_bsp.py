"""BatchTune on BSP: a barrier at each step, and batches by speed, so that few wait; see `r2sp.py`."""

from __future__ import annotations

from offbeat_core.config import RunSettings, Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.models.r2sp import BatchTuner
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


class BatchTuneBSP(SyncModel):
    """Commit after each local update; the mean, by samples, enters when the last one is there."""

    name = "batchtune-bsp"

    class Options(Settings):
        """None."""

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._tuner = BatchTuner(run.training.batch, run.check_period_s)

    def decide(self, fleet: Fleet) -> Plan:
        batches = self._tuner.batches(fleet)
        return barrier_plan(
            fleet, 1, self.run.check_period_s, batches=batches, wake_at_s=self._tuner.wake_at_s
        )
