"""ADACOMM: a barrier after tau local updates, and tau falls with the loss.

Source: Wang, Joshi, "Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in
Local-Update SGD", MLSys 2019, as Hu, Wang, Wu (AAAI 2020) run it. At the end of each check period

    tau' = tau0 * sqrt(F / F0)        F: the loss now, F0: at the start
    tau <- ceil(tau') if that is less than tau, else ceil(tau / 2)

*Ours*: F and F0 are medians of a few losses, so that a single one decides nothing; a period in which
no loss came changes nothing; and tau never rises, whatever the losses do.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import cast

from pydantic import Field

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_scheduler.models.barrier import barrier_plan
from offbeat_scheduler.sync import Fleet, Loss, Plan, SyncModel

LOSSES = 5
"""F is the median of so many: two that are far out change nothing."""

MOST_RATIO = 1e100
"""F/F0 at most: no more than a loss can rise, and a number whose root is one."""


class AdaComm(SyncModel):
    """Everyone commits after tau local updates and waits for all; tau is set anew each check period."""

    name = "adacomm"
    short_option = "tau0"

    class Options(Settings):
        tau0: int = Field(20, ge=1, le=MOST_32, description="Local updates between two barriers, at first.")

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._tau0 = self.tau = cast(AdaComm.Options, options).tau0
        self._progress = _Progress()
        self._periods = 0

    def observe(self, loss: Loss) -> None:
        self._progress.add(loss)

    def decide(self, fleet: Fleet) -> Plan:
        period_s = self.run.check_period_s
        periods = math.floor(fleet.now_s / period_s + 1e-9)
        if periods > self._periods:
            self._periods = periods
            self._adapt()
        return barrier_plan(fleet, self.tau, period_s, wake_at_s=(periods + 1) * period_s)

    def _adapt(self) -> None:
        ratio = self._progress.take()
        if ratio is not None:
            wanted = max(1, math.ceil(self._tau0 * math.sqrt(ratio)))
            self.tau = wanted if wanted < self.tau else math.ceil(self.tau / 2)


class _Progress:
    """F/F0 from the losses so far."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=LOSSES)
        self._first: list[float] = []  # those that F0 is made of
        self._source = ""
        self._ratio_before = 1.0  # F/F0 when the losses' source last changed
        self._is_new = False

    def add(self, loss: Loss) -> None:
        if not math.isfinite(loss.value):
            return
        if loss.source != self._source:
            # Another kind of loss: it goes on from where the former one stood.
            self._ratio_before = self._ratio() or self._ratio_before
            self._source = loss.source
            self._recent.clear()
            self._first.clear()
        self._recent.append(loss.value)
        if len(self._first) < LOSSES:
            self._first.append(loss.value)
        self._is_new = True

    def take(self) -> float | None:
        """F/F0; None where no loss is new, or where they are no losses that could fall towards 0."""
        if not self._is_new:
            return None
        self._is_new = False
        return self._ratio()

    def _ratio(self) -> float | None:
        if not self._first:
            return None
        first, now = statistics.median(self._first), statistics.median(self._recent)
        if first <= 0 or now < 0:
            return None
        # Of a first loss next to 0 it may be infinite, or 0 times that: no number of updates.
        ratio = self._ratio_before * (now / first)
        return min(ratio, MOST_RATIO) if ratio >= 0 else None
