"""Mobile edge learning: cycles of T seconds in which each learner makes tau_k passes over d_k samples.

Source: Mohammad, Sorour, "Adaptive Task Allocation for Asynchronous Federated and Parallelized Mobile Edge
Learning", arXiv 1905.01656. The three models differ only in who solves the allocation: exactly and
asynchronously (`mel_async.py`), with one tau for all (`mel_sync.py`), or with equal samples
(`mel_eta.py`).

*Ours*: coefficients are measured, not computed from clock rates and links, and the allocation is solved anew
for each cycle. A learner's first cycle is its benchmark: one pass over a few batches, which counts like any
other. Nobody is waited for: the cycle closes a tenth after T. Who is late goes on under the new cycle's
allotment (parallelized: on the new cycle's samples), with the passes that it has made, and commits in that
cycle. Who has no update in a cycle rests, and is told why; after some cycles it is measured anew.

Federated, a learner's samples are its own. Parallelized, the parameter server's data set is dealt anew in
each cycle: all of it, unless `samples` says less, or less fits the cycle.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal, cast

from pydantic import Field, model_validator

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import Allocation, Integer, Scheme
from offbeat_scheduler.models.allotting import Part, allocate, filling
from offbeat_scheduler.models.barrier import window_s
from offbeat_scheduler.models.learners import Learner
from offbeat_scheduler.sync import Allotment, Device, Fleet, Fold, Gate, Passes, Plan, SyncModel, Trigger

GRACE = 0.1
"""A cycle closes so much of T after T: clocks and measurements are never exact."""

FIRST_BATCHES = 8
"""What a learner's first pass is over."""

SHARE = 0.5
"""Of the samples that the learners hold, so many are trained on in a cycle: there is room to shift them."""

FIRST_TRANSFER = 0.5
"""Of the first cycle, what the transfer of its samples may take, where that is known."""


class MELOptions(Settings):
    """What the three models have in common."""

    mode: Literal["federated", "parallelized"] = Field(
        "federated",
        description="Whose samples are trained on. federated: each learner's own. parallelized: those of the "
        "parameter server, which deals its data set (`samples` of offbeat-ps) anew in each cycle.",
    )
    cycle_s: float | None = Field(
        None, gt=0, description="T, seconds in a cycle. Default: the run's check_period_s."
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=MOST_32,
        description="d, all learners' samples in a cycle. Default: about half of what they hold, such that "
        "all can work the full cycle; parallelized: the whole data set.",
    )
    min_samples: int | None = Field(
        None, ge=1, le=MOST_32, description="A learner's samples at least. Default: one batch."
    )
    max_samples: int | None = Field(
        None, ge=1, le=MOST_32, description="At most. Default: all that it holds; parallelized: no bound."
    )

    @model_validator(mode="after")
    def _in_order(self) -> MELOptions:
        if self.min_samples and self.max_samples and self.min_samples > self.max_samples:
            raise ValueError(
                f"min_samples: {self.min_samples} is more than max_samples: {self.max_samples}: "
                "the bounds are crossed"
            )
        return self


@dataclass(frozen=True)
class _Cycle:
    """What was allotted for one cycle, by learner. `reasons`: why someone rests; `note`: of them all."""

    number: int
    tau: dict[str, int]
    samples: dict[str, int]
    reasons: dict[str, str]
    allotment: Allotment | None = None
    note: str = ""


class MEL(SyncModel):
    """Rounds of T seconds. Subclasses say how the allocation is solved."""

    short_option = "cycle_s"

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._options = cast(MELOptions, options)
        self._cycle_s = self._options.cycle_s or run.check_period_s
        self._learners: defaultdict[str, Learner] = defaultdict(Learner)  # who returns is known
        self._cycle = _Cycle(0, {}, {}, {})
        self._until_s = 0.0  # an empty cycle lasts so long

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """Who solves the allocation."""

    @property
    def integer(self) -> Integer:
        """The rule for whole numbers."""
        return "maximal"

    @property
    def parallelized(self) -> bool:
        return self._options.mode == "parallelized"

    def decide(self, fleet: Fleet) -> Plan:
        if self.parallelized:
            self._check_data(fleet)
        if fleet.devices and (fleet.closed or self._is_over(fleet)):
            for name, device in fleet.devices.items():
                if name in self._cycle.tau:
                    self._learners[name].see(device, self._cycle_s)
                elif name in self._cycle.reasons:
                    self._learners[name].rest()
            self._cycle = self._allot(fleet)
            self._until_s = fleet.now_s + self._cycle_s
            for name, device in fleet.devices.items():
                self._learners[name].begin(device)
        return self._plan(fleet)

    def _is_over(self, fleet: Fleet) -> bool:
        """Is nobody at work whose commit could close the cycle? Where all have to rest it takes T."""
        if self._cycle.tau.keys() & fleet.devices.keys():
            return False
        return fleet.now_s >= self._until_s or not fleet.devices.keys() <= self._cycle.reasons.keys()

    def _plan(self, fleet: Fleet) -> Plan:
        cycle = self._cycle
        present = sorted(cycle.tau.keys() & fleet.devices.keys())
        notes = tuple(cycle.reasons[name] for name in sorted(cycle.reasons.keys() & fleet.devices.keys()))
        notes += (cycle.note,) if cycle.note else ()
        if not present:  # no gate, for nobody's commit could close it
            return Plan(
                {},
                resting=frozenset(fleet.devices),
                interval_s=self._cycle_s,
                wake_at_s=self._until_s,
                notes=notes,
            )
        triggers: dict[str, Trigger] = {name: Passes(cycle.tau[name]) for name in present}
        return Plan(
            triggers=triggers,
            gate=Gate(slack=0, deadline_s=(1 + GRACE) * self._cycle_s),
            # A device that trains on d_k samples says so in its commit: its weight is d_k / d.
            fold=Fold(when="at_gate", weight="data"),
            cohort=tuple(present),
            resting=frozenset(fleet.devices) - set(present),
            round=cycle.number,
            samples={name: cycle.samples[name] for name in present},
            shares=cycle.samples if self.parallelized else {},
            membership_window_s=window_s(self.run.check_period_s, self._cycle_s),
            interval_s=self._cycle_s,
            allotment=cycle.allotment,
            notes=notes,
        )

    # ---- one cycle's allocation ---------------------------------------------------------

    def _allot(self, fleet: Fleet) -> _Cycle:
        """Newcomers are measured; all others get what the solver says."""
        cycle = _Cycle(self._cycle.number + 1, {}, {}, {})
        parts: dict[str, Part] = {}
        for place, (name, device) in enumerate(sorted(fleet.devices.items())):
            learner = self._learners[name]
            least, most = self._bounds(device, fleet)
            if self.parallelized and place >= fleet.samples:
                cycle.reasons[name] = f"{name} rests in this cycle: the data set has {fleet.samples} samples"
            elif learner.compute_s is None:
                first = self._first(device, fleet, learner)
                if first >= min(least, FIRST_BATCHES * self.run.training.batch):
                    cycle.tau[name], cycle.samples[name] = 1, first
                else:
                    cycle.reasons[name] = self._too_slow(name, first, least, learner)
            else:
                part = Part(learner.compute_s, learner.transfer_s, learner.fixed_s, least, most)
                if (fit := part.fitting(self._cycle_s)) >= least:
                    parts[name] = part
                else:
                    cycle.reasons[name] = self._too_slow(name, fit, least, learner)
        if not parts:
            return cycle
        wanted = self._wanted(fleet, parts, cycle)
        allocation = allocate(parts, self._cycle_s, wanted, self.scheme, self.integer)
        for name, updates, count in zip(
            allocation.problem.names, allocation.tau.tolist(), allocation.samples.tolist(), strict=True
        ):
            if updates >= 1:
                cycle.tau[name], cycle.samples[name] = min(int(updates), MOST_32), int(count)
            else:
                cycle.reasons[name] = (
                    f"{name} rests in this cycle: in {self._cycle_s:g} s it makes no update on {count} "
                    "samples; give a longer cycle_s, or fewer samples"
                )
        return replace(cycle, allotment=self._promised(allocation), note=self._short_of(wanted, allocation))

    def _short_of(self, wanted: int, allocation: Allocation) -> str:
        """Are fewer of the parameter server's samples dealt than were to be?"""
        dealt = allocation.problem.samples
        if not self.parallelized or dealt >= wanted or self._options.max_samples:
            return ""
        return (
            f"a cycle of {self._cycle_s:g} s has room for {dealt} of {wanted} samples; give a longer cycle_s"
        )

    def _promised(self, allocation: Allocation) -> Allotment:
        return Allotment(
            cycle_s=self._cycle_s,
            busy_s=dict(zip(allocation.problem.names, allocation.cycle_time_s.tolist(), strict=True)),
            max_staleness=float(allocation.max_staleness or 0),
            average_staleness=float(allocation.average_staleness or 0),
            idle_share=float(allocation.idle_share or 0),
        )

    def _bounds(self, device: Device, fleet: Fleet) -> tuple[int, int]:
        """d_l and d_u of a learner: as the options say, and no more than it holds, or than can be dealt."""
        held = max(1, fleet.samples if self.parallelized else device.shard_samples)
        even = max(1, held // len(fleet.devices)) if self.parallelized else held
        least = min(self._options.min_samples or self.run.training.batch, even)
        return least, max(least, min(self._options.max_samples or held, held))

    def _first(self, device: Device, fleet: Fleet, learner: Learner) -> int:
        """Samples of a learner's first pass. One whose samples never came in time is given fewer."""
        batches = FIRST_BATCHES * self.run.training.batch
        if not self.parallelized:
            return max(1, min(batches, device.shard_samples))
        first = min(batches, max(1, fleet.samples // len(fleet.devices)))
        if not learner.transfer_s:
            return first
        room_s = FIRST_TRANSFER * max(0.0, self._cycle_s - learner.fixed_s)
        return min(first, int(room_s / learner.transfer_s))

    def _wanted(self, fleet: Fleet, parts: dict[str, Part], cycle: _Cycle) -> int:
        """d, of those learners that are known."""
        if self.parallelized:
            left = fleet.samples - sum(cycle.samples.values())
            return min(self._options.samples or left, left)
        held = sum(max(1, fleet.devices[name].shard_samples) for name in parts)
        return self._options.samples or filling(parts, self._cycle_s, SHARE * held)

    def _too_slow(self, name: str, most: int, least: int, learner: Learner) -> str:
        travels = ""
        if self.parallelized:
            travels = (
                f" (the model travels for {learner.fixed_s:.3g} s, a sample for {learner.transfer_s:.3g} s)"
            )
        return (
            f"{name} rests in this cycle: in {self._cycle_s:g} s it makes an update on {most} samples at "
            f"most, and {least} are the least{travels}; give a longer cycle_s, or a smaller min_samples"
        )

    def _check_data(self, fleet: Fleet) -> None:
        if not fleet.samples:
            raise OffbeatError(
                "mode: parallelized: the parameter server holds no data set", "start it with samples: FILE"
            )
        for option in ("samples", "min_samples"):
            if (value := getattr(self._options, option) or 0) > fleet.samples:
                raise OffbeatError(
                    f"{option}: {value} are more than the {fleet.samples} that the parameter server holds",
                    f"give a smaller {option}",
                )
