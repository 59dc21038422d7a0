"""What a device reports and can't have measured counts as not yet measured, or as infinite.

Models divide by these figures, and add them up. A clock that jumps, a model that diverges, or a worker
that somebody else wrote must not end the run of all the others.
"""

from __future__ import annotations

import math

from google.protobuf.message import Message

from offbeat.v1 import scheduler_pb2 as pb

SECONDS = ("step_s", "commit_s", "hold_s", "pull_s", "fetch_s")
SHARES = ("compute_s", "paced_s", "commit_s", "wait_s")
GRADIENTS = ("gradient_square", "gradient_variance")

LEAST_S = 1e-9
"""No clock ticks faster: what took less took so long."""

MOST_S = 1e9
"""Thirty years."""

MOST = 1e100
"""Of a loss, and of gradients' |G|^2 and tr(Sigma). Those of float32 stay far below, and sums of these
are numbers still."""


def sound(report: pb.WorkerReport) -> tuple[pb.WorkerReport, str]:
    """The report with 0 in place of each figure that can't be.

    Returns:
        A copy, and which times could not be, or "". Of gradients nothing is said: where a model
        diverges, they are no numbers on a device that is well.
    """
    mended = pb.WorkerReport()
    mended.CopyFrom(report)
    wrong = _mend(mended, SECONDS, 0.0, MOST_S)
    if mended.HasField("time"):
        wrong += _mend(mended.time, SHARES, 0.0, MOST_S, "time.")
    _mend(mended, GRADIENTS, -MOST, MOST)
    mended.train_loss = _bounded(report.train_loss)
    for name in SECONDS:
        if 0 < getattr(mended, name) < LEAST_S:
            setattr(mended, name, LEAST_S)
    return mended, ", ".join(wrong)


def sound_evaluation(report: pb.EvaluatorReport) -> pb.EvaluatorReport:
    """The report with an infinite loss or metric in place of one beyond all bounds."""
    mended = pb.EvaluatorReport()
    mended.CopyFrom(report)
    mended.loss, mended.metric = _bounded(report.loss), _bounded(report.metric)
    return mended


def is_time(seconds: float) -> bool:
    """Can something have taken so long?"""
    return 0 <= seconds <= MOST_S


def _bounded(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) > MOST else value


def _mend(message: Message, names: tuple[str, ...], least: float, most: float, where: str = "") -> list[str]:
    """Set those that are out of range, or NaN, to 0 and say which they were."""
    wrong = [name for name in names if not least <= getattr(message, name) <= most]
    said = [f"{where}{name}: {getattr(message, name):.3g}" for name in wrong]
    for name in wrong:
        message.ClearField(name)
    return said
