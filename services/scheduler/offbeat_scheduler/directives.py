"""Directives to agents: what each was told, and only what changed since.

Every directive that leaves gets a revision, the highest so far, so that an agent that
hears of the same interval twice, by its stream and by a commit's reply, knows which one
holds. A grid's origin lies on the run's clock, which no device shares: it is translated
to "so many seconds ago" at the moment of sending.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings
from offbeat_scheduler.events import SendTo
from offbeat_scheduler.membership import Agent, Membership
from offbeat_scheduler.sync import Fold, Gate, Grid, Group, Passes, Plan, Steps, Trigger
from offbeat_scheduler.timing import since

_WHEN = {"at_once": common.Fold.AT_ONCE, "every_k": common.Fold.EVERY_K, "at_gate": common.Fold.AT_GATE}
_WEIGHT = {
    "equal": common.Fold.EQUAL,
    "samples": common.Fold.SAMPLES,
    "data": common.Fold.DATA,
    "per_step": common.Fold.PER_STEP,
}

_IN_REPLIES = (common.WorkerDirective.TRAIN, common.WorkerDirective.REST, common.WorkerDirective.IDLE)

Directive = common.WorkerDirective | common.ServerDirective | common.EvaluatorDirective


@dataclass(frozen=True)
class _Told:
    """An agent's directive in force; `content` without the elapsed time, that of its grid since `origin`."""

    incarnation: str
    content: Directive
    origin: float  # on the hub's clock
    revision: int


class Directives:
    """What each agent was told last. `post` what it should do now; `flush` sends what differs.

    Within a flush the parameter server hears first: of gate and fold, and of the directives
    that go into the replies of commits; so no worker begins a generation that it doesn't know.
    """

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self._told: dict[str, _Told] = {}
        # Names, in the order of posting: not yet sent down their own streams, and not yet
        # given to the parameter server for the replies of commits.
        self._unsent: dict[str, None] = {}
        self._unreplied: dict[str, None] = {}

    def forget(self) -> None:
        """A new run: everybody is told anew."""
        for names in (self._told, self._unsent, self._unreplied):
            names.clear()

    def drop(self, name: str) -> None:
        """The agent has left; whoever comes by that name is told anew."""
        for names in (self._told, self._unsent, self._unreplied):
            names.pop(name, None)

    def post(self, agent: Agent, content: Directive, origin: float = 0.0) -> None:
        """The directive that shall be in force. `content` carries no revision and no elapsed time."""
        told = self._told.get(agent.name)
        if (
            told is not None
            and told.incarnation == agent.incarnation
            and type(told.content) is type(content)
            and told.content == content
            and told.origin == origin
        ):
            return
        self.revision += 1
        self._told[agent.name] = _Told(agent.incarnation, content, origin, self.revision)
        self._unsent[agent.name] = None
        if isinstance(content, common.WorkerDirective) and content.action in _IN_REPLIES:
            self._unreplied[agent.name] = None
        else:
            self._unreplied.pop(agent.name, None)

    def heard(self, name: str, revision: int) -> bool:
        """Was a report that names this revision (0: none) made under what the agent was told last?"""
        told = self._told.get(name)
        return told is None or revision == 0 or revision >= told.revision

    def repeat(self, agent: Agent) -> None:
        """The agent opened a new stream: send what is in force once more, under the same revision."""
        if agent.name in self._told:
            self._unsent[agent.name] = None
        if agent.role == common.ROLE_PARAMETER_SERVER:
            for name, told in self._told.items():
                if isinstance(told.content, common.WorkerDirective) and told.content.action in _IN_REPLIES:
                    self._unreplied[name] = None

    def flush(self, members: Membership, server: Agent | None, now: float) -> list[SendTo]:
        """Send what was posted. `server`: the parameter server, for what goes into commits' replies.

        What an agent without a stream should hear is sent when it dials again; a worker hears
        it before by the reply of its next commit.
        """
        first: list[SendTo] = []
        rest: list[SendTo] = []
        for name in self._unsent:
            told, agent = self._told[name], members.get(name)
            if agent is not None and agent.attached and agent.incarnation == told.incarnation:
                target = first if agent is server else rest
                target.append(SendTo(name, told.incarnation, _enveloped(_rendered(told, now))))
        self._unsent.clear()
        if server is not None and server.attached and self._unreplied:
            replies = common.NextDirectives()
            for name in self._unreplied:
                content = _rendered(self._told[name], now)
                assert isinstance(content, common.WorkerDirective)
                replies.workers[name].CopyFrom(content)
            self._unreplied.clear()
            first.append(SendTo(server.name, server.incarnation, pb.Directive(next=replies)))
        return [*first, *rest]


def _rendered(told: _Told, now: float) -> Directive:
    content = copy.deepcopy(told.content)
    content.revision = told.revision
    if isinstance(content, common.WorkerDirective) and content.trigger.HasField("grid"):
        content.trigger.grid.elapsed_s = since(told.origin, now)
    return content


def _enveloped(content: Directive) -> pb.Directive:
    if isinstance(content, common.WorkerDirective):
        return pb.Directive(worker=content)
    if isinstance(content, common.ServerDirective):
        return pb.Directive(server=content)
    return pb.Directive(evaluator=content)


# ---- what a run says --------------------------------------------------------------


class Wording:
    """Directives in the words of one run: its task, its training settings, the model's plan.

    Args:
        parallelized: the parameter server's data set is dealt to the devices.
    """

    def __init__(
        self, run_id: str, settings: RunSettings, lease_s: float, *, parallelized: bool = False
    ) -> None:
        self._parallelized = parallelized
        self._run_id = run_id
        self._settings = settings
        self._lease_s = lease_s

    def task(self, digest: str) -> common.RunTask:
        spec = self._settings.task
        return common.RunTask(
            name=spec.name,
            digest=digest,
            options={name: _option_text(value) for name, value in spec.options.items()},
            partition=spec.partition,
        )

    def idle(self) -> common.WorkerDirective:
        return common.WorkerDirective(action=common.WorkerDirective.IDLE, run_id=self._run_id)

    def refused(self, reason: str) -> common.WorkerDirective:
        return common.WorkerDirective(
            action=common.WorkerDirective.REFUSED, run_id=self._run_id, reason=reason
        )

    def prepare(self, digest: str, *, may_seed: bool) -> common.WorkerDirective:
        directive = self._training(digest)
        directive.action = common.WorkerDirective.PREPARE
        directive.may_seed = may_seed
        return directive

    def follow(
        self, digest: str, name: str, plan: Plan, generation: int, lone_steps: int, version: int = 0
    ) -> common.WorkerDirective:
        """What the plan says to one device: train, or rest.

        Of a rest nothing is said that may change with each round: those many are told once.

        Args:
            version: of the model when the generation began.
        """
        directive = self._training(digest)
        directive.overlap = plan.overlap
        trigger = plan.triggers.get(name)
        if trigger is None:
            directive.action = common.WorkerDirective.REST
            return directive
        directive.action = common.WorkerDirective.TRAIN
        directive.generation = generation
        directive.once = plan.round is not None
        directive.model_version = version if directive.once else 0
        directive.trigger.CopyFrom(_trigger(trigger))
        directive.batch = plan.batches.get(name, directive.batch)
        directive.learning_rate *= plan.rates.get(name, 1.0)
        directive.draw = plan.samples.get(name, 0)
        directive.gradient_noise = plan.gradient_noise
        directive.max_lone_steps = lone_steps
        return directive

    def _training(self, digest: str) -> common.WorkerDirective:
        training = self._settings.training
        return common.WorkerDirective(
            run_id=self._run_id,
            task=self.task(digest),
            batch=training.batch,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            seed=training.seed,
            parallelized=self._parallelized,
        )

    def evaluate(self, digest: str) -> common.EvaluatorDirective:
        return common.EvaluatorDirective(
            run_id=self._run_id,
            task=self.task(digest),
            every_s=self._settings.evaluate.every_s,
            seed=self._settings.training.seed,
            batch=self._settings.evaluate.batch,
        )

    def serve(
        self,
        digest: str,
        plan: Plan | None,
        generation: int,
        *,
        finished: bool,
        resume: common.Resume | None = None,
    ) -> common.ServerDirective:
        """`plan` None: training has not begun. `resume`: it goes on from a checkpoint."""
        settings = self._settings
        window_s = plan.membership_window_s if plan else 2 * settings.check_period_s
        return common.ServerDirective(
            run_id=self._run_id,
            generation=generation,
            gate=_gate(plan.gate if plan else Gate()),
            fold=_fold(plan.fold if plan else Fold()),
            cohort=sorted(plan.cohort) if plan else (),
            membership_window_s=window_s,
            lease_s=self._lease_s,
            checkpoint_every_s=settings.checkpoint_every_s,
            task=self.task(digest),
            initial_model=settings.initial_model,
            finished=finished,
            groups=_groups(plan.groups if plan else ()),
            once=plan is not None and plan.round is not None,
            resume=resume,
            shares=plan.shares if plan else {},
            seed=settings.training.seed if plan and plan.shares else 0,
        )


def _option_text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _trigger(trigger: Trigger) -> common.Trigger:
    if isinstance(trigger, Grid):
        return common.Trigger(grid=common.Grid(interval_s=trigger.interval_s))
    if isinstance(trigger, Steps):
        return common.Trigger(steps=trigger.steps)
    if isinstance(trigger, Passes):
        return common.Trigger(passes=trigger.passes)
    raise TypeError(f"{type(trigger).__name__} is no trigger: Grid, Steps or Passes")


def _gate(gate: Gate) -> common.Gate:
    return common.Gate(slack=gate.slack, deadline_s=gate.deadline_s)


def _groups(groups: Iterable[Group]) -> list[common.Group]:
    """In one order, whatever the model's: the same groups make the same directive."""
    made = [common.Group(members=sorted(group.members), gate=_gate(group.gate)) for group in groups]
    return sorted(made, key=lambda group: group.members[0])


def _fold(fold: Fold) -> common.Fold:
    return common.Fold(
        when=_WHEN[fold.when],
        every_k=fold.every_k,
        weight=_WEIGHT[fold.weight],
        server_rate=fold.server_rate,
        staleness_power=fold.staleness_power,
    )
