"""Mobile edge learning: cycles of T seconds in which each learner makes tau_k passes over d_k samples.

Source: Mohammad, Sorour, "Adaptive Task Allocation for Asynchronous Federated and Parallelized Mobile Edge
Learning", arXiv 1905.01656. The three models differ only in who solves the allocation: exactly and
asynchronously (`mel_async.py`), with one tau for all (`mel_sync.py`), or with equal samples
(`mel_eta.py`).

*Ours*: coefficients are measured, not computed from clock rates and links, and the allocation is solved anew
for each cycle. A learner's first cycle is its benchmark: one pass over a few batches, which counts like any
other. Nobody is waited for: the cycle closes a tenth after T. Who is late goes on under the new cycle's
allotment, with the passes that it has made, and commits in that cycle. Who has no update in a cycle
rests, and is told why; after some cycles it is measured anew.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import cast

import numpy as np
from pydantic import Field, model_validator

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_scheduler.allocation import Allocation, Integer, Problem, Scheme, solve
from offbeat_scheduler.models.barrier import window_s
from offbeat_scheduler.models.learners import Learner
from offbeat_scheduler.sync import Allotment, Device, Fleet, Fold, Gate, Passes, Plan, SyncModel, Trigger

GRACE = 0.1
"""A cycle closes so much of T after T: clocks and measurements are never exact."""

FIRST_BATCHES = 8
"""What a learner's first pass is over."""

MOST_FULL_CYCLE = 200
"""The full-cycle rule may take seconds for a thousand learners, in which the scheduler hears nobody."""

MOST_PASSES = 2000
"""Where a learner could make more passes than this, the full-cycle rule has too many ways to choose from;
with so many passes the maximal rule leaves next to no time idle."""

SHARE = 0.5
"""Of the samples that the learners hold, so many are trained on in a cycle: there is room to shift them."""


class MELOptions(Settings):
    """What the three models have in common."""

    cycle_s: float | None = Field(
        None, gt=0, description="T, seconds in a cycle. Default: the run's check_period_s."
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=MOST_32,
        description="d, all learners' samples in a cycle. Default: about half of what they hold, such that "
        "all can work the full cycle.",
    )
    min_samples: int | None = Field(
        None, ge=1, le=MOST_32, description="A learner's samples at least. Default: one batch."
    )
    max_samples: int | None = Field(
        None, ge=1, le=MOST_32, description="At most. Default: all that it holds."
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
    """What was allotted for one cycle, by learner. `reasons`: why someone rests in it."""

    number: int
    tau: dict[str, int]
    samples: dict[str, int]
    reasons: dict[str, str]
    allotment: Allotment | None = None


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

    def decide(self, fleet: Fleet) -> Plan:
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
            membership_window_s=window_s(self.run.check_period_s, self._cycle_s),
            interval_s=self._cycle_s,
            allotment=cycle.allotment,
            notes=notes,
        )

    # ---- one cycle's allocation ---------------------------------------------------------

    def _allot(self, fleet: Fleet) -> _Cycle:
        """Newcomers are measured; all others get what the solver says."""
        number = self._cycle.number + 1
        tau: dict[str, int] = {}
        samples: dict[str, int] = {}
        reasons: dict[str, str] = {}
        known: dict[str, tuple[Device, Learner]] = {}
        for name, device in sorted(fleet.devices.items()):
            learner = self._learners[name]
            if learner.compute_s is None:
                tau[name] = 1
                samples[name] = max(1, min(FIRST_BATCHES * self.run.training.batch, _held(device)))
            elif reason := self._too_slow(name, device, learner):
                reasons[name] = reason
            else:
                known[name] = (device, learner)
        if not known:
            return _Cycle(number, tau, samples, reasons)
        allocation = self._solve(known)
        for name, updates, count in zip(
            allocation.problem.names, allocation.tau.tolist(), allocation.samples.tolist(), strict=True
        ):
            if updates >= 1:
                tau[name], samples[name] = min(int(updates), MOST_32), int(count)
            else:
                reasons[name] = (
                    f"{name} rests in this cycle: in {self._cycle_s:g} s it makes no update on {count} "
                    "samples; give a longer cycle_s, or fewer samples"
                )
        return _Cycle(
            number,
            tau,
            samples,
            reasons,
            Allotment(
                cycle_s=self._cycle_s,
                busy_s=dict(zip(allocation.problem.names, allocation.cycle_time_s.tolist(), strict=True)),
                max_staleness=float(allocation.max_staleness or 0),
                average_staleness=float(allocation.average_staleness or 0),
                idle_share=float(allocation.idle_share or 0),
            ),
        )

    def _bounds(self, device: Device) -> tuple[int, int]:
        """d_l and d_u of a learner: as the options say, and no more than it holds."""
        held = _held(device)
        least = min(self._options.min_samples or self.run.training.batch, held)
        return least, max(least, min(self._options.max_samples or held, held))

    def _most(self, device: Device, learner: Learner) -> int:
        """Samples on which it makes at least one update in a cycle."""
        return min(int(self._room(learner) + 1e-9), self._bounds(device)[1])

    def _room(self, learner: Learner) -> float:
        """Samples times updates that fit the cycle."""
        assert learner.compute_s is not None
        return max(0.0, self._cycle_s - learner.fixed_s) / learner.compute_s

    def _too_slow(self, name: str, device: Device, learner: Learner) -> str:
        least = self._bounds(device)[0]
        if (most := self._most(device, learner)) >= least:
            return ""
        return (
            f"{name} rests in this cycle: in {self._cycle_s:g} s it makes an update on {most} samples at "
            f"most, and {least} are the least; give a longer cycle_s, or a smaller min_samples"
        )

    def _solve(self, known: dict[str, tuple[Device, Learner]]) -> Allocation:
        bounds = [self._bounds(device) for device, _ in known.values()]
        least = sum(low for low, _ in bounds)
        most = sum(self._most(device, learner) for device, learner in known.values())
        wanted = self._options.samples or self._fitting(known)
        problem = Problem(
            names=tuple(known),
            compute=np.array([learner.compute_s for _, learner in known.values()]),
            transfer=np.zeros(len(known)),
            fixed=np.array([learner.fixed_s for _, learner in known.values()]),
            min_samples=np.array([low for low, _ in bounds]),
            max_samples=np.array([high for _, high in bounds]),
            # What can be done: more would leave the whole fleet without an allocation.
            samples=max(least, min(wanted, most)),
            cycle_s=self._cycle_s,
        )
        integer = self.integer
        passes = max(
            self._room(learner) / low for (_, learner), (low, _) in zip(known.values(), bounds, strict=True)
        )
        if len(known) > MOST_FULL_CYCLE or passes > MOST_PASSES:
            integer = "maximal"
        found = solve(problem, self.scheme, integer, clock=_no_clock)
        # Windows of the full-cycle rule may leave gaps, and equal samples may break a bound.
        return found if found.feasible else solve(problem, "async", "maximal", clock=_no_clock)

    def _fitting(self, known: dict[str, tuple[Device, Learner]]) -> int:
        """A d with which everybody can work the full cycle: the same tau for all, and one more for whom the
        samples that it may have don't fill the cycle with it. Of these, the nearest to `SHARE`."""
        high = np.array([self._bounds(device)[1] for device, _ in known.values()], float)
        room = np.array([self._room(learner) for _, learner in known.values()])
        goal = SHARE * sum(_held(device) for device, _ in known.values())
        needed = np.maximum(np.ceil(room / high), 1.0)

        def total(tau: int) -> int:
            return int(np.floor(room / np.maximum(tau, needed) + 1e-9).sum())

        low, high_tau = 1, 2 + int(room.sum() / goal)  # total(high_tau) < goal
        while high_tau - low > 1:
            middle = (low + high_tau) // 2
            low, high_tau = (middle, high_tau) if total(middle) >= goal else (low, middle)
        return max(1, min((total(low), total(high_tau)), key=lambda d: abs(d - goal)))


def _held(device: Device) -> int:
    return max(1, device.shard_samples)


def _no_clock() -> float:
    """A plan must not depend on how long it took to make."""
    return 0.0
