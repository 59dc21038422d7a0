"""The discrete-event driver: devices, links and the server in virtual time, around the real decisions.

What happens at a device's batch boundary, in this order: a fresh model that has arrived is
taken over; one that was told to rest, or has made its commit of the round, rests; if a
commit is due and none is in flight, it is cut and sent; with overlap training goes on,
without it the device stands still until the answer. The server serves one commit after the
other. The scheduler's part asks the model for a plan when training begins, when someone joins
or leaves, after each loss, when a round is over, and when the last plan asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from offbeat_cli.simulator.devices import Directive, Part, Trainer, VirtualDevice, rule_of
from offbeat_cli.simulator.hub import Answer, Hub, rules_of
from offbeat_cli.simulator.result import DeviceResult, Evaluation, Result
from offbeat_cli.simulator.workloads import Workload
from offbeat_core.clock import VirtualClock
from offbeat_core.config import RunSettings
from offbeat_scheduler import sync
from offbeat_scheduler.models import ANYWHERE, make_model
from offbeat_scheduler.planner import shared
from offbeat_scheduler.stop import Outcome, StopRules, Verdict

LEASE_S = 10.0
SHORTEST_S = 1e-6
"""What a commit takes at least, in what the scheduler hears: 0 would mean that it is not yet known."""

BYTES = 4
"""Of a number on the wire: float32."""


def simulate(
    run: RunSettings,
    devices: Sequence[VirtualDevice],
    workload: Workload,
    *,
    max_s: float,
    server_s: float = 0.0,
    report_every_s: float = 0.0,
    control_s: float = 0.0,
    seed: int = 0,
    model: sync.SyncModel | None = None,
    progress: Callable[[Evaluation], None] | None = None,
) -> Result:
    """Simulate a run until its target, or for `max_s` virtual seconds. See `Simulation`."""
    return Simulation(
        run,
        devices,
        workload,
        server_s=server_s,
        report_every_s=report_every_s,
        control_s=control_s,
        seed=seed,
        model=model,
        progress=progress,
    ).run_for(max_s)


class Simulation:
    """One run.

    Args:
        server_s: seconds the server is busy with one commit.
        report_every_s: how often the scheduler hears measurements and counts; 0: it always knows them.
        control_s: seconds that a directive travels.
        seed: of the jitter; the workload has its own.
        model: the synchronization model; default: the one that the run names.
        progress: called after each evaluation.
    """

    def __init__(
        self,
        run: RunSettings,
        devices: Sequence[VirtualDevice],
        workload: Workload,
        *,
        server_s: float = 0.0,
        report_every_s: float = 0.0,
        control_s: float = 0.0,
        seed: int = 0,
        model: sync.SyncModel | None = None,
        progress: Callable[[Evaluation], None] | None = None,
    ) -> None:
        self._run = run
        self._workload = workload
        self._server_s, self._report_every_s, self._control_s = server_s, report_every_s, control_s
        self._progress = progress
        self._clock = VirtualClock()
        self._model = model or make_model(run.sync, run, ANYWHERE)
        self._trainers = {
            device.name: Trainer(device, index, seed, workload.trainable)
            for index, device in enumerate(devices)
        }
        self._active: dict[str, Trainer] = {}
        self._reported: dict[str, sync.Device] = {}
        self._counted_at_s = 0.0
        self._server_free_s = 0.0
        self._plan: sync.Plan | None = None
        self._generation = 0
        self._round_closed = -1  # the last generation whose round was seen to be over
        self._directives: dict[str, Directive] = {}
        self._hub: Hub | None = None
        self._hub_wake_s = math.inf
        self._plans: list[tuple[float, sync.Plan]] = []
        self._evaluations: list[Evaluation] = []
        self._stop = StopRules(run)
        self._verdict: Verdict | None = None
        self._commits = 0
        self._vectors_sent = 0
        self._wakes: set[float] = set()

    def run_for(self, max_s: float) -> Result:
        """Run until the target, or up to `max_s`."""
        clock = self._clock
        for trainer in self._trainers.values():
            device = trainer.device
            if device.joins_s <= 0:
                self._active[device.name] = trainer
            else:
                clock.call_at(device.joins_s, lambda t=trainer: self._join(t))  # type: ignore[misc]
            if device.leaves_s is not None:
                clock.call_at(device.leaves_s, lambda t=trainer: self._leave(t))  # type: ignore[misc]
        self._report()
        plan = self._model.decide(self._fleet())
        self._hub = Hub(
            self._workload.initial(),
            rules_of(plan, 0, LEASE_S),
            0.0,
            self._answered,
            self._workload.trainable,
        )
        self._take_up(plan)
        for trainer in list(self._active.values()):
            self._begin(trainer)
        clock.call_later(self._run.evaluate.every_s, self._evaluate)
        clock.call_later(LEASE_S / 3, self._renew)
        while self._verdict is None and (due_s := clock.next_s) is not None and due_s <= max_s:
            clock.step()
        return self._result(max_s if self._verdict is None else clock.now())

    @property
    def _server(self) -> Hub:
        assert self._hub is not None
        return self._hub

    # ---- devices -----------------------------------------------------------------------

    def _begin(self, trainer: Trainer) -> None:
        now = self._clock.now()
        trainer.load(self._server.pull(trainer.device.name, now), now)
        self._vectors_sent += 1
        self._moved()
        self._go_on(trainer)

    def _join(self, trainer: Trainer) -> None:
        self._active[trainer.device.name] = trainer
        self._report()
        self._decide()
        self._begin(trainer)

    def _leave(self, trainer: Trainer) -> None:
        trainer.present = False
        trainer.turn(None, self._clock.now())
        # Nothing is said: the lease ends, the gate releases, the scheduler hears of it.
        self._clock.call_later(LEASE_S, lambda: self._gone(trainer))

    def _gone(self, trainer: Trainer) -> None:
        self._active.pop(trainer.device.name, None)
        self._reported.pop(trainer.device.name, None)
        self._server.tick(self._clock.now())
        self._moved()
        self._decide()

    def _go_on(self, trainer: Trainer) -> None:
        """The next local update, or a rest."""
        now = self._clock.now()
        trainer.idle = not trainer.may_train
        if trainer.idle:
            trainer.turn(Part.WAIT, now)
            return
        trainer.turn(Part.COMPUTE, now)
        assert trainer.directive is not None
        batch = trainer.directive.batch
        seconds = trainer.vary_step(trainer.device.step_at(now, batch / self._run.training.batch))
        self._clock.call_later(seconds, lambda: self._stepped(trainer, seconds, batch))

    def _stepped(self, trainer: Trainer, seconds: float, batch: int) -> None:
        if not trainer.present:
            return
        now = self._clock.now()
        done = self._workload.step(trainer.index, trainer.values, now - trainer.base_at_s, batch)
        trainer.steps += 1
        trainer.samples += done.samples
        trainer.passes = done.passes
        trainer.pending_steps += 1
        trainer.pending_samples += done.samples
        trainer.step_time.add(seconds)
        if math.isfinite(done.loss):
            trainer.train_loss.add(done.loss)
        self._boundary(trainer)

    def _boundary(self, trainer: Trainer) -> None:
        half_s = trainer.device.hold_s / 2
        held_s = 0.0
        if trainer.arrived is not None:
            self._merge(trainer)
            held_s += half_s
        cuts = trainer.due(self._clock.now()) and trainer.may_train
        if cuts:
            held_s += half_s
        if held_s:
            trainer.turn(Part.HOLD, self._clock.now())
            self._clock.call_later(held_s, lambda: self._after(trainer, cuts))
        else:
            self._after(trainer, cuts)

    def _after(self, trainer: Trainer, cuts: bool) -> None:
        """What held the training thread is over."""
        if not trainer.present:
            return
        if cuts and self._send(trainer):
            return
        self._go_on(trainer)

    def _send(self, trainer: Trainer) -> bool:
        """Cut and send. True: the device stands still until the answer comes."""
        now = self._clock.now()
        assert trainer.directive is not None
        base, generation = trainer.base_version, trainer.directive.generation
        update, steps, samples = trainer.cut(now)
        up_s, down_s = trainer.vary_travel()
        trainer.way_back_s = down_s
        self._vectors_sent += 1
        self._clock.call_later(up_s, lambda: self._arrive(trainer, update, base, steps, samples, generation))
        if trainer.directive.overlap:
            return False
        trainer.standing = True
        trainer.turn(Part.TRAVEL, now)
        return True

    def _arrive(
        self, trainer: Trainer, update: np.ndarray, base: int, steps: int, samples: int, generation: int
    ) -> None:
        """At the server: it serves one commit after the other."""
        start_s = max(self._clock.now(), self._server_free_s)
        self._server_free_s = start_s + self._server_s
        self._clock.call_at(
            self._server_free_s,
            lambda: self._commit(trainer, update, base, steps, samples, generation),
        )

    def _commit(
        self, trainer: Trainer, update: np.ndarray, base: int, steps: int, samples: int, generation: int
    ) -> None:
        self._commits += 1
        now = self._clock.now()
        if trainer.standing and trainer.present:
            trainer.turn(Part.WAIT, now)  # held by the gate, if only for no time
        self._server.tick(now)
        name = trainer.device.name
        trainer.arrived_s = now
        self._server.commit(
            name,
            update,
            base,
            steps,
            samples,
            now,
            generation=generation,
            shard_samples=self._workload.shard_samples(trainer.index),
        )
        self._moved()

    def _answered(self, answer: Answer) -> None:
        trainer = self._trainers[answer.worker]
        if not trainer.present:
            return
        if answer.snapshot is None:
            # Quarantined: on a worker the run fails here, and it is not counted any more.
            self._leave(trainer)
            return
        if trainer.standing:
            trainer.turn(Part.TRAVEL, self._clock.now())
        self._vectors_sent += 1
        trainer.held_s = self._clock.now() - trainer.arrived_s
        told = self._directives.get(answer.worker)
        self._clock.call_later(trainer.way_back_s, lambda: self._back(trainer, answer, told))

    def _back(self, trainer: Trainer, answer: Answer, told: Directive | None) -> None:
        """The answer is at the device, and with it the directive that held when it left."""
        if not trainer.present:
            return
        now = self._clock.now()
        assert answer.snapshot is not None
        if told is not None and told is self._directives.get(answer.worker):
            self._follow(trainer, told)
        trainer.arrived = (answer.snapshot, answer.at_s, answer.refused)
        trainer.commit_time.add(max(now - trainer.cut_s - trainer.held_s, SHORTEST_S))
        trainer.commits_timed += 1
        if trainer.standing or trainer.idle:
            trainer.standing = trainer.idle = False
            half_s = trainer.device.hold_s / 2
            self._merge(trainer)
            trainer.turn(Part.HOLD, now)
            self._clock.call_later(half_s, lambda: self._after(trainer, False))

    def _merge(self, trainer: Trainer) -> None:
        if trainer.merge():
            self._workload.forget(trainer.index)

    def _follow(self, trainer: Trainer, directive: Directive) -> None:
        """A directive has arrived."""
        if not trainer.present or trainer.directive is directive:
            return
        trainer.follow(directive, self._clock.now())
        if not (trainer.idle and trainer.may_train):
            return
        if trainer.in_flight:
            return  # the fresh model is on its way
        if self._server.store.version <= trainer.base_version:
            self._go_on(trainer)
            return
        # The model that it rested on is old: it pulls first.
        trainer.idle = False
        now = self._clock.now()
        trainer.turn(Part.TRAVEL, now)
        trainer.arrived = (self._server.pull(trainer.device.name, now), now, False)
        self._vectors_sent += 1
        self._moved()
        self._clock.call_later(trainer.device.commit_s / 2, lambda: self._pulled(trainer))

    def _pulled(self, trainer: Trainer) -> None:
        if trainer.present:
            self._merge(trainer)
            self._go_on(trainer)

    def _renew(self) -> None:
        now = self._clock.now()
        for name, trainer in self._active.items():
            if trainer.present:
                self._server.renew(name, now)
        self._server.tick(now)
        self._moved()
        self._clock.call_later(LEASE_S / 3, self._renew)

    def _moved(self) -> None:
        """Something happened at the server: see when it next acts by itself, and whether a round is over."""
        server, now = self._server, self._clock.now()
        due = server.run.wake_at()
        if due is not None and now < due < self._hub_wake_s:
            self._hub_wake_s = due
            self._clock.call_at(due, self._hub_tick)
        generation = self._generation
        if self._round_closed < generation and server.closed and self._plan and self._plan.round is not None:
            self._round_closed = generation
            self._clock.call_later(self._control_s, lambda: self._round_over(generation))

    def _hub_tick(self) -> None:
        self._hub_wake_s = math.inf
        self._server.tick(self._clock.now())
        self._moved()

    def _round_over(self, generation: int) -> None:
        if generation == self._generation:
            self._report()
            self._decide()

    # ---- the scheduler's part -------------------------------------------------------------

    def _report(self) -> None:
        """What the scheduler knows from now on."""
        self._counted_at_s = self._clock.now()
        self._reported = {name: self._measured(trainer) for name, trainer in self._active.items()}

    def _measured(self, trainer: Trainer) -> sync.Device:
        name = trainer.device.name
        commits = self._hub.commits(name) if self._hub else 0
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
        )

    def _fleet(self) -> sync.Fleet:
        now = self._clock.now()
        if now >= self._counted_at_s + self._report_every_s:
            self._report()
        closed = self._hub.closed if self._hub else 0
        return sync.Fleet(now, dict(self._reported), self._server_s, self._counted_at_s, closed)

    def _decide(self) -> None:
        if self._active:
            self._take_up(self._model.decide(self._fleet()))

    def _take_up(self, plan: sync.Plan) -> None:
        before, self._plan = self._plan, plan
        now = self._clock.now()
        if before != plan:
            self._plans.append((now, plan))
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
            self._server.configure(rules_of(plan, self._generation, LEASE_S), now)
        for name, told in news:
            self._tell(self._trainers[name], told)
        self._moved()
        if plan.wake_at_s is not None and plan.wake_at_s not in self._wakes:
            self._wakes.add(plan.wake_at_s)
            self._clock.call_at(plan.wake_at_s, lambda: self._wake(plan.wake_at_s))

    def _tell(self, trainer: Trainer, told: Directive) -> None:
        if trainer.directive is None:
            trainer.follow(told, self._clock.now())  # it begins with this one
        elif self._control_s:
            self._clock.call_later(self._control_s, lambda: self._follow(trainer, told))
        else:
            self._follow(trainer, told)

    def _directive(self, name: str, plan: sync.Plan) -> Directive:
        trigger = plan.triggers.get(name)
        return Directive(
            rule=None if trigger is None else rule_of(trigger),
            batch=plan.batches.get(name, self._run.training.batch),
            overlap=plan.overlap,
            generation=self._generation,
            once=plan.round is not None,
        )

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wakes.discard(at_s)
        # A later plan may have asked for another time: then this one is no event.
        if self._plan is not None and self._plan.wake_at_s == at_s:
            self._decide()

    def _evaluate(self) -> None:
        now = self._clock.now()
        snapshot = self._server.store.snapshot()
        before = self._evaluations[-1] if self._evaluations else None
        fresh = before is None or before.version != snapshot.version
        if fresh:
            loss, metric = self._workload.evaluate(snapshot.values)
        else:
            assert before is not None
            loss, metric = before.loss, before.metric  # a model that did not change is not evaluated again
        evaluation = Evaluation(now, loss, metric, snapshot.version, self._commits)
        self._evaluations.append(evaluation)
        del snapshot  # while somebody holds it, the store may not write in place
        if fresh and math.isfinite(loss):
            steps = sum(trainer.steps for trainer in self._active.values())
            self._model.observe(sync.Loss(now, loss, steps))
            self._decide()
        self._stop.metric(now, metric)
        self._stop.loss(now, loss)
        self._verdict = self._stop.verdict(now, self._commits)
        if self._progress:
            self._progress(evaluation)
        self._clock.call_later(self._run.evaluate.every_s, self._evaluate)

    # ---- the end -----------------------------------------------------------------------

    def _result(self, end_s: float) -> Result:
        devices = {}
        for name, trainer in self._trainers.items():
            if trainer.present:
                trainer.turn(None, end_s)
            total_s = math.fsum(trainer.seconds) or 1.0
            share = [seconds / total_s for seconds in trainer.seconds]
            devices[name] = DeviceResult(
                name=name,
                steps=trainer.steps,
                commits=self._server.commits(name),
                compute_share=share[Part.COMPUTE],
                commit_share=share[Part.HOLD],
                wait_share=share[Part.TRAVEL] + share[Part.WAIT],
                travel_share=share[Part.TRAVEL],
                refused=trainer.refused,
            )
        reached = self._verdict is not None and self._verdict.outcome is Outcome.REACHED
        sent = BYTES * self._workload.elements * self._vectors_sent
        return Result(end_s, reached, tuple(self._evaluations), devices, tuple(self._plans), sent)


def _rules(plan: sync.Plan) -> tuple[object, ...]:
    return *shared(plan), frozenset(plan.cohort), plan.membership_window_s
