"""BatchTune on Fixed ADACOMM: a barrier after tau steps, and batches by speed; see `r2sp.py`."""

from __future__ import annotations

from typing import cast

from pydantic import Field

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.models.r2sp import BatchTuner
from offbeat_scheduler.sync import Fleet, Plan, SyncModel


class BatchTuneFixedAdaComm(SyncModel):
    """Commit after tau local updates; the mean, by samples, enters when the last one is there."""

    name = "batchtune-fixed-adacomm"
    short_option = "tau"

    class Options(Settings):
        tau: int = Field(8, ge=1, le=MOST_32, description="Local updates between two barriers.")

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._tau = cast(BatchTuneFixedAdaComm.Options, options).tau
        self._tuner = BatchTuner(run.training.batch, run.check_period_s)

    def decide(self, fleet: Fleet) -> Plan:
        batches = self._tuner.batches(fleet)
        return barrier_plan(
            fleet, self._tau, self.run.check_period_s, batches=batches, wake_at_s=self._tuner.wake_at_s
        )
