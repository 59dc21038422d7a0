"""What a status says about a run: has it ended, how, and its figures.

Shared by all commands, so that `demo`, `run` and `status` mean the same by a field of
their JSON and by an exit code.
"""

from __future__ import annotations

import json
import math
from typing import Any

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings, TargetSpec, parse_yaml, validate
from offbeat_core.errors import ExitCode, OffbeatError

OUTCOMES = {
    pb.Status.REACHED: "reached",
    pb.Status.LIMIT: "limit",
    pb.Status.CONVERGED: "converged",
    pb.Status.STOPPED: "stopped",
    pb.Status.FAILED: "failed",
}
PHASES = {
    pb.Status.IDLE: "idle",
    pb.Status.WAITING: "waiting",
    pb.Status.SEARCHING: "searching",
    pb.Status.TRAINING: "training",
    pb.Status.FINISHING: "finishing",
}
WORKER_PHASES = {
    pb.WorkerReport.IDLE: "idle",
    pb.WorkerReport.PREPARING: "preparing",
    pb.WorkerReport.READY: "ready",
    pb.WorkerReport.TRAINING: "training",
    pb.WorkerReport.FAILED: "failed",
    pb.WorkerReport.RESTING: "resting",
}
SHARES = ("compute", "paced", "commit", "wait")


def has_ended(status: pb.Status, run_id: str) -> bool:
    """Is `run_id` over, with its model written? Also true once another run has followed it."""
    if status.run_id != run_id:
        return True
    return status.phase == pb.Status.IDLE and status.outcome != pb.Status.OUTCOME_UNSPECIFIED


def settings_of(status: pb.Status) -> RunSettings | None:
    """The run's effective settings; None where the status carries none."""
    if not status.effective_yaml:
        return None
    try:
        return validate(RunSettings, parse_yaml(status.effective_yaml, "status"), "status")
    except OffbeatError:  # of another version of Offbeat: nothing of the status depends on it
        return None


def model_name(sync: str) -> str:
    """A synchronization model as a person reads it: of one's own file, its last part."""
    return sync.rpartition("/")[2]


def target_of(status: pb.Status) -> TargetSpec | None:
    settings = settings_of(status)
    return settings.target if settings else None


def exit_code(status: pb.Status) -> ExitCode:
    """0 reached, or ended as planned where there was no target; 3 ended short of it; 1 failed."""
    if status.outcome == pb.Status.REACHED:
        return ExitCode.DONE
    if status.outcome == pb.Status.FAILED:
        return ExitCode.FAILED
    return ExitCode.LIMIT if target_of(status) or status.target else ExitCode.DONE


def shares(report: pb.WorkerReport) -> dict[str, float]:
    """Fractions of the training thread's time: compute, paced, commit, wait. All 0 before it began."""
    seconds = [getattr(report.time, f"{name}_s") for name in SHARES]
    total = sum(seconds)
    return {name: value / total if total else 0.0 for name, value in zip(SHARES, seconds, strict=True)}


def value(status: pb.Status) -> float | None:
    """What the target speaks of: the loss where it is a loss, else the metric. None before the first."""
    target = target_of(status)
    by_loss = target.loss is not None if target else not status.metric_name
    if by_loss:
        return status.loss if status.loss else None
    return status.metric if status.evaluations else None


def result(status: pb.Status, wall_s: float, speeds: dict[str, float] | None = None) -> dict[str, Any]:
    """The JSON object that `demo` and `run --wait` end with.

    Args:
        wall_s: seconds since the command began.
        speeds: relative speeds by worker, where they were given; else steps per second are shown.
    """
    workers = []
    for worker in status.workers:
        share = shares(worker.report)
        workers.append(
            {
                "name": worker.name,
                "speed": (speeds or {}).get(worker.name, round(worker.steps_per_s, 4)),
                "steps": worker.report.steps,
                "commits": worker.commits,
                **{f"{name}_share": round(share[name], 5) for name in SHARES},
                "steps_per_s": round(worker.steps_per_s, 4),
                "step_s": round(worker.report.step_s, 5),
                "commit_s": round(worker.report.commit_s, 5),
                "local_updates": round(worker.local_updates, 3),
                "batch": worker.batch or None,
                "train_loss": round(worker.report.train_loss, 5),
                **(
                    {"allotted_samples": worker.allotted_samples, "allotted_passes": worker.allotted_passes}
                    if worker.allotted_samples
                    else {}
                ),
                **(
                    {"allotted_updates": round(worker.allotted_updates, 3)} if worker.allotted_updates else {}
                ),
                **({"error": worker.error} if worker.error else {}),
            }
        )
    return {
        "reached": status.reached,
        "value": value(status),
        "time_to_target_s": round(status.time_to_target_s, 3) if status.reached else None,
        "wall_s": round(wall_s, 3),
        "sync": status.sync,
        "commit_rate": status.commit_rate,
        "probes": [probe(item) for item in status.probes],
        "workers": workers,
        "outcome": OUTCOMES.get(status.outcome),
        "message": status.message,
        "run_id": status.run_id,
        "elapsed_s": round(status.elapsed_s, 3),
        "check_period_s": status.check_period_s,
        "interval_s": status.interval_s,
        **({"allotment": allotment(status.allotment)} if status.HasField("allotment") else {}),
        "loss": status.loss or None,
        "metric": status.metric if status.evaluations else None,
        "metric_name": status.metric_name,
        "target": status.target,
        "commits": status.commits,
        "warnings": list(status.warnings),
        "model": status.model_path,
        "best_model": status.best_model_path,
    }


def dumps(found: dict[str, Any], indent: int | None = None) -> str:
    """As JSON that any reader takes: a number that is none, such as a diverged model's loss, is null."""
    return json.dumps(_finite(found), indent=indent, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(item) for key, item in content.items()}
    if isinstance(content, list):
        return [_finite(item) for item in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def allotment(found: pb.Allotment) -> dict[str, Any]:
    """What was planned, and what was observed of it at last."""
    return {
        "cycle_s": found.cycle_s,
        "max_staleness": found.max_staleness,
        "average_staleness": found.average_staleness,
        "observed_max_staleness": round(found.observed_max_staleness, 3),
        "observed_average_staleness": round(found.observed_average_staleness, 3),
        "idle_share": found.idle_share,
        "solve_s": round(found.solve_s, 6),
        "max_solve_s": round(found.max_solve_s, 6),
    }


def probe(item: pb.Probe) -> dict[str, Any]:
    return {
        "rate": item.rate,
        "interval_s": item.interval_s,
        "start_s": item.start_s,
        "end_s": item.end_s,
        "loss_start": item.loss_start,
        "loss_end": item.loss_end,
        "reward": item.reward,
        "chosen": item.chosen,
    }


def status_json(status: pb.Status) -> dict[str, Any]:
    """A whole status, for `offbeat status --json`."""
    found = result(status, status.elapsed_s)
    del found["wall_s"]
    return {
        "phase": PHASES.get(status.phase, "unknown"),
        **found,
        "parameter_server_attached": status.parameter_server_attached,
        "evaluator_attached": status.evaluator_attached,
        "active_trainers": status.active_trainers,
        "version": status.version,
        "workers": [
            {
                **shown,
                "attached": worker.attached,
                "phase": WORKER_PHASES.get(worker.report.phase, "unknown"),
                "shard": f"{worker.shard}/{worker.shards}",
                "compute": worker.device.compute,
            }
            for shown, worker in zip(found["workers"], status.workers, strict=True)
        ],
    }


def ending(status: pb.Status) -> str:
    """One sentence about how the run ended."""
    how = OUTCOMES.get(status.outcome, "ended")
    if status.outcome == pb.Status.REACHED:
        return f"reached {status.target} after {status.time_to_target_s:.1f} s of training"
    if status.outcome == pb.Status.LIMIT and status.target:
        return f"ended at its limit before {status.target}: {status.message}".rstrip(": ")
    return f"{how}: {status.message}" if status.message else how
