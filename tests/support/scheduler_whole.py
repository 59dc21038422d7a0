"""A whole Offbeat in virtual time: the decisions of scheduler and parameter server, and devices.

Nothing is computed and no byte travels. Scheduler and parameter server are the very
objects of the live services; a device does what a worker's agent and training thread do: it
follows directives by revision, counts steps, commits under a number until it is answered,
rests. Links take time, and break when a test breaks them. A local update takes the device's step_s with the
run's batch; of that, a part does not grow with the batch (`Whole.fixed`).
"""

from __future__ import annotations

import itertools

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps.directive import rules_of
from offbeat_ps.instructions import Outcome, Refuse, Reply
from offbeat_ps.rules import Commit
from offbeat_ps.run import Refused
from offbeat_ps.run import Run as ServerRun
from offbeat_scheduler.events import AgentJoined, AgentLeft, SendTo, ServerReported, WorkerReported
from offbeat_worker import trigger
from support.scheduler_world import DIGEST, World

W = pb.WorkerReport
D = common.WorkerDirective

CONTROL_S = 0.011
DATA_S = 0.037
REPORT_S = 1.0
RETRY_S = 0.5
BATCH = 32  # of runs that say nothing else
NOISE = 60.0  # gradient noise scale, samples
MANIFEST = Manifest((TensorSpec("w", (2,)),), ())


class Whole(World):
    """A scheduler, a parameter server "ps" and devices by name.

    Attributes:
        fixed: the share of step_s that does not grow with the batch, by device; absent: all of it.
        fits: samples that fit a device at a time; absent: any number.
    """

    def __init__(self, folder=None, *, make_model, lease_s=4.0):
        super().__init__(folder, make_model=make_model, lease_s=lease_s, start=1_000.0)
        self.attending = {}
        self.devices = {}
        self.fixed = {}
        self.fits = {}
        self.server = Server(self)
        self.server.attend()

    def feed(self, event):
        out = super().feed(event)
        for item in out:
            if isinstance(item, SendTo):
                self.clock.call_later(CONTROL_S, lambda item=item: self._deliver(item))
        return out

    def _deliver(self, item):
        agent = self.attending.get(item.name)
        if agent is not None and agent.incarnation == item.incarnation and agent.attended:
            agent.hear(item.directive)

    def device(self, name, step_s):
        """A device of that name: its first process, or a new one."""
        self.devices[name] = Device(self, name, step_s, f"{name}-{len(self.sent)}-{self.now()}")
        self.devices[name].attend()
        return self.devices[name]

    def commits(self):
        """By device, as the parameter server counts them."""
        run = self.server.run
        return {} if run is None else {name: entry.commits for name, entry in run.ledger.entries.items()}


class Attending:
    """What server and devices share: a stream to the scheduler that may be cut."""

    def __init__(self, whole, hello):
        self.whole = whole
        self.hello = hello
        self.name, self.incarnation = hello.name, hello.incarnation
        self.alive = True
        self.attended = False
        self._session = 0

    def attend(self):
        if self.alive and not self.attended:
            self.attended = True
            self.whole.attending[self.name] = self
            self.whole.feed(AgentJoined(self.hello))
            self._session += 1
            self._beat(self._session)

    def _beat(self, session):
        if self.alive and self.attended and session == self._session:
            self.say()
            self.whole.clock.call_later(REPORT_S, lambda: self._beat(session))

    def cut(self):
        """The stream breaks."""
        if self.alive and self.attended:
            self.attended = False
            self.whole.feed(AgentLeft(self.name, self.incarnation, "cut"))

    def die(self):
        """kill -9: the stream ends with the process."""
        self.cut()
        self.alive = False

    def leave(self):
        if self.alive and self.attended:
            self.whole.feed(AgentLeft(self.name, self.incarnation, "ends", True))
        self.alive = self.attended = False


class Server(Attending):
    """The parameter server: `offbeat_ps`'s decisions, and who waits for an answer."""

    def __init__(self, whole):
        super().__init__(whole, pb.Hello(role=common.ROLE_PARAMETER_SERVER, name="ps", incarnation="ps-1"))
        self.run = None
        self.revision = -1
        self.next = {}
        self.calls = {}  # answers that are awaited, by token
        self.ons = []  # (generation, worker) of each commit that was on time, oldest first
        self.weights = []  # (worker, weight, who was active) of each commit that was applied at once
        self._tokens = itertools.count(1)
        self._timer = 0
        self._over = None  # the round that was reported

    def now(self):
        return self.whole.clock.now()

    def hear(self, directive):
        kind = directive.WhichOneof("kind")
        if kind == "server" and directive.server.revision >= self.revision:
            self.revision = directive.server.revision
            self._configure(directive.server)
        elif kind == "next":
            for name, one in directive.next.workers.items():
                if name not in self.next or one.revision >= self.next[name][0].revision:
                    self.next[name] = one, self.now()

    def _configure(self, directive):
        if not directive.run_id:
            return
        rules = rules_of(directive)
        if self.run is None or self.run.run_id != directive.run_id:
            self.run, self.next = ServerRun(directive.run_id, rules, self.now()), {}
        elif directive.finished:
            self._perform(self.run.finish(self.now()))
        else:
            self._perform(self.run.configure(rules, self.now()))
        self.say()

    def pull(self, device):
        """The version, or None: no model yet, or a newer process has the name."""
        if self.run is None or device.run_id != self.run.run_id:
            return None
        if not self.run.ready:
            self.run.seed(MANIFEST, self.now())
            self.run.open()
        try:
            self._perform(self.run.pull(device.name, device.incarnation, self.now()))
        except Refused:
            return None
        return self.run.version

    def renew(self, device):
        if self.run is None or device.run_id != self.run.run_id:
            return False
        try:
            known, out = self.run.renew(device.name, device.incarnation, self.now())
        except Refused:
            return False
        self._perform(out)
        return known

    def commit(self, device, cut, answer):
        """`answer(outcome or None, version, next)`: None where the call gets no model."""
        if self.run is None:
            answer(None, 0, None)
            return
        token = next(self._tokens)
        self.calls[token] = answer
        late, duplicates = self.run.counters.late, self.run.counters.duplicates
        self._perform(
            self.run.commit(
                Commit(
                    token,
                    device.name,
                    device.incarnation,
                    generation=cut["generation"],
                    sequence=cut["sequence"],
                    steps=cut["steps"],
                    base_version=cut["base"],
                    samples=cut["samples"],
                    shard_samples=100,
                ),
                self.now(),
            )
        )
        if (late, duplicates) == (self.run.counters.late, self.run.counters.duplicates):
            self.ons.append((cut["generation"], device.name))
            active = frozenset(self.run.membership.active(self.now()))
            self.weights.append((device.name, self.run.ledger.entries[device.name].weight, active))

    def _perform(self, out):
        for item in out:
            if isinstance(item, Reply):
                answer = self.calls.pop(item.token, None)
                if answer is not None:
                    answer(item.ack.outcome, self.run.version, self._next_for(item.worker))
            elif isinstance(item, Refuse):
                answer = self.calls.pop(item.token, None)
                if answer is not None:
                    answer(None, 0, None)
        if self.run.rules.once and self.run.closed and self._over != self.run.rules.generation:
            self._over = self.run.rules.generation
            self.say()
        self._timer += 1
        wake = self.run.wake_at()
        if wake is not None:
            timer = self._timer
            self.whole.clock.call_at(wake, lambda: timer == self._timer and self._tick())

    def _next_for(self, worker):
        """The directive for a reply that leaves now: its grid has aged while it lay here."""
        if worker not in self.next:
            return None
        kept, received = self.next[worker]
        directive = D()
        directive.CopyFrom(kept)
        if directive.trigger.HasField("grid"):
            directive.trigger.grid.elapsed_s += self.now() - received
        return directive

    def _tick(self):
        self._perform(self.run.tick(self.now()))

    def say(self):
        run = self.run
        if not (self.alive and self.attended and run):
            return
        counts = [
            pb.CommitCount(worker=name, commits=entry.commits, steps=entry.steps)
            for name, entry in run.ledger.entries.items()
        ]
        report = pb.ServerReport(
            run_id=run.run_id,
            seeded=run.ready,
            version=run.version,
            counts=counts,
            closed=run.closed,
            commits=run.counters.commits,
            generation=run.rules.generation,
            finished=run.over,
            active_trainers=len(run.membership.active(self.now())),
        )
        self.whole.feed(ServerReported(self.name, self.incarnation, report))


class Device(Attending):
    """One process of a worker."""

    def __init__(self, whole, name, step_s, incarnation):
        super().__init__(
            whole,
            pb.Hello(role=common.ROLE_WORKER, name=name, incarnation=incarnation, tasks={"digits": DIGEST}),
        )
        self.step_s = step_s
        self.linked = True  # to the parameter server
        self.directive = D()
        self.revision = 0
        self.run_id = ""
        self.phase = W.IDLE
        self.rested = False
        self.resuming = False
        self.committed_in = None
        self.version = 0
        self.steps = self.pending = self.sequence = self.acknowledged = 0
        self.samples = self.pending_samples = 0
        self.flight = None  # the cut on its way
        self.stepping = False
        self.trigger = trigger.Trigger()
        self.whole.clock.call_later(whole.hub.lease_s / 3, self._renew)

    # ---- directives ----------------------------------------------------------------

    def hear(self, directive):
        if directive.WhichOneof("kind") == "worker":
            self._offer(directive.worker)

    def _offer(self, directive):
        if not self.alive or directive.revision <= self.revision:
            return
        self.revision, self.directive = directive.revision, directive
        self._reconcile()

    def _reconcile(self):
        now = self.directive
        if now.action in (D.IDLE, D.REFUSED) or (self.run_id and now.run_id != self.run_id):
            self.phase, self.run_id = W.IDLE, ""
        elif not self.run_id:
            self.run_id, self.phase = now.run_id, W.PREPARING
            self.whole.clock.call_later(0.2, self._prepare)
        elif self.phase == W.PREPARING:
            pass
        elif now.action == D.TRAIN:
            self._go_on()
        elif now.action == D.REST:
            self.rested, self.phase = True, W.RESTING
        else:
            self.rested, self.phase = True, W.READY

    def _prepare(self):
        if self.alive and self.phase == W.PREPARING:
            version = self.whole.server.pull(self) if self.linked else None
            if version is None:
                self.whole.clock.call_later(0.2, self._prepare)
                return
            self.version, self.phase = version, W.READY
            self.say()
            self._reconcile()

    def _go_on(self):
        now = self.directive
        if not self.rested or (now.once and now.generation == self.committed_in):
            self._train()
        elif not self.resuming and self.flight is None and 0 < now.model_version <= self.version:
            self.rested = False
            self._train()
        elif not self.resuming:
            self.resuming = True
            self.whole.clock.call_later(DATA_S, self._resume)

    def _resume(self):
        if not self.alive or not self.run_id:
            self.resuming = False
            return
        version = self.whole.server.pull(self) if self.linked and self.flight is None else None
        if version is None:
            self.whole.clock.call_later(RETRY_S, self._resume)
            return
        self.resuming = False
        self.version = version
        if self.directive.action == D.TRAIN:
            self.rested = False
            self._train()

    # ---- training --------------------------------------------------------------------

    def _train(self):
        if self.phase != W.RESTING or not self.rested:
            self.phase = W.TRAINING
        now, told = self.whole.clock.now(), self.directive.trigger
        rule = trigger.Steps(told.steps or 3 * told.passes)
        if told.HasField("grid"):
            rule = trigger.Grid(now - told.grid.elapsed_s, told.grid.interval_s)
        self.trigger.set(rule, now)
        self._step()

    @property
    def trains(self):
        now = self.directive
        return (
            self.alive
            and self.phase == W.TRAINING
            and not self.rested
            and now.action == D.TRAIN
            and not (now.once and now.generation == self.committed_in)
            and (self.flight is None or self.flight["overlap"])
        )

    @property
    def batch(self):
        """Samples of its local updates."""
        return min(self.directive.batch, self.whole.fits.get(self.name, self.directive.batch))

    @property
    def batch_s(self):
        """Seconds of one."""
        fixed = self.whole.fixed.get(self.name, 1.0)
        return self.step_s * (fixed + (1 - fixed) * self.batch / BATCH)

    def _step(self):
        if self.trains and not self.stepping:
            self.stepping = True
            batch = self.batch
            self.whole.clock.call_later(self.batch_s, lambda: self._stepped(batch))

    def _stepped(self, batch):
        self.stepping = False
        if not self.alive or not self.run_id:
            return
        now = self.whole.clock.now()
        self.steps += 1
        self.pending += 1
        self.samples += batch
        self.pending_samples += batch
        if self.trains and self.flight is None and self.trigger.due(now, self.pending, 0):
            self._cut()
        self._step()

    def _cut(self):
        now = self.directive
        self.sequence += 1
        self.flight = {
            "sequence": self.sequence,
            "generation": now.generation,
            "steps": self.pending,
            "samples": self.pending_samples,
            "base": self.version,
            "once": now.once,
            "overlap": now.overlap,
            "began": self.whole.clock.now(),
        }
        if now.once:
            self.committed_in = now.generation
        self.pending = self.pending_samples = 0
        self.trigger.served(self.whole.clock.now())
        self._send(self.flight)

    def _send(self, cut):
        if not self.alive or self.flight is not cut or not self.run_id:
            return
        if not self.linked:
            self.whole.clock.call_later(RETRY_S, lambda: self._send(cut))
            return

        def answer(outcome, version, following):
            self.whole.clock.call_later(DATA_S, lambda: self._answered(cut, outcome, version, following))

        self.whole.clock.call_later(DATA_S, lambda: self.whole.server.commit(self, cut, answer))

    def _answered(self, cut, outcome, version, following):
        if not self.alive or self.flight is not cut or not self.run_id:
            return
        if outcome is None or not self.linked:  # no model, or the reply was lost
            if self.linked:
                self.whole.server.pull(self)
            self.whole.clock.call_later(RETRY_S, lambda: self._send(cut))
            return
        if following is not None:
            self._offer(following)
        self.flight = None
        self.version = version
        self.acknowledged += outcome is not Outcome.REFUSED
        now = self.directive
        if cut["once"] and now.action == D.TRAIN and now.once and now.generation == cut["generation"]:
            self.rested, self.phase = True, W.RESTING
        self._step()

    # ---- links -------------------------------------------------------------------------

    def unlink(self):
        """The way to the parameter server breaks; calls that are open end without an answer."""
        self.linked = False
        if self.flight is not None:
            cut = self.flight
            self.whole.clock.call_later(RETRY_S, lambda: self._send(cut))

    def _renew(self):
        if not self.alive:
            return
        holds = self.linked and self.run_id and self.phase != W.PREPARING
        if holds and not self.whole.server.renew(self) and self.flight is None:
            self.version = self.whole.server.pull(self) or self.version
        self.whole.clock.call_later(self.whole.hub.lease_s / 3, self._renew)

    def say(self):
        if not (self.alive and self.attended):
            return
        measured = self.steps > 0
        report = W(
            run_id=self.run_id,
            phase=self.phase,
            steps=self.steps,
            samples=self.samples,
            commits=self.acknowledged,
            step_s=self.batch_s if measured else 0.0,
            commit_s=2 * DATA_S if self.acknowledged else 0.0,
            hold_s=0.001 if self.acknowledged else 0.0,
            train_loss=2.0 / (1 + 0.01 * self.steps) if measured else 0.0,
            shard_samples=100,
            revision=self.revision,
            max_batch=self.whole.fits.get(self.name, 0),
        )
        if self.directive.gradient_noise:
            report.gradient_pairs = self.steps // 10
            report.gradient_square, report.gradient_variance = 0.01, 0.01 * NOISE
        self.whole.feed(WorkerReported(self.name, self.incarnation, report))
