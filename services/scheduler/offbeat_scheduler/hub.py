"""All of the scheduler's decisions behind one call: an event and the time go in, instructions come out.

The hub opens no socket, reads no clock and starts no thread. The live service, the
simulator and the replay of a recorded log drive the same object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings, SyncSpec
from offbeat_scheduler.events import (
    AgentJoined,
    AgentLeft,
    Close,
    Evaluated,
    Event,
    HubState,
    Instruction,
    RunSubmitted,
    SendTo,
    ServerReported,
    StopRequested,
    Tick,
    WorkerReported,
)
from offbeat_scheduler.membership import ROLE_NAMES, Agent, Arrival, Membership
from offbeat_scheduler.outbox import Outbox
from offbeat_scheduler.run import Run
from offbeat_scheduler.solve_time import SolveTime, still
from offbeat_scheduler.sync import SyncModel

MakeModel = Callable[[SyncSpec, RunSettings], SyncModel]


class Hub:
    """Who attends, and the current or last run.

    Args:
        state: where to start from; that of a fresh scheduler has no agents.
        make_model: a synchronization model by its name; raises OffbeatError on a bad one.
        stopwatch: monotonic seconds, to measure how long models take; no decision depends on it.
    """

    def __init__(
        self, state: HubState, make_model: MakeModel, stopwatch: Callable[[], float] = still
    ) -> None:
        self._state = state
        self._stopwatch = stopwatch
        self._make_model = make_model
        self._out = Outbox(state.revision, state.warnings)
        self.members = Membership(state.lease_s)
        for known in state.agents:
            self.members.restore(known)
        self.run: Run | None = None

    @property
    def incarnation(self) -> str:
        """Of this scheduler's process."""
        return self._state.scheduler_incarnation

    @property
    def lease_s(self) -> float:
        return self._state.lease_s

    @property
    def warnings(self) -> list[str]:
        return list(self._out.warnings.values())

    @property
    def active_run(self) -> Run | None:
        return self.run if self.run is not None and self.run.is_active else None

    def state(self, now: float) -> HubState:
        """From which a run that is submitted now can be replayed."""
        return HubState(
            scheduler_incarnation=self._state.scheduler_incarnation,
            lease_s=self._state.lease_s,
            report_every_s=self._state.report_every_s,
            offbeat_version=self._state.offbeat_version,
            revision=self._out.directives.revision,
            agents=self.members.known(now),
            warnings=dict(self._out.warnings),
        )

    def take_solve_s(self) -> float:
        """Seconds of the allocation that the last event led to; 0: to none, or there is no stopwatch."""
        return self.run.planner.solving.take() if self.run else 0.0

    def next_wake(self, now: float) -> float | None:
        """When a Tick is due, if nothing happens before; may lie in the past. None: not by itself."""
        times = [self.run.next_wake(now) if self.run else None, self.members.next_expiry]
        return min((time for time in times if time is not None and time != float("inf")), default=None)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take an event in at `now` (seconds, never falling). Returns what is to be done, in order.

        Raises ValueError for a run submitted while another is active; OffbeatError where the
        run's synchronization model can't be made.
        """
        if isinstance(event, AgentJoined):
            self._joined(event.hello, now)
        elif isinstance(event, AgentLeft):
            self._left(event, now)
        elif isinstance(event, (WorkerReported, ServerReported, Evaluated)):
            self._reported(event, now)
        elif isinstance(event, RunSubmitted):
            self._submitted(event, now)
        elif isinstance(event, StopRequested):
            if self.active_run:
                self.active_run.stop(event.reason, now)
        elif isinstance(event, Tick):
            self._tick(now, event.lost_s)
        return self._taken(now)

    def _taken(self, now: float) -> list[Instruction]:
        instructions = self._out.take()
        server = self.members.get(self.run.roster.server.name) if self.run else None
        return [*instructions, *self._out.directives.flush(self.members, server, now)]

    # ---- agents -------------------------------------------------------------------

    def _joined(self, hello: pb.Hello, now: float) -> None:
        old = self.members.get(hello.name)
        outcome = self.members.join(hello, now)
        if outcome.fight:
            self._out.warn(f"name:{hello.name}", outcome.fight)
        if outcome.closes:
            why: Literal["name", "superseded"] = "name" if outcome.clash else "superseded"
            self._out.add(Close(hello.name, outcome.closes, outcome.reason, why))
        if outcome.arrival is Arrival.REFUSED:
            return
        agent = self.members.get(hello.name)
        assert agent is not None
        role = ROLE_NAMES.get(hello.role, "agent")
        if outcome.arrival is not Arrival.RETURNED:
            again = " as a new process" if outcome.arrival is Arrival.REPLACED else ""
            self._out.say(f"{role} '{hello.name}' attends{again}{_device(hello)}")
        self._welcome(agent)
        if outcome.arrival is Arrival.REPLACED and old is not None:
            self._out.directives.drop(hello.name)
        if self.active_run:
            self.active_run.joined(agent, outcome.arrival, now)
        else:
            self._idle(agent, outcome.arrival)

    def _welcome(self, agent: Agent) -> None:
        state = self._state
        welcome = pb.Welcome(
            scheduler_incarnation=state.scheduler_incarnation,
            report_every_s=state.report_every_s,
            lease_s=state.lease_s,
            offbeat_version=state.offbeat_version,
        )
        self._out.add(SendTo(agent.name, agent.incarnation, pb.Directive(welcome=welcome)))

    def _idle(self, agent: Agent, arrival: Arrival) -> None:
        """No run is active: what the last run said stands, or nothing to do."""
        directives = self._out.directives
        if arrival is Arrival.RETURNED:
            directives.repeat(agent)
        elif agent.role == common.ROLE_WORKER:
            directives.post(agent, common.WorkerDirective(action=common.WorkerDirective.IDLE))
        elif agent.role == common.ROLE_EVALUATOR:
            directives.post(agent, common.EvaluatorDirective())
        elif agent.role == common.ROLE_PARAMETER_SERVER:
            directives.post(agent, common.ServerDirective())

    def _left(self, event: AgentLeft, now: float) -> None:
        agent = self.members.leave(event.name, event.incarnation, goodbye=event.goodbye)
        if agent is not None:
            reason = f"left ({event.reason})" if event.reason else "left"
            self._gone(agent, reason, now, goodbye=True)

    def _gone(self, agent: Agent, reason: str, now: float, *, goodbye: bool = False) -> None:
        self._out.directives.drop(agent.name)
        self._out.clear(f"name:{agent.name}")
        if self.run is None or not self.run.is_active:
            self._out.say(f"{ROLE_NAMES.get(agent.role, 'agent')} '{agent.name}' {reason}")
        if self.run is not None:
            self.run.left(agent, reason, now, goodbye=goodbye)

    def _tick(self, now: float, lost_s: float) -> None:
        if lost_s:
            self.members.excuse(lost_s, now)
        if lost_s > self.lease_s / 2:
            self._out.say(f"the scheduler itself did not run for {lost_s:.1f} s; leases are longer by that")
        for agent in self.members.expire(now):
            reason = f"was silent for {self._state.lease_s:g} s"
            self._out.add(
                Close(agent.name, agent.incarnation, f"'{agent.name}' {reason}: its lease has ended", "lease")
            )
            self._gone(agent, reason, now)
        if self.active_run:
            self.active_run.settle(now)

    def _reported(self, event: WorkerReported | ServerReported | Evaluated, now: float) -> None:
        agent = self.members.seen(event.name, event.incarnation, now)
        if agent is None or self.run is None:
            return
        if isinstance(event, WorkerReported) and agent.role == common.ROLE_WORKER:
            self.run.worker_reported(agent, event.report, now)
        elif isinstance(event, ServerReported) and agent.role == common.ROLE_PARAMETER_SERVER:
            self.run.server_reported(agent, event.report, now)
        elif isinstance(event, Evaluated) and agent.role == common.ROLE_EVALUATOR:
            self.run.evaluated(agent, event.report, now)

    # ---- runs ---------------------------------------------------------------------

    def _submitted(self, event: RunSubmitted, now: float) -> None:
        if self.active_run:
            raise ValueError(f"run {self.active_run.run_id} is active")
        model = self._make_model(event.settings.sync, event.settings)
        solving = SolveTime(self._stopwatch)
        run = Run(event.run_id, event.settings, model, self.members, self._out, self._state.lease_s, solving)
        self._out.directives.forget()
        self._out.clear_run()
        self._out.say(f"run {event.run_id} was submitted")
        self.run = run
        try:
            run.begin(now)
        except Exception as error:  # noqa: BLE001 - a run that can't begin must not wait for ever
            run.refuse(f"it could not begin: {type(error).__name__}: {error}", now)


def _device(hello: pb.Hello) -> str:
    facts = [hello.device.machine, hello.device.compute]
    shown = ", ".join(fact for fact in facts if fact)
    return f" ({shown})" if shown else ""
