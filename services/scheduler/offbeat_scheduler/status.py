"""The scheduler's state as a person, the command line and Prometheus see it."""

from __future__ import annotations

import numpy as np

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.allocation.solution import average_staleness
from offbeat_scheduler.fleet import Stage, Worker
from offbeat_scheduler.hub import Hub
from offbeat_scheduler.run import Phase, Run
from offbeat_scheduler.stop import Outcome
from offbeat_scheduler.sync import Passes, Plan

_PHASES = {
    Phase.WAITING: pb.Status.WAITING,
    Phase.SEARCHING: pb.Status.SEARCHING,
    Phase.TRAINING: pb.Status.TRAINING,
    Phase.FINISHING: pb.Status.FINISHING,
    Phase.IDLE: pb.Status.IDLE,
}
_OUTCOMES = {
    Outcome.REACHED: pb.Status.REACHED,
    Outcome.LIMIT: pb.Status.LIMIT,
    Outcome.CONVERGED: pb.Status.CONVERGED,
    Outcome.STOPPED: pb.Status.STOPPED,
    Outcome.FAILED: pb.Status.FAILED,
}


def build_status(hub: Hub, now: float, effective_yaml: str = "") -> pb.Status:
    """Everything at `now`. The run is the current one, or the last."""
    status = pb.Status(phase=pb.Status.IDLE, warnings=hub.warnings)
    status.parameter_server_attached = _attends(hub, common.ROLE_PARAMETER_SERVER)
    status.evaluator_attached = _attends(hub, common.ROLE_EVALUATOR)
    if hub.run is not None:
        _add_run(status, hub.run, now)
        status.effective_yaml = effective_yaml
    _add_workers(status, hub)
    return status


def _attends(hub: Hub, role: common.Role) -> bool:
    return any(agent.attached for agent in hub.members.with_role(role))


def _add_run(status: pb.Status, run: Run, now: float) -> None:
    status.phase = _PHASES[run.phase]
    status.run_id = run.run_id
    status.run_name = run.settings.name
    if run.outcome is not None and run.phase is Phase.IDLE:
        status.outcome = _OUTCOMES[run.outcome]
    status.message = run.message
    status.elapsed_s = run.elapsed_s(now)
    status.sync = run.settings.sync.model
    status.check_period_s = run.settings.check_period_s
    status.target = run.stop_rules.target_text
    status.commits = run.commits
    _add_plan(status, run)
    _add_losses(status, run)
    confirmation = run.stop_rules.confirmation
    if confirmation is not None:
        status.reached = True
        status.time_to_target_s = confirmation.confirmed_s
    report = run.roster.server.report
    status.version = report.version
    status.active_trainers = report.active_trainers
    status.model_path = report.model_path
    status.best_model_path = report.best_model_path


def _add_plan(status: pb.Status, run: Run) -> None:
    plan = run.planner.plan
    if plan is None:
        return
    status.commit_rate = plan.commit_rate
    status.interval_s = plan.interval_s
    if plan.allotment is not None:
        status.allotment.cycle_s = plan.allotment.cycle_s
        status.allotment.max_staleness = plan.allotment.max_staleness
        status.allotment.average_staleness = plan.allotment.average_staleness
        status.allotment.idle_share = plan.allotment.idle_share
        status.allotment.solve_s = run.planner.solving.last_s
        status.allotment.max_solve_s = run.planner.solving.max_s
        made = np.array([w.local_updates for w in run.roster.active() if w.local_updates])
        if made.size:
            status.allotment.observed_max_staleness = made.max() - made.min()
            status.allotment.observed_average_staleness = average_staleness(made)
    for probe in plan.probes:
        status.probes.add(
            rate=probe.rate,
            interval_s=probe.interval_s,
            start_s=probe.start_s,
            end_s=probe.end_s,
            loss_start=probe.loss_start,
            loss_end=probe.loss_end,
            reward=probe.reward,
            chosen=probe.chosen,
        )


def _add_losses(status: pb.Status, run: Run) -> None:
    """The evaluator's where there is one; else the workers' own."""
    found = run.evaluations
    status.metric_name = found.metric_name
    if found.last is not None:
        status.evaluated = True
        status.loss = found.last.loss
        status.metric = found.last.metric
    elif run.losses is not None and run.losses.last is not None:
        status.loss = run.losses.last.value
    if found.kept is not None:
        status.best_loss = found.kept.loss
        status.best_metric = found.kept.metric
    for point in found.points.items():
        status.evaluations.add(at_s=point.at_s, version=point.version, loss=point.loss, metric=point.metric)


def _add_workers(status: pb.Status, hub: Hub) -> None:
    """All that attend, and those that took part in the run, by name."""
    in_run = hub.run.roster.workers if hub.run else {}
    attending = {agent.name: agent for agent in hub.members.with_role(common.ROLE_WORKER)}
    for name in sorted({*in_run, *attending}):
        agent = attending.get(name)
        worker = in_run.get(name) or Worker(attending[name].hello)
        item = status.workers.add(
            name=name,
            attached=agent is not None and agent.attached,
            report=worker.totals(),
            commits=worker.commits,
            steps_per_s=worker.steps_per_s,
            staleness=worker.staleness,
            local_updates=worker.local_updates,
            device=worker.hello.device,
            error=_error(worker),
            shard=worker.hello.shard,
            shards=worker.hello.shards,
        )
        if hub.run is not None and worker.stage is Stage.TRAINING:
            item.interval_s = hub.run.planner.interval_s(name)
            item.batch = worker.fitting(hub.run.planner.batch(name))
            _add_allotment(item, hub.run.planner.plan)


def _add_allotment(item: pb.WorkerStatus, plan: Plan | None) -> None:
    if plan is None:
        return
    if plan.allotment is not None:
        item.allotted_updates = plan.allotment.updates.get(item.name, 0.0)
    if item.name not in plan.samples:
        return
    trigger = plan.triggers.get(item.name)
    item.allotted_samples = plan.samples[item.name]
    item.allotted_passes = trigger.passes if isinstance(trigger, Passes) else 0
    item.allotted_s = plan.allotment.busy_s.get(item.name, 0.0) if plan.allotment else 0.0


def _error(worker: Worker) -> str:
    if worker.problem:
        return worker.problem
    if worker.refused_commits:
        return f"{worker.refused_commits} of its commits were refused by the parameter server"
    return ""
