"""A scheduler's decisions in virtual time: agents are lists of events, nothing is real but the hub."""

import json
import random

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.clock import VirtualClock
from offbeat_core.config import RunSettings, Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import (
    AgentJoined,
    AgentLeft,
    Close,
    Evaluated,
    HubState,
    Log,
    PhaseChanged,
    PlanMade,
    RunSubmitted,
    SendTo,
    ServerReported,
    StopRequested,
    Tick,
    WorkerReported,
)
from offbeat_scheduler.hub import Hub
from offbeat_scheduler.solve_time import still
from offbeat_scheduler.status import build_status
from offbeat_scheduler.sync import Grid, Plan, SyncModel
from offbeat_scheduler.timing import since

DIGEST = "a" * 64
OTHER_DIGEST = "b" * 64

ROLES = {
    "ps": common.ROLE_PARAMETER_SERVER,
    "evaluator": common.ROLE_EVALUATOR,
    "worker": common.ROLE_WORKER,
}
W = pb.WorkerReport


class FakeModel(SyncModel):
    """Commits on a grid; what it plans can be changed while it runs."""

    name = "fake"
    Options = Settings

    def __init__(self, options, run):
        super().__init__(options, run)
        self.decisions = []
        self.losses = []
        self.plan = lambda fleet: grid_plan(fleet, 2.0)

    def decide(self, fleet):
        self.decisions.append(fleet)
        return self.plan(fleet)

    def observe(self, loss):
        self.losses.append(loss)


def grid_plan(fleet, interval_s, origin_s=0.0, **more):
    triggers = {name: Grid(interval_s, origin_s) for name in fleet.devices}
    return Plan(triggers=triggers, overlap=True, commit_rate=5, interval_s=interval_s, **more)


def run_settings(**values):
    return RunSettings.model_validate({"task": "digits", "sync": "fake", "check_period_s": 10, **values})


class Agent:
    """An agent that reports once a second until it is stopped."""

    def __init__(self, world, role, name, incarnation, tasks):
        self.world = world
        self.role = role
        self.name = name
        self.incarnation = incarnation
        self.hello = pb.Hello(
            role=ROLES[role], name=name, incarnation=incarnation, tasks=tasks, shard=0, shards=1
        )
        self.report = {"worker": pb.WorkerReport, "ps": pb.ServerReport, "evaluator": pb.EvaluatorReport}[
            role
        ]()
        self.alive = False

    def join(self):
        if not self.alive:
            self.alive = True
            self.world.clock.call_later(1.0, self._beat)
        self.world.feed(AgentJoined(self.hello))
        return self

    def _beat(self):
        if self.alive:
            self.say()
            self.world.clock.call_later(1.0, self._beat)

    def say(self, **fields):
        """Change the report and send it now."""
        for name, value in fields.items():
            if name == "time":
                self.report.time.CopyFrom(pb.Shares(**value))
            elif isinstance(value, list):
                del getattr(self.report, name)[:]
                getattr(self.report, name).extend(value)
            else:
                setattr(self.report, name, value)
        if "run_id" not in fields and self.world.run_id:
            self.report.run_id = self.world.run_id
        kind = {"worker": WorkerReported, "ps": ServerReported, "evaluator": Evaluated}[self.role]
        copy = type(self.report)()
        copy.CopyFrom(self.report)
        self.world.feed(kind(self.name, self.incarnation, copy))

    def die(self):
        """Without a word: a power cut."""
        self.alive = False

    def cut(self):
        """Its stream breaks; it goes on living, but can't report."""
        self.alive = False
        self.world.feed(AgentLeft(self.name, self.incarnation, "its stream was cut"))

    def leave(self):
        self.alive = False
        self.world.feed(AgentLeft(self.name, self.incarnation, "it stops", goodbye=True))

    def evaluate(self, version, loss, metric=0.0):
        self.say(version=version, loss=loss, metric=metric, metric_name="accuracy", samples=100, ready=True)


class World:
    """A hub, a virtual clock and everything that came out."""

    def __init__(self, folder=None, *, lease_s=10.0, make_model=None, start=1000.0, stopwatch=still):
        self.clock = VirtualClock(start)
        self.model = None
        self._make_model = make_model or self._fake
        state = HubState("scheduler-1", lease_s=lease_s, report_every_s=1.0)
        self.hub = Hub(state, self._make_model, stopwatch)
        self.event_log = EventLog(folder)
        self.sent = []  # (time, name, directive)
        self.instructions = []
        self.run_id = ""
        self._ticks = 0
        self._chance = random.Random(1)

    def _fake(self, spec, run):
        if spec.model != "fake":
            raise OffbeatError(f"sync: '{spec.model}' is not known")
        self.model = FakeModel(Settings(), run)
        return self.model

    # ---- driving -------------------------------------------------------------------

    def now(self):
        return since(0.0, self.clock.now())

    def feed(self, event):
        now = self.now()
        out = self.hub.handle(event, now)
        self.event_log.add(event, out, now, self.hub.take_solve_s())
        self.instructions += out
        self.sent += [(now, i.name, i.directive) for i in out if isinstance(i, SendTo)]
        if self.event_log.is_open and self.hub.active_run is None:
            self.event_log.end()
        self._ticks += 1
        self._schedule(self._ticks)
        return out

    def _schedule(self, number):
        wake = self.hub.next_wake(self.now())
        if wake is not None:
            self.clock.call_at(wake, lambda: number == self._ticks and self.feed(Tick()))

    def wait(self, seconds):
        self.clock.run_until(self.clock.now() + seconds)

    # ---- agents ---------------------------------------------------------------------

    def agent(self, role, name, incarnation=None, tasks=None):
        has = {"digits": DIGEST} if role != "ps" else {}
        return Agent(self, role, name, incarnation or f"{name}-1", has if tasks is None else tasks)

    def submit(self, **values):
        settings = run_settings(**values)
        self.run_id = f"{settings.name}-{self._chance.randrange(10**6)}"
        self.event_log.begin(self.run_id, self.hub.state(self.now()), "", self.now())
        self.feed(RunSubmitted(self.run_id, settings))
        return self.run_id

    def stop(self):
        self.feed(StopRequested())

    def training(self, workers=2, *, evaluator=True, **values):
        """A run whose training has begun. Returns (ps, evaluator or None, workers)."""
        ps = self.agent("ps", "ps").join()
        evaluates = self.agent("evaluator", "eval").join() if evaluator else None
        trainers = [self.agent("worker", f"w{i}").join() for i in range(1, workers + 1)]
        self.submit(workers=workers, **values)
        ps.say(seeded=True, version=1)
        if evaluates:
            evaluates.say(ready=True)
        for trainer in trainers:
            trainer.say(phase=W.READY)
        for trainer in trainers:
            trainer.report.phase = W.TRAINING
        return ps, evaluates, trainers

    # ---- what came out --------------------------------------------------------------------

    def status(self):
        return build_status(self.hub, self.now())

    def to(self, name, kind=None):
        """Directives that an agent got, oldest first; only those of a kind, unpacked, if given."""
        found = [directive for _, who, directive in self.sent if who == name]
        if kind is None:
            return found
        return [getattr(d, kind) for d in found if d.WhichOneof("kind") == kind]

    def last(self, name, kind="worker"):
        found = self.to(name, kind)
        return found[-1] if found else None

    def phases(self):
        return [i.phase for i in self.instructions if isinstance(i, PhaseChanged)]

    def plans(self):
        return [i for i in self.instructions if isinstance(i, PlanMade)]

    def closed(self):
        return [i for i in self.instructions if isinstance(i, Close)]

    def said(self):
        return [i.text for i in self.instructions if isinstance(i, Log)]

    def log_lines(self):
        return self.event_log.path(self.run_id).read_text().splitlines(keepends=True)

    def decisions(self):
        return [line for line in map(json.loads, self.log_lines()) if "decision" in line]
