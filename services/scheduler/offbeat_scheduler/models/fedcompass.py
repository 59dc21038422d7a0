"""FedCompass: devices of like speed commit together, each after as many steps as it can make until then.

Source: Li et al., "FedCompass: Efficient Cross-Silo Federated Learning on Heterogeneous Client Devices using
a Computing Power Aware Scheduler", ICLR 2024 (arXiv 2309.14675). There, each arrival is an event: a client
that arrives is given the arrival time of a group, and the local updates (between Q_min and Q_max) that
it can make until then; or it begins a group of its own, which arrives together with a later cycle of
another one. A group closes at lambda times its expected time at the latest.

*Ours* is the same thing planned ahead, from measured times: groups with fixed members (`arrivals.py`), a
number of local updates for each member, and a gate per group with that deadline. A member that comes late
is in its group's next mean instead of alone. Groups are made anew when somebody joins or leaves, and at the
end of a check period in which somebody was off its time by more than a fifth. Devices of unknown speed are
a group of their own and make `min_steps`, as in the source's first round. The source's decay of the
learning rate is left out: the rate is the run's.
"""

from __future__ import annotations

import math
from typing import Literal, cast

from pydantic import Field, model_validator

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_scheduler.models.arrivals import ArrivalGroup, Pace, group
from offbeat_scheduler.models.barrier import LOOK_AGAIN_S, window_s
from offbeat_scheduler.models.measured import Measured
from offbeat_scheduler.sync import Fleet, Fold, Gate, Group, Plan, Steps, SyncModel

OFF = 0.2
"""A member's expected arrival may be off by so much of its group's cycle before groups are made anew."""


SHORTEST_S = 1e-6
"""No local update takes less, whatever was measured."""


class FedCompass(SyncModel):
    """A gate per group of devices; within a group everybody arrives at about the same time."""

    name = "fedcompass"
    short_option = "max_steps"

    class Options(Settings):
        min_steps: int = Field(4, ge=1, le=MOST_32, description="Local updates in a commit at least (Q_min).")
        max_steps: int = Field(
            20, ge=1, le=MOST_32, description="At most (Q_max); the fastest device makes so many."
        )
        deadline_factor: float = Field(
            1.5, ge=1, description="A group waits no longer than this times its expected cycle (lambda)."
        )
        weight: Literal["equal", "data"] = Field(
            "equal", description="What a device counts in its group: equal, or its samples (data)."
        )
        server_rate: float = Field(1.0, gt=0, le=1, description="Multiplies each group's mean (alpha).")
        staleness_power: float = Field(
            0.5,
            ge=0,
            description="p: an update of staleness s counts (1 + s)^-p times. 0: each counts fully.",
        )

        @model_validator(mode="after")
        def _in_order(self) -> FedCompass.Options:
            if self.min_steps > self.max_steps:
                raise ValueError(f"min_steps: {self.min_steps} is more than max_steps: {self.max_steps}")
            return self

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._options = cast(FedCompass.Options, options)
        self._measured = Measured()
        self._groups: list[ArrivalGroup] = []
        self._paces: dict[str, Pace] = {}  # that the groups were made by
        self._newcomers: frozenset[str] = frozenset()  # in the fleet, of unknown speed
        self._period = 0

    def decide(self, fleet: Fleet) -> Plan:
        self._measured.see(fleet)
        period = math.floor(fleet.now_s / self.run.check_period_s + 1e-9)
        ends = period > self._period
        grouped = {name for group in self._groups for name in group.steps}
        paces = self._known(fleet)
        changed = grouped | self._newcomers != fleet.devices.keys() or self._newcomers & paces.keys()
        if changed or (ends and self._is_off(paces)):
            self._paces = paces
            self._groups = group(paces, self._options.min_steps, self._options.max_steps)
            self._newcomers = frozenset(fleet.devices.keys() - paces.keys())
        if ends:
            self._period = period
            self._measured.forget()
        return self._plan(fleet, (period + 1) * self.run.check_period_s)

    def _known(self, fleet: Fleet) -> dict[str, Pace]:
        """As measured in this check period; else as before."""
        paces = {}
        for name in sorted(fleet.devices):
            step_s = self._measured.step_s(name)
            if step_s is not None:
                paces[name] = Pace(max(step_s, SHORTEST_S), self._measured.commit_s(name))
            elif name in self._paces:
                paces[name] = self._paces[name]
        return paces

    def _is_off(self, paces: dict[str, Pace]) -> bool:
        return any(
            abs(paces[name].arrives_s(steps) - self._paces[name].arrives_s(steps)) > OFF * members.cycle_s
            for members in self._groups
            for name, steps in members.steps.items()
        )

    def _plan(self, fleet: Fleet, period_end_s: float) -> Plan:
        options = self._options
        groups = [
            Group(tuple(sorted(members.steps)), Gate(0, options.deadline_factor * members.cycle_s))
            for members in self._groups
        ]
        steps = {name: steps for members in self._groups for name, steps in members.steps.items()}
        if self._newcomers:
            groups.append(Group(tuple(sorted(self._newcomers)), Gate(0)))
            steps.update(dict.fromkeys(self._newcomers, options.min_steps))
        longest_s = max((members.cycle_s for members in self._groups), default=0.0)
        return Plan(
            triggers={name: Steps(count) for name, count in sorted(steps.items())},
            gate=Gate() if groups else Gate(0),
            groups=tuple(groups),
            fold=Fold(
                when="at_gate",
                weight=options.weight,
                server_rate=options.server_rate,
                staleness_power=options.staleness_power,
            ),
            membership_window_s=window_s(self.run.check_period_s, longest_s),
            interval_s=self._groups[0].cycle_s if self._groups else 0.0,
            wake_at_s=fleet.now_s + LOOK_AGAIN_S if self._newcomers else period_end_s,
        )
