"""The discrete-event driver: devices, links and the server in virtual time, around the real decisions.

`motion.py` moves the devices and their commits, `planning.py` is the scheduler's part, `hub.py` the
parameter server's; here are the run's course, who is there, evaluations and the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from offbeat_cli.simulator.devices import Part, Trainer, VirtualDevice
from offbeat_cli.simulator.hub import Hub, rules_of
from offbeat_cli.simulator.motion import Motion
from offbeat_cli.simulator.planning import LEASE_S, Planning
from offbeat_cli.simulator.result import DeviceResult, Evaluation, Result
from offbeat_cli.simulator.workloads import Workload
from offbeat_core.clock import VirtualClock
from offbeat_core.config import RunSettings
from offbeat_scheduler import sync
from offbeat_scheduler.models import ANYWHERE, make_model
from offbeat_scheduler.stop import Outcome, StopRules, Verdict

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
        self._progress = progress
        self._clock = VirtualClock()
        self._trainers = {
            device.name: Trainer(device, index, seed, workload.trainable)
            for index, device in enumerate(devices)
        }
        self._active: dict[str, Trainer] = {}
        self._motion = Motion(
            self._clock,
            workload,
            self._trainers,
            batch=run.training.batch,
            server_s=server_s,
            told=lambda name: self._planning.told(name),
            dealt=lambda name, directive: self._planning.dealt(name, directive),
            moved=self._moved,
            left=self._left,
        )
        self._planning = Planning(
            self._clock,
            model or make_model(run.sync, run, ANYWHERE),
            workload,
            self._trainers,
            self._active,
            batch=run.training.batch,
            server_s=server_s,
            report_every_s=report_every_s,
            control_s=control_s,
            follow=self._motion.follow,
            moved=self._moved,
        )
        self._hub_wake_s = math.inf
        self._evaluations: list[Evaluation] = []
        self._stop = StopRules(run)
        self._verdict: Verdict | None = None

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
                clock.call_at(device.leaves_s, lambda t=trainer: self._motion.leave(t))  # type: ignore[misc]
        self._planning.begin(self._make_hub)
        for trainer in list(self._active.values()):
            self._motion.begin(trainer)
        clock.call_later(self._run.evaluate.every_s, self._evaluate)
        clock.call_later(LEASE_S / 3, self._renew)
        while self._verdict is None and (due_s := clock.next_s) is not None and due_s <= max_s:
            clock.step()
        return self._result(max_s if self._verdict is None else clock.now())

    def _make_hub(self, plan: sync.Plan) -> Hub:
        hub = Hub(
            self._workload.initial(),
            rules_of(plan, 0, LEASE_S),
            0.0,
            self._motion.answered,
            self._workload.trainable,
        )
        self._motion.server = hub
        return hub

    # ---- who is there ------------------------------------------------------------------

    def _join(self, trainer: Trainer) -> None:
        self._active[trainer.device.name] = trainer
        self._planning.report()
        self._planning.decide()
        self._motion.begin(trainer)

    def _left(self, trainer: Trainer) -> None:
        # Nothing is said: the lease ends, the gate releases, the scheduler hears of it.
        self._clock.call_later(LEASE_S, lambda: self._gone(trainer))

    def _gone(self, trainer: Trainer) -> None:
        self._active.pop(trainer.device.name, None)
        self._motion.server.tick(self._clock.now())
        self._moved()
        self._planning.gone(trainer.device.name)

    # ---- the server, by itself -----------------------------------------------------------

    def _renew(self) -> None:
        now, server = self._clock.now(), self._motion.server
        for name, trainer in self._active.items():
            if trainer.present:
                server.renew(name, now)
        server.tick(now)
        self._moved()
        self._clock.call_later(LEASE_S / 3, self._renew)

    def _moved(self) -> None:
        """Something happened at the server: see when it next acts by itself, and whether a round is over."""
        server, now = self._motion.server, self._clock.now()
        due_s = server.run.wake_at()
        if due_s is not None and now < due_s < self._hub_wake_s:
            self._hub_wake_s = due_s
            self._clock.call_at(due_s, self._tick)
        self._planning.look(server)

    def _tick(self) -> None:
        self._hub_wake_s = math.inf
        self._motion.server.tick(self._clock.now())
        self._moved()

    # ---- evaluations ---------------------------------------------------------------------

    def _evaluate(self) -> None:
        now, commits = self._clock.now(), self._motion.commits
        snapshot = self._motion.server.store.snapshot()
        before = self._evaluations[-1] if self._evaluations else None
        fresh = before is None or before.version != snapshot.version
        if fresh:
            loss, metric = self._workload.evaluate(snapshot.values)
        else:
            assert before is not None
            loss, metric = before.loss, before.metric  # a model that did not change is not evaluated again
        evaluation = Evaluation(now, loss, metric, snapshot.version, commits)
        self._evaluations.append(evaluation)
        del snapshot  # while somebody holds it, the store may not write in place
        if fresh and math.isfinite(loss):
            steps = sum(trainer.steps for trainer in self._active.values())
            self._planning.observe(sync.Loss(now, loss, steps))
        self._stop.metric(now, metric)
        self._stop.loss(now, loss)
        self._verdict = self._stop.verdict(now, commits)
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
                commits=self._motion.server.commits(name),
                compute_share=share[Part.COMPUTE],
                commit_share=share[Part.HOLD],
                wait_share=share[Part.TRAVEL] + share[Part.WAIT],
                travel_share=share[Part.TRAVEL],
                refused=trainer.refused,
            )
        reached = self._verdict is not None and self._verdict.outcome is Outcome.REACHED
        sent = BYTES * self._workload.elements * self._motion.vectors_sent
        sent += self._workload.sample_bytes * sum(t.fetched_by(end_s)[0] for t in self._trainers.values())
        return Result(end_s, reached, tuple(self._evaluations), devices, tuple(self._planning.plans), sent)
