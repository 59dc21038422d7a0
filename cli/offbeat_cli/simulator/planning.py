"""The scheduler's part in a simulation: what it knows of the fleet, and the plans that a model makes of it.

The model is asked when training begins, when someone joins or leaves, after each loss, when a
round is over, and when its last plan asked for it. A new plan is told to the server and to
those devices for which it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from offbeat_cli.simulator.devices import Directive, Part, Trainer, rule_of
from offbeat_cli.simulator.hub import Hub, rules_of
from offbeat_cli.simulator.workloads import Workload
from offbeat_core.clock import VirtualClock
from offbeat_core.dealing import deal
from offbeat_core.errors import OffbeatError
from offbeat_scheduler import sync
from offbeat_scheduler.asking import checked, said, shared

LEASE_S = 10.0
SHORTEST_WAKE_S = 0.01
"""A model that asks to be woken in the past, or now, is asked again so much later, as by the scheduler."""


class Planning:
    """Asks the synchronization model and passes on what it says.

    Args:
        trainers: all devices by name.
        active: of these, who trains now; the driver keeps it.
        batch: samples of a local update, where a plan gives no other number.
        server_s: seconds that the server is busy with one commit.
        report_every_s: how often measurements and counts are heard; 0: always known.
        control_s: seconds that a directive travels.
        follow: a directive has arrived at a device.
        moved: called after each event at the server.

    Attributes:
        plans: each plan that differed from the one before, with its time.
    """

    def __init__(
        self,
        clock: VirtualClock,
        model: sync.SyncModel,
        workload: Workload,
        trainers: Mapping[str, Trainer],
        active: Mapping[str, Trainer],
        *,
        batch: int,
        server_s: float,
        report_every_s: float,
        control_s: float,
        follow: Callable[[Trainer, Directive], None],
        moved: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._model = model
        self._workload = workload
        self._trainers = trainers
        self._active = active
        self._batch = batch
        self._server_s, self._report_every_s, self._control_s = server_s, report_every_s, control_s
        self._follow, self._moved = follow, moved
        self._hub: Hub | None = None
        self._plan: sync.Plan | None = None
        self._generation = 0
        self._round_closed = -1  # the last generation whose round was seen to be over
        self._directives: dict[str, Directive] = {}
        self._samples = workload.data_samples() if model.parallelized else 0
        self._deal: tuple[int, dict[str, np.ndarray]] = (-1, {})  # the last one, and of which generation
        self._reported: dict[str, sync.Device] = {}
        self._counted_at_s = 0.0
        self._wakes: set[float] = set()
        self.plans: list[tuple[float, sync.Plan]] = []

    def begin(self, make_hub: Callable[[sync.Plan], Hub]) -> Hub:
        """The first plan, and the server that works by it."""
        self.report()
        plan = self._asked()
        self._hub = make_hub(plan)
        self._take_up(plan)
        return self._hub

    def told(self, name: str) -> Directive | None:
        """The newest directive for a device."""
        return self._directives.get(name)

    def dealt(self, name: str, directive: Directive) -> np.ndarray:
        """The indices of the samples that a directive deals to a device."""
        if self._deal[0] != directive.generation:
            seed = self._model.run.training.seed
            found = deal(self._samples, directive.shares, seed, directive.generation)
            self._deal = (directive.generation, found)
        return self._deal[1][name]

    def gone(self, name: str) -> None:
        """A device's lease has ended."""
        self._reported.pop(name, None)
        self.decide()

    def observe(self, loss: sync.Loss) -> None:
        """A new loss: the model may plan otherwise."""
        try:
            self._model.observe(loss)
        except (Exception, SystemExit) as error:
            raise self._explain(error) from error
        self.decide()

    def look(self, server: Hub) -> None:
        """Something happened at the server: is a round over?"""
        generation = self._generation
        if self._round_closed < generation and server.closed and self._plan and self._plan.round is not None:
            self._round_closed = generation
            self._clock.call_later(self._control_s, lambda: self._round_over(generation))

    def _round_over(self, generation: int) -> None:
        if generation == self._generation:
            self.report()
            self.decide()

    def report(self) -> None:
        """What the scheduler knows from now on."""
        self._counted_at_s = self._clock.now()
        self._reported = {name: self._measured(trainer) for name, trainer in self._active.items()}

    def _measured(self, trainer: Trainer) -> sync.Device:
        name = trainer.device.name
        commits = self._hub.commits(name) if self._hub else 0
        noise = self._workload.noise(trainer.index)
        fetched, fetch_s = trainer.fetched_by(self._clock.now())
        return sync.Device(
            name=name,
            commits=commits,
            steps=trainer.steps,
            samples=trainer.samples,
            shard_samples=self._workload.shard_samples(trainer.index),
            step_s=trainer.step_time.value,
            commit_s=trainer.commit_time.value,
            hold_s=trainer.device.hold_s if trainer.commits_timed else 0.0,
            train_loss=trainer.train_loss.value,
            joined_s=max(0.0, trainer.device.joins_s),
            trained_s=trainer.seconds[Part.COMPUTE],
            pull_s=trainer.device.commit_s / 2,
            gradient_square=noise.square,
            gradient_variance=noise.variance,
            gradient_pairs=noise.pairs,
            max_batch=trainer.device.max_batch,
            fetched=fetched,
            fetch_s=fetch_s,
        )

    def _fleet(self) -> sync.Fleet:
        now = self._clock.now()
        if now >= self._counted_at_s + self._report_every_s:
            self.report()
        closed = self._hub.closed if self._hub else 0
        return sync.Fleet(
            now, dict(self._reported), self._server_s, self._counted_at_s, closed, self._samples
        )

    def decide(self) -> None:
        if self._active:
            self._take_up(self._asked())

    def _asked(self) -> sync.Plan:
        """Raises OffbeatError where the model raises, or where its plan can't be followed."""
        try:
            return checked(self._model, self._fleet())
        except (Exception, SystemExit) as error:
            raise self._explain(error) from error

    def _explain(self, error: BaseException) -> OffbeatError:
        name = self._model.run.sync.model
        return OffbeatError(
            f"{said(self._model, name, error)}, at {self._clock.now():g} s", "correct the model"
        )

    def _take_up(self, plan: sync.Plan) -> None:
        before, self._plan = self._plan, plan
        now = self._clock.now()
        if before != plan:
            self.plans.append((now, plan))
        renewed = before is not None and shared(before) != shared(plan)
        if renewed:
            self._generation += 1
        news = []
        for name in (*plan.triggers, *plan.resting):
            told = self._directive(name, plan)
            if self._directives.get(name) != told:
                self._directives[name] = told
                news.append((name, told))
        if before is not None and _rules(before) != _rules(plan):
            assert self._hub is not None
            self._hub.configure(rules_of(plan, self._generation, LEASE_S), now)
        for name, told in news:
            self._tell(self._trainers[name], told)
        self._moved()
        if plan.wake_at_s is not None and plan.wake_at_s not in self._wakes:
            self._wakes.add(plan.wake_at_s)
            at_s = plan.wake_at_s if plan.wake_at_s > now else now + SHORTEST_WAKE_S
            self._clock.call_at(at_s, lambda: self._wake(plan.wake_at_s))

    def _tell(self, trainer: Trainer, told: Directive) -> None:
        if trainer.directive is None:
            trainer.follow(told, self._clock.now())  # it begins with this one
        elif self._control_s:
            self._clock.call_later(self._control_s, lambda: self._follow(trainer, told))
        else:
            self._follow(trainer, told)

    def _directive(self, name: str, plan: sync.Plan) -> Directive:
        trigger = plan.triggers.get(name)
        batch = plan.batches.get(name, self._batch)
        return Directive(
            rule=None if trigger is None else rule_of(trigger),
            batch=min(batch, self._trainers[name].device.max_batch or batch),
            overlap=plan.overlap,
            generation=self._generation,
            once=plan.round is not None,
            draw=0 if plan.shares else plan.samples.get(name, 0),
            dealt=0 if trigger is None else plan.shares.get(name, 0),
            shares=plan.shares,
            rate=plan.rates.get(name, 1.0),
            gradient_noise=plan.gradient_noise,
        )

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wakes.discard(at_s)
        # A later plan may have asked for another time: then this one is no event.
        if self._plan is not None and self._plan.wake_at_s == at_s:
            self.decide()


def _rules(plan: sync.Plan) -> tuple[object, ...]:
    return *shared(plan), frozenset(plan.cohort), plan.membership_window_s
