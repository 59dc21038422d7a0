"""ADSP with a batch that is fixed beforehand: what an allocation by goodput is compared with.

A synchronization model of the kind that users write (`docs/models.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast

import numpy as np
from pydantic import Field

from offbeat_core.config import RunSettings, Settings
from offbeat_scheduler.allocation.goodput import Rule
from offbeat_scheduler.models.adsp import ADSP
from offbeat_scheduler.models.batches import noise_scale
from offbeat_scheduler.sync import Fleet, Plan


class FixedBatch(ADSP):
    """Some devices train with a multiple of the run's batch, at a learning rate scaled by a rule."""

    name = "fixed-batch"

    class Options(ADSP.Options):
        devices: str = Field("", description="Those whose names begin so; empty: all.")
        times: float = Field(1.0, gt=0, description="Their batch in the run's.")
        scaling: Literal["gain", "linear", "none"] = Field(
            "gain",
            description="Of their learning rate: by the gain; linear; none.",
        )
        cap: float = Field(1.5, ge=1, description="Of its factor.")

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._fixed = cast(FixedBatch.Options, options)
        self._base = run.training.batch
        self._batch = max(1, round(self._fixed.times * self._base))
        self._noise: float | None = None

    def decide(self, fleet: Fleet) -> Plan:
        self._noise = noise_scale(fleet.devices) or self._noise
        plan = super().decide(fleet)
        gains = self._gains(fleet)
        batches = dict.fromkeys(gains, self._batch) if self._begun else {}
        rates = gains if self._begun else {}
        # What the others measure once they have begun would cost them time for nothing.
        measures = not self._begun or self._fixed.scaling == "gain"
        return replace(plan, batches=batches, rates=rates, gradient_noise=measures)

    @property
    def _begun(self) -> bool:
        """The rule by the gain needs the noise scale; all rules begin then."""
        return self._noise is not None

    def _gains(self, fleet: Fleet) -> Mapping[str, float]:
        names = [name for name in fleet.devices if name.startswith(self._fixed.devices)]
        return dict.fromkeys(names, self._gain() if self._begun else 1.0)

    def _gain(self) -> float:
        if self._fixed.scaling == "none":
            return 1.0
        if self._fixed.scaling == "linear":
            return min(self._batch / self._base, self._fixed.cap)
        assert self._noise is not None
        # Rounded: it is told to devices, and the noise scale is measured all the time.
        return round(float(Rule(self._base, self._noise, self._fixed.cap).rate(np.float64(self._batch))), 1)
