"""The life of one run, from its submission to its end.

    waiting -> searching / training -> finishing -> idle (with an outcome)

Waiting says for what; a run that loses all its workers waits again and goes on when one
returns. What agents say comes in as calls, `settle` follows each, and instructions leave
through the outbox. No I/O, no clock: `now` is the hub's time in seconds.
"""

from __future__ import annotations

import math
from enum import Enum

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings
from offbeat_scheduler.directives import Wording
from offbeat_scheduler.evaluations import Evaluations
from offbeat_scheduler.events import Log, PhaseChanged
from offbeat_scheduler.figures import sound_evaluation
from offbeat_scheduler.fleet import Stage
from offbeat_scheduler.losses import LossSource
from offbeat_scheduler.membership import Agent, Arrival, Membership
from offbeat_scheduler.outbox import Outbox
from offbeat_scheduler.planner import ModelError, Planner
from offbeat_scheduler.readiness import nobody_left, together, unfit
from offbeat_scheduler.roster import Roster
from offbeat_scheduler.solve_time import SolveTime
from offbeat_scheduler.stop import Outcome, StopRules
from offbeat_scheduler.sync import Loss, SyncModel
from offbeat_scheduler.timing import since

LAST_REPORTS_S = 5.0
FINAL_CHECKPOINT_S = 60.0
SHORTEST_WAKE_S = 0.01


class Phase(Enum):
    WAITING = "waiting"
    SEARCHING = "searching"
    TRAINING = "training"
    FINISHING = "finishing"
    IDLE = "idle"


class Run:
    """One run.

    Args:
        model: made for this run.
        members: who attends; the hub keeps it.
        lease_s: of a trainer at the parameter server.
        solving: measures how long the model takes.
    """

    def __init__(
        self,
        run_id: str,
        settings: RunSettings,
        model: SyncModel,
        members: Membership,
        out: Outbox,
        lease_s: float,
        solving: SolveTime,
    ) -> None:
        self.run_id = run_id
        self.settings = settings
        self.phase = Phase.WAITING
        self.message = ""
        self.outcome: Outcome | None = None
        self.started: float | None = None
        self.ended: float | None = None
        self.commits = 0
        self.evaluations = Evaluations(settings)
        self.stop_rules = StopRules(settings)
        self.losses: LossSource | None = None
        self._parallelized = model.parallelized
        self._words = Wording(run_id, settings, lease_s, parallelized=self._parallelized)
        self._members = members
        self._out = out
        self.roster = Roster(settings, self._words, members, out)
        self.planner = Planner(model, settings, self._words, members, out, solving)
        self._loss_is_new = False  # the model has not decided since
        self._checkpoint = ""  # of the parameter server's process before the present one

    # ---- time -----------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return self.phase is not Phase.IDLE

    @property
    def is_training(self) -> bool:
        """Has training begun, and not ended? Also while it waits for a worker to return."""
        return self.started is not None and self.ended is None

    def elapsed_s(self, now: float) -> float:
        """Seconds since training began, until its end."""
        if self.started is None:
            return 0.0
        return since(self.started, now if self.ended is None else self.ended)

    def next_wake(self, now: float) -> float | None:
        """When `settle` has something to do even if nothing happens."""
        times: list[float] = []
        if self.phase is Phase.FINISHING and self.ended is not None:
            deadlines = (self.ended + LAST_REPORTS_S, self.ended + FINAL_CHECKPOINT_S)
            times += [deadline for deadline in deadlines if since(deadline, now) < 0]
        if self.is_training and self.started is not None:
            if self.settings.limits.seconds is not None:
                times.append(self.started + self.settings.limits.seconds)
            plan = self.planner.plan
            if plan is not None and plan.wake_at_s is not None and self.phase is not Phase.WAITING:
                times.append(max(self.started + plan.wake_at_s, now + SHORTEST_WAKE_S))
        return min(times, default=None)

    # ---- what happens -----------------------------------------------------------

    def begin(self, now: float) -> None:
        """The run was submitted."""
        for agent in self._members:
            self._attends(agent, Arrival.NEW, now)
        if self.ended is None:
            self.settle(now)

    def refuse(self, problem: str, now: float) -> None:
        """It can't begin, by a mistake of Offbeat's or of the model's."""
        self.ended = now
        self.outcome = Outcome.FAILED
        for agent in self._members:
            self._tell_end(agent)
        self._enter(Phase.IDLE, problem)
        self._out.add(Log("error", f"run {self.run_id}: {problem}"))

    def joined(self, agent: Agent, arrival: Arrival, now: float) -> None:
        """An agent attends: anew, again, or as a newer process."""
        self._attends(agent, arrival, now)
        self.settle(now)

    def left(self, agent: Agent, reason: str, now: float, *, goodbye: bool = False) -> None:
        """An agent has left by its word, or its lease has ended."""
        self.roster.changed = True
        worker = self.roster.workers.get(agent.name)
        if worker is not None and worker.incarnation == agent.incarnation:
            trained = self.roster.worker_left(worker)
            self._out.clear(f"fit:{worker.name}")
            if self.is_active:
                goes_on = "; training goes on without it" if trained and self.is_training else ""
                self._out.say(f"{agent.name} {reason}{goes_on}")
        elif agent.name == self.evaluations.evaluator:
            self._evaluator_left(agent.name, reason)
        elif agent.name == self.roster.server.name:
            self._server_left(agent.name, reason, now, goodbye=goodbye)
        self.settle(now)

    def worker_reported(self, agent: Agent, report: pb.WorkerReport, now: float) -> None:
        worker = self.roster.workers.get(agent.name)
        if worker is None or worker.incarnation != agent.incarnation or report.run_id != self.run_id:
            return
        self._warn_of_figures(worker.name, worker.take(report, now))
        if self.ended is None:
            self.roster.worker_says(worker, report)
        if self.is_training and worker.stage is Stage.TRAINING and self.started is not None:
            self.planner.bound_lone_steps(worker, self.roster.digest, self.started)
            self.planner.warn_of_fit(worker)
            self._workers_loss(now)
        self.settle(now)

    def _warn_of_figures(self, name: str, wrong: str) -> None:
        """Say once, and while it is so, that a device reports what can't be."""
        key = f"figures:{name}"
        if not wrong:
            self._out.clear(key)
        elif key not in self._out.warnings:
            self._out.warn(
                key,
                f"{name} reports {wrong}, which can't be, and counts as not yet known; "
                "has it this version of Offbeat, and a clock that runs evenly?",
            )

    def server_reported(self, agent: Agent, report: pb.ServerReport, now: float) -> None:
        server, workers = self.roster.server, self.roster.workers
        if agent is not self.roster.server_agent() or report.run_id != self.run_id:
            return
        self.roster.changed = self.roster.changed or server.seeded != report.seeded
        resumed = server.resumes and report.seeded
        server.take(report, now)
        self.evaluations.server_keeps(report)
        for count in report.counts:
            if count.worker in workers:
                workers[count.worker].counted(count, self.planner.drawn(count.worker))
        self.commits = max(report.commits, sum(worker.commits for worker in workers.values()))
        self._server_error(report.error, now)
        if resumed and self.ended is None:
            self._out.clear("server")
            self._out.say(f"parameter server '{agent.name}' goes on from its last checkpoint")
            self._keep_best(agent)
        self.settle(now)

    def evaluated(self, agent: Agent, report: pb.EvaluatorReport, now: float) -> None:
        if agent.name != self.evaluations.evaluator or report.run_id != self.run_id:
            return
        self.roster.changed = self.evaluations.standing_changes(report) or self.roster.changed
        if report.error:
            problem = self.roster.explain(agent.name, report.error)
            self._out.warn("evaluator-error", f"evaluator '{agent.name}': {problem}")
        else:
            self._out.clear("evaluator-error")
        report = sound_evaluation(report)
        if self.started is None:
            self.evaluations.before_training(report)
        elif self.ended is None:
            self._take_evaluation(report, self.elapsed_s(now), now)
        self.settle(now)

    def stop(self, reason: str, now: float) -> None:
        """The operator wants it to end."""
        if self.ended is None:
            self._end(Outcome.STOPPED, reason, now)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Go as far as can be gone: begin, admit who is ready, end, decide."""
        if self.ended is None and self.roster.changed:
            self.roster.changed = False
            self.roster.enlist(begun=self.started is not None)
            self._choose_evaluator()
            self.planner.tell_server(self.roster, finished=False)
            if self.started is None:
                self._begin_if_ready(now)
            if self.is_training:
                self._admit_ready(now)
        if self.is_training:
            self._judge(now)
        if self.is_training:
            self._decide_if_due(now)
        if self.phase is Phase.FINISHING:
            self._finish_if_done(now)

    # ---- who attends ---------------------------------------------------------------

    def _attends(self, agent: Agent, arrival: Arrival, now: float) -> None:
        self.roster.changed = True
        if agent.role == common.ROLE_WORKER and self.ended is None:
            news = self.roster.worker_attends(agent)
            if news and self.is_training:
                self._out.say(f"{agent.name} {news}")
        elif agent.role == common.ROLE_PARAMETER_SERVER:
            self._server_attends(agent, now)
        elif agent.role == common.ROLE_EVALUATOR and arrival is Arrival.REPLACED:
            self.evaluations.lose(agent.name)
        if arrival is Arrival.RETURNED:
            self._out.directives.repeat(agent)
        if self.ended is not None:
            self._tell_end(agent)

    def _server_attends(self, agent: Agent, now: float) -> None:
        server = self.roster.server
        if server.incarnation == agent.incarnation:
            if self._out.clear("server") and self.is_training:
                self._out.say(f"parameter server '{agent.name}' is back")
            self._keep_best(agent)  # the word may have been lost with the stream
        elif server.name not in ("", agent.name) and self._members.get(server.name) is not None:
            self._out.warn(
                "server-2",
                f"a second parameter server, '{agent.name}', attends; the run uses '{server.name}'",
            )
        elif self._parallelized and not agent.hello.samples and self.ended is None:
            self._lacks_samples(agent, now)
        elif self.is_training:
            self._resume_server(agent)
        elif self.ended is None:
            self.roster.server_attends(agent)

    def _lacks_samples(self, agent: Agent, now: float) -> None:
        problem = (
            f"the run is parallelized, and parameter server '{agent.name}' holds no data set to deal; start "
            "it with samples: FILE (offbeat samples TASK --out FILE makes one), or give mode: federated"
        )
        if self.started is None:
            self.refuse(problem, now)
        else:
            self._end(Outcome.FAILED, problem, now)

    def _resume_server(self, agent: Agent) -> None:
        """A new process has taken the server's place: it goes on from its checkpoint, or the run ends.

        Of the rounds and cycles that were open nobody knows now: a new generation begins, so that
        nobody waits for a commit that the last process has had.
        """
        self._checkpoint = self.roster.server.report.checkpoint_path or self._checkpoint
        evaluated = self.evaluations.last.version if self.evaluations.last else 0
        self.roster.server_resumes(agent, evaluated)
        self.planner.begin_anew()
        self._out.directives.repeat(agent)
        self._out.warn(
            "server", f"parameter server '{agent.name}' was restarted: it loads its last checkpoint"
        )

    def _server_left(self, name: str, reason: str, now: float, *, goodbye: bool) -> None:
        if self.is_training and goodbye:
            self._end(Outcome.FAILED, f"parameter server '{name}' {reason} in the middle of the run", now)
        elif self.is_training:
            self._out.warn(
                "server", f"parameter server '{name}' {reason}; workers train on and keep their updates"
            )
        elif self.ended is None:
            self._out.say(f"parameter server '{name}' {reason}")
            self.roster.server_left()
            self._out.clear("server-2")
            for other in self._members.with_role(common.ROLE_PARAMETER_SERVER):
                self._server_attends(other, now)  # the first that stood by takes its place

    def _server_error(self, error: str, now: float) -> None:
        if not error:
            self._out.clear("server-error")
        elif self.started is None and self.ended is None and not self.roster.server.seeded:
            self._end(Outcome.FAILED, f"parameter server: {error}", now)
        elif self.is_training and self.roster.server.resumes:
            file = self._checkpoint or "a model that was kept"
            said = error.replace("\n", "; ")
            self._end(
                Outcome.FAILED,
                f"parameter server '{self.roster.server.name}' restarted in the middle of the run and can't "
                f"go on: {said}; submit the run again, with initial_model: {file}",
                now,
            )
        else:
            self._out.warn("server-error", f"parameter server: {error}")

    def _choose_evaluator(self) -> None:
        """The first that attends and has the task; others stand by, idle."""
        evaluators = self._members.with_role(common.ROLE_EVALUATOR)
        current = self.evaluations.evaluator
        if current not in [agent.name for agent in evaluators]:
            self.evaluations.lose(current)
            for agent in evaluators:
                problem = unfit(agent.hello.tasks, self.settings.task.name, self.roster.digest)
                if problem:
                    self._out.warn(f"evaluator:{agent.name}", f"evaluator '{agent.name}': {problem}")
                    continue
                self._out.clear(f"evaluator:{agent.name}")
                self.evaluations.appoint(agent.name)
                if self._out.clear("evaluator") and self.is_training:
                    self._out.say(f"evaluator '{agent.name}' attends again")
                break
        for agent in evaluators:
            chosen = agent.name == self.evaluations.evaluator
            content = self._words.evaluate(self.roster.digest) if chosen else common.EvaluatorDirective()
            self._out.directives.post(agent, content)
        self._reconsider_losses()

    def _evaluator_left(self, name: str, reason: str) -> None:
        self.evaluations.lose(name)
        if self.is_training and self.losses is not None:
            awaited = self.losses.source == "evaluator" and self.losses.last is not None
            waits = "; decisions wait for its return" if awaited else ""
            self._out.warn("evaluator", f"evaluator '{name}' {reason}{waits}")

    # ---- evaluations and losses --------------------------------------------------------

    def _take_evaluation(self, report: pb.EvaluatorReport, at_s: float, now: float) -> None:
        """An evaluation of the model in training, unless it is of the version that was evaluated before."""
        server = self.roster.server_agent()
        taken = self.evaluations.take(report, at_s, kept=server is not None and server.attached)
        if taken is None:
            return
        self.stop_rules.metric(at_s, report.metric, report.metric_name)
        if taken.is_best and server is not None:
            self._keep_best(server)
        if self.losses is not None:
            self._observe(self.losses.evaluated(at_s, report.loss, self.roster.steps()), now)

    def _keep_best(self, server: Agent) -> None:
        """Have the parameter server write the best model, unless it says that it has."""
        if (best := self.evaluations.unkept) is not None:
            self._out.keep_best(server, self.run_id, best)

    def _workers_loss(self, now: float) -> None:
        at_s = self.elapsed_s(now)
        if self.losses is not None and self.losses.due(at_s):
            # A device that rests may not have been chosen yet: nobody waits for its loss.
            own = [
                worker.training_loss()
                for worker in self.roster.active()
                if worker.samples or not self.planner.rests(worker.name)
            ]
            self._observe(self.losses.trained(at_s, own, self.roster.steps()), now)

    def _observe(self, loss: Loss | None, now: float) -> None:
        if loss is None:
            return
        self.stop_rules.loss(loss.at_s, loss.value)
        if not math.isfinite(loss.value):
            self._out.warn("loss", f"the loss is {loss.value}; a lower learning rate helps")
            return
        self._out.clear("loss")
        self._loss_is_new = True
        try:
            self.planner.observe(loss)
        except ModelError as error:
            self._end(Outcome.FAILED, str(error), now)

    def _reconsider_losses(self) -> None:
        """The evaluator came, went or failed, or a search ended: whose losses are read now?"""
        if self.losses is None:
            return
        if self.losses.reconsider(
            evaluator_attends=self.evaluations.attends, searching=self.planner.searching
        ):
            self.stop_rules.losses_change_source()
            whose = "the evaluator's" if self.losses.source == "evaluator" else "the workers' own"
            self._out.say(f"decisions read {whose} losses from now on")

    # ---- beginning, deciding -----------------------------------------------------------

    def _begin_if_ready(self, now: float) -> None:
        evaluator = self.evaluations.waits_for() if self.settings.needs_evaluator else ""
        waits = together(self.roster.waits_for(), evaluator)
        if waits:
            self._enter(Phase.WAITING, waits)
            return
        self.started = now
        self.losses = LossSource(self.settings.evaluate.every_s, evaluator_attends=self.evaluations.attends)

    def _admit_ready(self, now: float) -> None:
        at_s = self.elapsed_s(now)
        for worker in self.roster.admit_ready(at_s):
            if at_s > 0:
                self._out.say(f"{worker.name} joins the training")

    def _decide_if_due(self, now: float) -> None:
        plan = self.planner.plan
        woken = plan is not None and plan.wake_at_s is not None and self.elapsed_s(now) >= plan.wake_at_s
        round_closed = self.planner.round_closed(self.roster.server)
        if not (self.roster.fleet_changed or self._loss_is_new or woken or round_closed):
            return
        self.roster.fleet_changed = self._loss_is_new = False
        if not self.roster.active():
            self._enter(Phase.WAITING, nobody_left(self.roster.workers.values()))
            return
        assert self.started is not None
        try:
            plan = self.planner.decide(self.roster, self.started, now)
        except ModelError as error:
            self._end(Outcome.FAILED, str(error), now)
            return
        self._enter(Phase.SEARCHING if plan.searching else Phase.TRAINING, "")
        self._reconsider_losses()
        early, self.evaluations.early = self.evaluations.early, None
        if early is not None:  # of the initial model: made, as it were, when training began
            self._take_evaluation(early, 0.0, now)
            self.settle(now)

    # ---- the end -------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        verdict = self.stop_rules.verdict(self.elapsed_s(now), self.commits)
        if verdict is not None:
            self._end(verdict.outcome, verdict.message, now)

    def _end(self, outcome: Outcome, message: str, now: float) -> None:
        """Everybody to idle; the parameter server writes the final model."""
        self.ended = now
        self.outcome = outcome
        for key in ("server", "evaluator"):
            self._out.clear(key)
        self._enter(Phase.FINISHING, message)
        for agent in self._members:
            self._tell_end(agent)

    def _tell_end(self, agent: Agent) -> None:
        if agent.role == common.ROLE_WORKER:
            self._out.directives.post(agent, self._words.idle())
        elif agent.role == common.ROLE_EVALUATOR:
            self._out.directives.post(agent, common.EvaluatorDirective())
        elif agent is self.roster.server_agent() and self.roster.server.seeded:
            self.planner.tell_server(self.roster, finished=True)
        else:
            self._out.directives.post(agent, common.ServerDirective())

    def _finish_if_done(self, now: float) -> None:
        assert self.ended is not None
        waited_s = since(self.ended, now)
        server = self.roster.server
        unwritten = server.seeded and not server.report.finished
        if unwritten and self.roster.server_agent() is not None and waited_s < FINAL_CHECKPOINT_S:
            return
        members = self._members
        unsaid = [w for w in self.roster.active() if not w.final and members.get(w.name) is not None]
        if unsaid and waited_s < LAST_REPORTS_S:
            return
        if unwritten and self.outcome is not Outcome.FAILED:
            self._out.warn("final", "the parameter server did not confirm that the final model is written")
        self._enter(Phase.IDLE, self.message)
        assert self.outcome is not None
        head = "target reached" if self.outcome is Outcome.REACHED else self.outcome.value
        path = server.report.model_path
        where = f"; the model is at {path} (parameter server)" if path else ""
        self._out.say(f"run {self.run_id}: {head}: {self.message}{where}")

    def _enter(self, phase: Phase, message: str) -> None:
        if (phase, message) == (self.phase, self.message):
            return
        self.phase, self.message = phase, message
        self._out.add(PhaseChanged(phase.value, self.outcome.value if self.outcome else "", message))
        if phase is not Phase.IDLE:
            self._out.say(f"run {self.run_id}: {phase.value}{': ' if message else ''}{message}")
