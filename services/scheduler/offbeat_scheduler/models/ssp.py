"""SSP: commit after each step, at most `staleness` steps ahead of the slowest.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NeurIPS 2013. Hu, Wang, Wu (AAAI 2020) compare with a staleness of 40.
"""

from __future__ import annotations

from typing import cast

from pydantic import Field

from offbeat_core.config import MOST_32, Settings
from offbeat_scheduler.models.barrier import longest_s, window_s
from offbeat_scheduler.sync import Fleet, Fold, Gate, Plan, Steps, SyncModel


class SSP(SyncModel):
    """Updates enter at once; whoever is too far ahead waits for the slowest to catch up."""

    name = "ssp"
    short_option = "staleness"

    class Options(Settings):
        staleness: int = Field(
            3, ge=0, le=MOST_32, description="Commits that a device may be ahead of the slowest."
        )

    def decide(self, fleet: Fleet) -> Plan:
        interval_s = longest_s(fleet, 1)
        return Plan(
            triggers={name: Steps(1) for name in fleet.devices},
            gate=Gate(slack=cast(SSP.Options, self.options).staleness),
            fold=Fold(when="at_once", weight="equal"),
            cohort=tuple(sorted(fleet.devices)),
            membership_window_s=window_s(self.run.check_period_s, interval_s),
            interval_s=interval_s,
        )
