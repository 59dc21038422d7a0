"""The discrete-event driver: devices, links and the server in virtual time, around the real decisions.

What happens at a device's batch boundary, in this order: a fresh model that has arrived is
taken over; if a commit is due and none is in flight, it is cut and sent; with overlap training
goes on, without it waits for the answer. The server serves one commit after the other. The
scheduler's part asks the model for a plan when training begins, when someone joins or
leaves, after each loss and when the last plan asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from offbeat_cli.simulator.devices import Trainer, VirtualDevice
from offbeat_cli.simulator.hub import Answer, Hub, rules_of
from offbeat_cli.simulator.result import DeviceResult, Evaluation, Result
from offbeat_cli.simulator.workloads import Workload
from offbeat_core.clock import VirtualClock
from offbeat_core.config import RunSettings
from offbeat_scheduler import sync
from offbeat_scheduler.models import make_model
from offbeat_scheduler.stop import Outcome, StopRules, Verdict
from offbeat_worker import trigger as worker_trigger

LEASE_S = 10.0


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
    ).run_for(max_s)


class Simulation:
    """One run.

    Args:
        server_s: seconds the server is busy with one commit.
        report_every_s: how often the scheduler hears measurements and counts; 0: it always knows them.
        control_s: seconds that a directive travels.
        seed: of the jitter; the workload has its own.
        model: the synchronization model; default: the one that the run names.
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
    ) -> None:
        self._run = run
        self._workload = workload
        self._server_s, self._report_every_s, self._control_s = server_s, report_every_s, control_s
        self._clock = VirtualClock()
        self._model = model or make_model(run.sync, run)
        self._trainers = {device.name: Trainer(device, index, seed) for index, device in enumerate(devices)}
        self._active: dict[str, Trainer] = {}
        self._reported: dict[str, sync.Device] = {}
        self._counted_at_s = 0.0
        self._server_free_s = 0.0
        self._plan: sync.Plan | None = None
        self._generation = 0
        self._hub: Hub | None = None
        self._plans: list[tuple[float, sync.Plan]] = []
        self._evaluations: list[Evaluation] = []
        self._stop = StopRules(run)
        self._verdict: Verdict | None = None
        self._commits = 0
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
        self._hub = Hub(self._workload.initial(), rules_of(plan, 0, LEASE_S), 0.0, self._answered)
        self._take_up(plan)
        for trainer in list(self._active.values()):
            self._begin(trainer)
        clock.call_later(self._run.evaluate.every_s, self._evaluate)
        clock.call_later(LEASE_S / 3, self._renew)
        while self._verdict is None and clock.now() < max_s and clock.step():
            pass
        return self._result(min(clock.now(), max_s))

    @property
    def _server(self) -> Hub:
        assert self._hub is not None
        return self._hub

    # ---- devices -----------------------------------------------------------------------

    def _begin(self, trainer: Trainer) -> None:
        now = self._clock.now()
        trainer.load(self._server.pull(trainer.device.name, now), now)
        self._set_trigger(trainer)
        self._step(trainer)

    def _join(self, trainer: Trainer) -> None:
        self._active[trainer.device.name] = trainer
        self._report()
        self._decide()
        self._begin(trainer)

    def _leave(self, trainer: Trainer) -> None:
        trainer.present = False
        # Nothing is said: the lease ends, the gate releases, the scheduler hears of it.
        self._clock.call_later(LEASE_S, lambda: self._gone(trainer))

    def _gone(self, trainer: Trainer) -> None:
        self._active.pop(trainer.device.name, None)
        self._reported.pop(trainer.device.name, None)
        self._server.tick(self._clock.now())
        self._decide()

    def _step(self, trainer: Trainer) -> None:
        seconds = trainer.vary(trainer.device.step_at(self._clock.now()))
        self._clock.call_later(seconds, lambda: self._stepped(trainer, seconds))

    def _stepped(self, trainer: Trainer, seconds: float) -> None:
        if not trainer.present:
            return
        now = self._clock.now()
        loss = self._workload.step(trainer.index, trainer.local, now - trainer.base_at_s)
        trainer.steps += 1
        trainer.pending_steps += 1
        trainer.compute_s += seconds
        trainer.step_time.add(seconds)
        trainer.train_loss.add(loss)
        self._boundary(trainer)

    def _boundary(self, trainer: Trainer) -> None:
        now = self._clock.now()
        held_s = 0.0
        if trainer.arrived is not None:
            trainer.merge()
            held_s += trainer.device.hold_s / 2
        if not trainer.in_flight and trainer.trigger.due(now, trainer.pending_steps, 0):
            update, steps = trainer.cut(now)
            trainer.trigger.served(now)
            held_s += trainer.device.hold_s / 2
            self._send(trainer, update, steps)
            if not self._overlap:
                trainer.commit_s += held_s
                trainer.waiting = True
                return
        trainer.commit_s += held_s
        if held_s:
            self._clock.call_later(held_s, lambda: self._step(trainer))
        else:
            self._step(trainer)

    @property
    def _overlap(self) -> bool:
        return self._plan is not None and self._plan.overlap

    def _send(self, trainer: Trainer, update: object, steps: int) -> None:
        base = trainer.base_version
        travel_s = trainer.vary(trainer.device.commit_s / 2)
        self._clock.call_later(travel_s, lambda: self._arrive(trainer, update, base, steps))

    def _arrive(self, trainer: Trainer, update: object, base: int, steps: int) -> None:
        """At the server: it serves one commit after the other."""
        start_s = max(self._clock.now(), self._server_free_s)
        self._server_free_s = start_s + self._server_s
        self._clock.call_at(self._server_free_s, lambda: self._commit(trainer, update, base, steps))

    def _commit(self, trainer: Trainer, update: object, base: int, steps: int) -> None:
        self._commits += 1
        samples = steps * self._run.training.batch
        now = self._clock.now()
        self._server.tick(now)
        self._server.commit(trainer.device.name, update, base, steps, samples, now)  # type: ignore[arg-type]

    def _answered(self, answer: Answer) -> None:
        trainer = self._trainers[answer.worker]
        travel_s = trainer.vary(trainer.device.commit_s / 2)
        self._clock.call_later(travel_s, lambda: self._back(trainer, answer))

    def _back(self, trainer: Trainer, answer: Answer) -> None:
        if not trainer.present:
            return
        trainer.arrived = (answer.snapshot, answer.at_s)
        trainer.commit_time.add(self._clock.now() - trainer.cut_s)
        if trainer.waiting:
            trainer.merge()
            trainer.commit_s += trainer.device.hold_s / 2
            self._clock.call_later(trainer.device.hold_s / 2, lambda: self._step(trainer))

    def _renew(self) -> None:
        now = self._clock.now()
        for name, trainer in self._active.items():
            if trainer.present:
                self._server.renew(name, now)
        self._server.tick(now)
        self._clock.call_later(LEASE_S / 3, self._renew)

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
            samples=trainer.steps * self._run.training.batch,
            step_s=trainer.step_time.value,
            commit_s=trainer.commit_time.value,
            hold_s=trainer.device.hold_s if trainer.commit_time.count else 0.0,
            train_loss=trainer.train_loss.value,
            joined_s=max(0.0, trainer.device.joins_s),
        )

    def _fleet(self) -> sync.Fleet:
        now = self._clock.now()
        if now >= self._counted_at_s + self._report_every_s:
            self._report()
        return sync.Fleet(now, dict(self._reported), self._server_s, self._counted_at_s)

    def _decide(self) -> None:
        self._take_up(self._model.decide(self._fleet()))

    def _take_up(self, plan: sync.Plan) -> None:
        before, self._plan = self._plan, plan
        now = self._clock.now()
        if before != plan:
            self._plans.append((now, plan))
        if before is not None and _rules(before) != _rules(plan):
            if (before.gate, before.fold, before.cohort) != (plan.gate, plan.fold, plan.cohort):
                self._generation += 1
            self._server.configure(rules_of(plan, self._generation, LEASE_S), now)
        for name, rule in plan.triggers.items():
            if before is not None and before.triggers.get(name) != rule:
                self._clock.call_later(
                    self._control_s,
                    lambda t=self._trainers[name]: self._set_trigger(t),  # type: ignore[misc]
                )
        if plan.wake_at_s is not None and plan.wake_at_s not in self._wakes:
            self._wakes.add(plan.wake_at_s)
            self._clock.call_at(plan.wake_at_s, lambda: self._wake(plan.wake_at_s))

    def _wake(self, at_s: float | None) -> None:
        if at_s is not None:
            self._wakes.discard(at_s)
        # A later plan may have asked for another time: then this one is no event.
        if self._plan is not None and self._plan.wake_at_s == at_s:
            self._decide()

    def _set_trigger(self, trainer: Trainer) -> None:
        assert self._plan is not None
        rule = self._plan.triggers.get(trainer.device.name)
        now = self._clock.now()
        match rule:
            case sync.Grid(interval_s, origin_s):
                trainer.trigger.set(worker_trigger.Grid(origin_s, interval_s), now)
            case sync.Steps(steps):
                trainer.trigger.set(worker_trigger.Steps(steps), now)
            case sync.Passes(passes):
                trainer.trigger.set(worker_trigger.Passes(passes), now)
            case None:
                pass

    def _evaluate(self) -> None:
        now = self._clock.now()
        snapshot = self._server.store.snapshot()
        loss, metric = self._workload.evaluate(snapshot.values)
        self._evaluations.append(Evaluation(now, loss, metric, snapshot.version, self._commits))
        del snapshot  # while somebody holds it, the store may not write in place
        steps = sum(trainer.steps for trainer in self._active.values())
        self._model.observe(sync.Loss(now, loss, steps))
        self._decide()
        self._stop.metric(now, metric)
        self._stop.loss(now, loss)
        self._verdict = self._stop.verdict(now, self._commits)
        self._clock.call_later(self._run.evaluate.every_s, self._evaluate)

    # ---- the end -----------------------------------------------------------------------

    def _result(self, end_s: float) -> Result:
        devices = {}
        for name, trainer in self._trainers.items():
            leaves_s = trainer.device.leaves_s
            there_s = min(end_s, leaves_s if leaves_s is not None else end_s) - trainer.device.joins_s
            total_s = max(there_s, trainer.compute_s + trainer.commit_s, 1e-9)
            devices[name] = DeviceResult(
                name=name,
                steps=trainer.steps,
                commits=self._server.commits(name),
                compute_share=trainer.compute_s / total_s,
                commit_share=trainer.commit_s / total_s,
                wait_share=max(0.0, 1 - (trainer.compute_s + trainer.commit_s) / total_s),
            )
        reached = self._verdict is not None and self._verdict.outcome is Outcome.REACHED
        return Result(end_s, reached, tuple(self._evaluations), devices, tuple(self._plans))


def _rules(plan: sync.Plan) -> tuple[object, ...]:
    return plan.gate, plan.fold, plan.cohort, plan.membership_window_s
