"""From a synchronization model's plan to directives: what changed, and only that."""

from __future__ import annotations

import math
from dataclasses import replace

from offbeat.v1 import common_pb2 as common
from offbeat_core.config import RunSettings
from offbeat_scheduler.asking import checked, said, shared
from offbeat_scheduler.directives import Wording
from offbeat_scheduler.events import PlanMade, ProbeEnded
from offbeat_scheduler.fleet import Server, Worker, build_fleet
from offbeat_scheduler.membership import Membership
from offbeat_scheduler.outbox import Outbox
from offbeat_scheduler.roster import Roster
from offbeat_scheduler.solve_time import SolveTime
from offbeat_scheduler.sync import Grid, Loss, Plan, SyncModel

LONE_CHECK_PERIODS = 20
NOTES = 100


class ModelError(Exception):
    """The synchronization model raised, or gave a plan that can't be followed."""


class Planner:
    """Asks the model, keeps its last plan, and words it for everybody.

    Args:
        solving: measures how long allocations take.
    """

    def __init__(
        self,
        model: SyncModel,
        settings: RunSettings,
        words: Wording,
        members: Membership,
        out: Outbox,
        solving: SolveTime,
    ) -> None:
        self.solving = solving
        self._model = model
        self._settings = settings
        self._words = words
        self._members = members
        self._out = out
        self.plan: Plan | None = None
        self.generation = 0
        self._version = 0  # of the model when this generation began, as the parameter server had reported it
        self._closed_seen = 0  # cycles of this generation that the model knows of
        self._anew = False  # the next plan begins a generation, whatever it says
        self._said: tuple[str, ...] = ()

    def closed(self, server: Server) -> int:
        """Cycles that the gate has closed in this generation, as the parameter server reports them."""
        report = server.report
        return report.closed if report.generation == self.generation else 0

    def round_closed(self, server: Server) -> bool:
        """Is a round over that the model has not heard of? A gate that closes with each step is no news."""
        is_round = self.plan is not None and self.plan.round is not None
        return is_round and self.closed(server) > self._closed_seen

    def drawn(self, name: str) -> int:
        """Samples that the plan in force gives this device for each pass; 0: no number of its own."""
        return self.plan.samples.get(name, 0) if self.plan is not None else 0

    def rests(self, name: str) -> bool:
        """Does the plan in force let this device rest?"""
        return self.plan is not None and name in self.plan.resting

    @property
    def searching(self) -> bool:
        return self.plan is not None and self.plan.searching

    def observe(self, loss: Loss) -> None:
        """Raises ModelError."""
        try:
            self._model.observe(loss)
        except (Exception, SystemExit) as error:
            raise self._explain(error) from error

    def begin_anew(self) -> None:
        """The parameter server forgot who committed in this generation: nobody may wait for them."""
        self._anew = True

    def decide(self, roster: Roster, started: float, now: float) -> Plan:
        """Ask the model and tell everybody what is new. Raises ModelError.

        `started`, `now`: on the hub's clock; there must be somebody in training.
        """
        self._closed_seen = self.closed(roster.server)
        fleet = build_fleet(roster.active(), roster.server, started, now, closed=self._closed_seen)
        began = self.solving.now()
        try:
            plan = checked(self._model, fleet)
        except (Exception, SystemExit) as error:
            raise self._explain(error) from error
        old, self.plan = self.plan, plan
        if _allots_anew(old, plan):
            self.solving.took(began)
        if old is None or self._anew or shared(old) != shared(plan):
            self._anew = False
            self.generation += 1
            self._closed_seen = 0
            self._version = roster.server.report.version
        self.tell_server(roster, finished=False)
        for worker in roster.active():
            self._tell(worker, roster.digest, started)
        self._announce(old, plan)
        return plan

    def _explain(self, error: BaseException) -> ModelError:
        # A model may be the user's own file: the run ends by its errors, the scheduler doesn't.
        return ModelError(said(self._model, self._settings.sync.model, error))

    def tell_server(self, roster: Roster, *, finished: bool) -> None:
        agent = roster.server_agent()
        if agent is not None:
            content = self._words.serve(
                roster.digest,
                self.plan,
                self.generation,
                finished=finished,
                resume=_resume(roster) if roster.server.resumes else None,
            )
            self._out.directives.post(agent, content)

    def _tell(self, worker: Worker, digest: str, started: float) -> None:
        assert self.plan is not None
        agent = self._members.get(worker.name)
        if agent is None:
            return
        worker.lone_steps = self.lone_steps(worker)
        content = self._words.follow(
            digest, worker.name, self.plan, self.generation, worker.lone_steps, self._version
        )
        trigger = self.plan.triggers.get(worker.name)
        origin_s = trigger.origin_s if isinstance(trigger, Grid) else 0.0
        self._out.directives.post(agent, content, started + origin_s)

    def bound_lone_steps(self, worker: Worker, digest: str, started: float) -> None:
        """A device's speed became known or changed: so did the steps that it may make alone."""
        if self.plan is not None and self.lone_steps(worker) != worker.lone_steps:
            self._tell(worker, digest, started)

    def warn_of_fit(self, worker: Worker) -> None:
        """Say so while a device makes smaller local updates than planned, because more do not fit it."""
        batch = self.batch(worker.name)
        if (fits := worker.fitting(batch)) < batch:
            self._out.warn(
                f"fit:{worker.name}",
                f"{worker.name} makes local updates of {fits} samples, not {batch}: more do not fit it",
            )
        else:
            self._out.clear(f"fit:{worker.name}")

    def lone_steps(self, worker: Worker) -> int:
        """How many steps a device may make without a fresh model; 0: its speed is not yet known.

        As the run says, or what the device makes in 20 check periods, kept while that is
        right within a factor of 2.
        """
        if self._settings.training.max_lone_steps:
            return self._settings.training.max_lone_steps
        if worker.report.step_s <= 0:
            return worker.lone_steps
        steps = math.ceil(LONE_CHECK_PERIODS * self._settings.check_period_s / worker.report.step_s)
        return worker.lone_steps if worker.lone_steps / 2 <= steps <= worker.lone_steps * 2 else steps

    def interval_s(self, name: str) -> float:
        """The commit interval in force for a device; 0 where it has none."""
        trigger = self.plan.triggers.get(name) if self.plan else None
        return trigger.interval_s if isinstance(trigger, Grid) else 0.0

    def batch(self, name: str) -> int:
        """Samples of a device's local updates, as planned."""
        batches = self.plan.batches if self.plan else {}
        return batches.get(name, self._settings.training.batch)

    def _announce(self, old: Plan | None, plan: Plan) -> None:
        """Say what changed: in the log of events, and to a person."""
        period = f"{self._settings.check_period_s:g} s"
        # By time, not by number: a model may keep the last ones only.
        known_s = old.probes[-1].start_s if old and old.probes else -math.inf
        for probe in (probe for probe in plan.probes if probe.start_s > known_s):
            self._out.add(ProbeEnded(probe))
            self._out.say(
                f"probe at {probe.rate:.4g} commits per {period} (every {probe.interval_s:.3g} s): "
                f"loss {probe.loss_start:.4g} -> {probe.loss_end:.4g}, reward {probe.reward:.4g}"
            )
        if old is None or _lasting(old) != _lasting(plan):
            self._out.add(PlanMade(plan, self.generation))
        rate = (plan.commit_rate, plan.interval_s)
        if plan.commit_rate and (old is None or rate != (old.commit_rate, old.interval_s)):
            trial = ", to try it" if plan.searching else ""
            self._out.say(
                f"commit rate {plan.commit_rate:.4g} per {period} (every {plan.interval_s:.3g} s){trial}"
            )
        before = set(old.notes) if old else set()
        for note in sorted(before - set(plan.notes)):
            self._out.clear(f"note:{note}")
        for note in plan.notes:
            # A note may come and go with each measurement: it is said once.
            self._out.warn(f"note:{note}", note, say=note not in self._said)
            self._said = (*(said for said in self._said if said != note), note)[-NOTES:]


def _resume(roster: Roster) -> common.Resume:
    trainers = [worker.name for worker in roster.active()]
    return common.Resume(version=roster.server.resumed_from, trainers=trainers)


def _allots_anew(old: Plan | None, plan: Plan) -> bool:
    """Was an allocation solved for this plan? A model is also asked in the middle of a cycle."""
    before = (old.round, old.allotment) if old else None
    return plan.allotment is not None and (plan.round, plan.allotment) != before


def _lasting(plan: Plan) -> tuple[object, ...]:
    """The plan without the time at which it is looked at again and without the probes; of the cohort and the
    groups the order does not count."""
    rest = replace(plan, cohort=(), groups=(), probes=(), wake_at_s=None)
    return *shared(plan), frozenset(plan.cohort), rest
