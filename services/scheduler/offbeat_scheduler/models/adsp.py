"""ADSP: everyone commits equally often, on its own beat, and nobody waits.

Source: Hu, Wang, Wu, "Distributed Machine Learning through Heterogeneous Edge Systems", AAAI
2020 (arXiv 1911.06949); what is ours stands in `docs/adsp.md`. At each checkpoint the common
target grows by ΔC, and worker i gets ΔC_i, what it lacks of it, for the period to come: an
interval of Γ/ΔC_i on a fixed grid. The search (`search/`) chooses ΔC; while it probes, a
segment may be shorter or longer than a check period, and is a checkpoint all the same.

With `allocation` each device also gets a batch of its own, and so a number of updates that fills
the interval (`batches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, cast

from pydantic import Field, model_validator

from offbeat_core.config import MOST_32, RunSettings, Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models.batches import Batches
from offbeat_scheduler.models.counts import ABSENT_PERIODS, EPSILON, Account, Ledger, share
from offbeat_scheduler.models.shown import TOLERATED_COMMITS, Shown
from offbeat_scheduler.search import (
    FixedRate,
    FormulaSearch,
    Pace,
    RobustSearch,
    Search,
    Segment,
    SourceSearch,
    measure,
)
from offbeat_scheduler.search.pace import need_s
from offbeat_scheduler.sync import Device, Fleet, Fold, Gate, Grid, Loss, Plan, SyncModel, Trigger

LOOK_AGAIN_S = 0.5
"""While step or commit times are unknown, look again so soon."""

NEAR = 1.1
"""An interval within this factor of the floor is said to be bounded by it."""

COUNTS_AGE_S = 1.0
"""How old commit counts may be where the driver does not say: one report."""


class ADSP(SyncModel):
    """Adaptive synchronous parallel with a searched commit rate."""

    name = "adsp"
    short_option = "rate"

    class Options(Settings):
        search: Literal["robust", "formula", "source"] = Field(
            "robust",
            description="How the commit rate is found: robust (probes, judged by the whole run), formula "
            "(from measured times alone), source (the source's own rule).",
        )
        rate: int | None = Field(
            None, ge=1, description="Commits per check period, fixed; nothing is searched then."
        )
        overlap: bool = Field(
            True, description="Go on training while a commit travels. false: wait for the fresh model."
        )
        weight: Literal["equal", "samples", "per_step", "data"] = Field(
            "equal",
            description="What a commit counts: equal (1/M), samples (its share of the samples), per_step (a "
            "device with many local updates in it pulls no further than one with few), data (its share of "
            "the samples that devices hold).",
        )
        epoch_s: float = Field(1200.0, gt=0, description="Search again after so many seconds.")
        max_probes: int = Field(8, ge=2, description="search: robust: probes of one search at most.")
        prior: float = Field(
            0.004,
            gt=0,
            description="search: robust, formula: how much progress is lost per mean local update between "
            "commits (kappa in seconds is this times the mean steps per second), before anything is known.",
        )
        probe_s: float | None = Field(
            None, gt=0, description="search: source: seconds per probe. Default: a check period."
        )
        evaluations: int = Field(
            3, ge=1, description="search: source: each of a probe's three losses is the mean of so many."
        )

        allocation: bool = Field(
            False,
            description="Give each device a batch of its own by goodput; its learning rate is scaled along.",
        )
        max_staleness: int | None = Field(
            None,
            ge=0,
            description="allocation: two devices' local updates per interval differ by so many at most, "
            "as far as batches can do that.",
        )
        min_batch: int | None = Field(
            None,
            ge=1,
            le=MOST_32,
            description="allocation: samples of a local update at least. Default: a quarter of batch, and "
            "4 or more.",
        )
        max_batch: int | None = Field(
            None,
            ge=1,
            le=MOST_32,
            description="allocation: at most, memory permitting. Default: 8 times batch.",
        )
        rate_cap: float = Field(
            1.0, ge=1, description="allocation: the learning rate grows by this factor at most."
        )

        @model_validator(mode="after")
        def _one_way(self) -> ADSP.Options:
            if self.min_batch and self.max_batch and self.min_batch > self.max_batch:
                raise ValueError(
                    f"min_batch: {self.min_batch} is more than max_batch: {self.max_batch}: they are crossed"
                )
            for name in ("max_staleness", "min_batch", "max_batch", "rate_cap"):
                given = getattr(self, name) != type(self).model_fields[name].default
                if given and not self.allocation:
                    raise ValueError(
                        f"{name}: {getattr(self, name)} is of use with allocation only; add allocation: true"
                    )
            if self.rate is not None and "search" in self.model_fields_set:
                raise ValueError(
                    f"rate: {self.rate} and search: {self.search}: a fixed rate is not searched; give one"
                )
            return self

    def __init__(self, options: Settings, run: RunSettings) -> None:
        super().__init__(options, run)
        self._options = cast(ADSP.Options, options)
        self.search = _make_search(self._options, run)
        self._period_s = run.check_period_s
        self._batches = _make_batches(self._options, run)
        self._segment: Segment | None = None
        self._start_s = 0.0  # of the segment, on the grid
        self._grid = Grid(self._period_s)  # of everyone who lacks nothing
        self._target = Ledger()
        self._accounts: dict[str, Account] = {}
        self._triggers: dict[str, Trigger] = {}
        self._notes: dict[str, str] = {}  # by what they are about
        self._decided_s = 0.0
        self._counted_at_s = 0.0

    def observe(self, loss: Loss) -> None:
        self.search.observe(loss)

    def decide(self, fleet: Fleet) -> Plan:
        counted_at_s = fleet.now_s - COUNTS_AGE_S if fleet.counted_at_s is None else fleet.counted_at_s
        self._counted_at_s = min(counted_at_s, fleet.now_s)
        self._keep_accounts(fleet)
        if self._batches is not None:
            self._batches.see(fleet, self._segment.interval_s if self._segment is not None else 0.0)
        pace = self._measure(fleet)
        if fleet.devices:
            self._advance(fleet, pace)
        self._decided_s = fleet.now_s
        return self._plan(fleet, pace)

    def _measure(self, fleet: Fleet) -> Pace:
        shown_s = {name: account.shown.need_s for name, account in self._accounts.items()}
        return measure(
            fleet,
            self._period_s,
            overlap=self._options.overlap,
            shown_s=shown_s,
            interval_s=self._segment.interval_s if self._segment is not None else 0.0,
            gains=self._gains(fleet),
            usual_s=self._batches.usual_s(fleet) if self._batches is not None else {},
        )

    def _gains(self, fleet: Fleet) -> Mapping[str, float]:
        """By device, how many updates of the run's batch one of its own is worth."""
        return self._batches.gains(fleet) if self._batches is not None else {}

    # ---- segments --------------------------------------------------------------------

    def _advance(self, fleet: Fleet, pace: Pace) -> None:
        now_s, current = fleet.now_s, self._segment
        if current is None:
            self._checkpoint(fleet, pace, self.search.next(pace), now_s)
            return
        done = (now_s - self._start_s) / current.interval_s
        if done >= current.commits - EPSILON:
            # On the grid, even if this was called late.
            start_s = self._start_s + int(done + EPSILON) * current.interval_s
            self._checkpoint(fleet, pace, self.search.next(pace), start_s)
        elif (revised := self.search.revise(pace, current)) is not None:
            self._checkpoint(fleet, pace, revised, now_s)
        else:
            for name in fleet.devices.keys() - self._triggers.keys():
                self._triggers[name] = self._grid

    def _checkpoint(self, fleet: Fleet, pace: Pace, segment: Segment, start_s: float) -> None:
        """Close the books at `start_s` and give everyone its part of the segment that begins there."""
        if not _continues(self._grid, segment.interval_s, start_s) or self._segment is None:
            self._grid = Grid(segment.interval_s, start_s)
        for device in fleet.devices.values():
            self._settle(device, fleet.now_s)
        self._segment, self._start_s = segment, start_s
        self._target.go_on(start_s, segment.interval_s)
        self._triggers = {
            name: self._deal(device, pace, segment, start_s, fleet.now_s)
            for name, device in fleet.devices.items()
        }
        self._note(fleet, pace, segment)

    def _deal(self, device: Device, pace: Pace, segment: Segment, start_s: float, now_s: float) -> Trigger:
        account = self._accounts[device.name]
        due, target = account.ledger.due(start_s), self._target.due(start_s)
        if self._exempt(device, pace, segment.interval_s) or self._was_away(target - due, segment):
            account.forgive(self._target, now_s, self._counted_at_s, need_s(device))
            return self._grid
        commits = share(target + segment.commits, due, segment.commits, segment.duration_s, need_s(device))
        interval_s = segment.interval_s if commits == segment.commits else segment.duration_s / commits
        account.ledger.go_on(start_s, interval_s)
        return self._grid if commits == segment.commits else Grid(interval_s, start_s)

    def _settle(self, device: Device, now_s: float) -> None:
        if self._segment is not None:
            self._accounts[device.name].settle(now_s, self._counted_at_s, need_s(device), self._segment)

    def _exempt(self, device: Device, pace: Pace, interval_s: float) -> bool:
        """Can the device not keep this interval, whatever it does?"""
        if max(device.step_s, device.commit_s) > interval_s:
            return True
        return device.name in pace.hopeless and self._needs_s(device) > interval_s

    def _needs_s(self, device: Device) -> float:
        """What a commit of it takes, by its measured times or by its counts."""
        return max(need_s(device), self._accounts[device.name].shown.need_s)

    def _was_away(self, lacking: int, segment: Segment) -> bool:
        """Does a device lack more than it could have missed while it was there?"""
        # A probe may be shorter than a check period.
        commits = max(segment.commits, math.floor(self._period_s / segment.interval_s))
        return lacking > ABSENT_PERIODS * commits

    # ---- who is there ------------------------------------------------------------------

    def _keep_accounts(self, fleet: Fleet) -> None:
        for name in self._accounts.keys() - fleet.devices.keys():
            del self._accounts[name]
            self._triggers.pop(name, None)
        stayed = False
        for name, device in fleet.devices.items():
            account = self._accounts.get(name)
            if account is None or account.joined_s != device.joined_s or device.commits < account.counted:
                # It joins, comes back, or the server's counts went back: no burst of commits.
                self._accounts[name] = Account.open(
                    self._target, fleet.now_s, device.commits, device.joined_s, Shown(self._period_s)
                )
                self._triggers[name] = self._grid
            else:
                account.see(device.commits, self._counted_at_s, need_s(device))
                if account.missing(self._counted_at_s, need_s(device)) > TOLERATED_COMMITS:
                    self._settle(device, fleet.now_s)  # not only at the next checkpoint
                stayed = True
        if self._segment is not None and not stayed:
            self.search.pause(self._decided_s)  # for a while nobody trained at all

    # ---- what is said ------------------------------------------------------------------

    def _plan(self, fleet: Fleet, pace: Pace) -> Plan:
        segment = self._segment or Segment(self._period_s, 1)
        wake_at_s = self._start_s + segment.duration_s
        if not pace.measured or (self._batches is not None and not self._batches.settled):
            wake_at_s = min(wake_at_s, fleet.now_s + LOOK_AGAIN_S)
        plan = Plan(
            triggers={name: self._triggers[name] for name in fleet.devices},
            gate=Gate(),
            fold=Fold(when="at_once", weight=self._options.weight),
            overlap=self._options.overlap,
            membership_window_s=max(2 * self._period_s, 3 * segment.interval_s),
            searching=self.search.searching,
            commit_rate=self._period_s / segment.interval_s,
            interval_s=segment.interval_s,
            probes=self.search.probes,
            wake_at_s=max(wake_at_s, fleet.now_s) if fleet.devices else None,
            notes=tuple(self._notes.values()),
        )
        return plan if self._batches is None else _with_batches(plan, self._batches, fleet)

    def _note(self, fleet: Fleet, pace: Pace, segment: Segment) -> None:
        """What the operator should know. A note stays as it is while what it says holds: times jitter."""
        notes = {}
        for name, device in sorted(fleet.devices.items()):
            if self._exempt(device, pace, segment.interval_s):
                about = f"{name} at {segment.interval_s:.6g}"
                reason = f"a step takes {device.step_s:.3g} s and a commit {device.commit_s:.3g} s"
                if (shown_s := self._needs_s(device)) > need_s(device):
                    reason += f", and it was seen to commit every {shown_s:.3g} s"
                notes[about] = self._notes.get(about) or (
                    f"{name}: {reason}; the commit interval is {segment.interval_s:.3g} s. "
                    "It commits as often as it can, less than the others"
                )
        if pace.limited_by and not self._options.rate and segment.interval_s <= NEAR * pace.floor_s:
            notes["floor"] = f"the commit interval can't be shorter because of {pace.limited_by}"
        self._notes = notes


def _continues(grid: Grid, interval_s: float, start_s: float) -> bool:
    """Is `start_s` a point of this very grid? Then nobody needs to be told anything."""
    if grid.interval_s != interval_s:
        return False
    points = (start_s - grid.origin_s) / interval_s
    return abs(points - round(points)) < 1e-6


def _with_batches(plan: Plan, batches: Batches, fleet: Fleet) -> Plan:
    allotment = batches.allotment(fleet, plan.interval_s)
    return replace(
        plan,
        batches=batches.batches(),
        rates=batches.rates(),
        gradient_noise=True,
        allotment=allotment,
        notes=(*plan.notes, *batches.notes(allotment, fleet.now_s)),
    )


def _make_batches(options: ADSP.Options, run: RunSettings) -> Batches | None:
    if not options.allocation:
        return None
    batch = run.training.batch
    if options.min_batch is not None and options.min_batch > batch:
        raise OffbeatError(
            f"sync.adsp: min_batch: {options.min_batch} is more than the run's training.batch of {batch}, "
            "with which each device begins",
            "give a smaller min_batch, or a larger training.batch",
        )
    if options.max_batch is not None and options.max_batch < batch:
        raise OffbeatError(
            f"sync.adsp: max_batch: {options.max_batch} is less than the run's training.batch of {batch}, "
            "with which each device begins",
            "give a larger max_batch, or a smaller training.batch",
        )
    return Batches(
        batch,
        run.check_period_s,
        cap=options.rate_cap,
        least=options.min_batch,
        most=options.max_batch,
        max_staleness=options.max_staleness,
    )


def _make_search(options: ADSP.Options, run: RunSettings) -> Search:
    if options.rate is not None:
        return FixedRate(options.rate)
    if options.search == "formula":
        return FormulaSearch(options.prior)
    if options.search == "source":
        goal = run.target.loss if run.target is not None else None
        return SourceSearch(options.probe_s or 0.0, options.epoch_s, options.evaluations, goal)
    goal = run.target.loss if run.target is not None and run.target.loss is not None else math.inf
    return RobustSearch(options.epoch_s, options.max_probes, options.prior, goal)
