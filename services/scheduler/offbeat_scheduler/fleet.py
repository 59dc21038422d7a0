"""What is known of each worker and of the parameter server in one run, from their reports."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.averages import SmoothedMean
from offbeat_scheduler.figures import SHARES, is_time, sound
from offbeat_scheduler.losses import TrainingLoss
from offbeat_scheduler.sync import Device, Fleet
from offbeat_scheduler.timing import since

CUMULATIVE = (
    "steps",
    "samples",
    "commits",
    "sent_bytes",
    "received_bytes",
    "retries",
    "fetched_samples",
    "fetch_s",
)

SPEED_SPAN_S = 0.25
"""A speed is measured over at least so long: a report that follows another at once says nothing of it."""


class Stage(Enum):
    """How far a worker has come in the run."""

    NEW = "new"  # nothing was said to it yet
    REFUSED = "refused"
    PREPARING = "preparing"
    READY = "ready"
    TRAINING = "training"
    FAILED = "failed"
    AWAY = "away"


class Worker:
    """One worker in one run, whatever processes of that name take part one after the other.

    A process counts from zero; what its predecessors did in this run is carried over, so
    totals never fall.
    """

    def __init__(self, hello: pb.Hello) -> None:
        self.hello = hello
        self.stage = Stage.NEW
        self.stage_before_away = Stage.NEW
        self.problem = ""  # why it was refused or failed
        self.report = pb.WorkerReport()  # the last one, as far as it can be
        self.joined_s = 0.0
        self.lone_steps = 0  # the bound in force
        self.final = False
        self.local_updates = 0.0  # mean of its last commits: passes where samples are allotted, else steps
        self._carried = pb.WorkerReport()
        self._count = pb.CommitCount()
        self._commits_before = 0
        self._recounted = False
        self._speed = SmoothedMean(0.3)
        self._speed_from: tuple[float, int] | None = None  # (when, steps): where its next measurement begins

    @property
    def name(self) -> str:
        return self.hello.name

    @property
    def incarnation(self) -> str:
        return self.hello.incarnation

    def restart(self, hello: pb.Hello) -> None:
        """A newer process: carry over what the last one did and begin anew."""
        self._carried = self.totals()
        self.hello = hello
        self.stage = Stage.NEW
        self.problem = ""
        self.report = pb.WorkerReport()
        self.lone_steps = 0
        self.final = False
        self._speed_from = None
        self._speed = SmoothedMean(0.3)

    def away(self) -> None:
        """It left, or its lease ended."""
        if self.stage is not Stage.AWAY:
            self.stage_before_away = self.stage
            self.stage = Stage.AWAY

    def take(self, report: pb.WorkerReport, now: float) -> str:
        """A newer report of the same process. Its figures are cumulative, so a lost one loses nothing.

        Returns which of them can't be, or "".
        """
        if self._speed_from is None:
            self._speed_from = (now, report.steps) if report.steps else None
        elif (seconds := since(self._speed_from[0], now)) >= SPEED_SPAN_S:
            if report.steps >= self._speed_from[1]:
                self._speed.add((report.steps - self._speed_from[1]) / seconds)
            self._speed_from = (now, report.steps)
        self.report, wrong = sound(report)
        self.final = self.final or report.final
        return wrong

    def counted(self, count: pb.CommitCount, drawn: int = 0) -> None:
        """The parameter server's count. One that fell was begun anew; totals go on.

        `drawn`: samples in a pass of the commits that are new in it; 0: it makes no such passes.
        """
        commits = count.commits - self._count.commits
        if commits > 0:
            steps, samples = count.steps - self._count.steps, count.samples - self._count.samples
            self.local_updates = max(0.0, samples / drawn if drawn else float(steps)) / commits
        if count.commits < self._count.commits:
            # A restored server counts on from its checkpoint: what is lost since was made all the same.
            self._commits_before += self._count.commits - (count.commits if self._recounted else 0)
        self._count, self._recounted = count, False

    def recounted(self) -> None:
        """The next count is that of a server which went on from its checkpoint."""
        self._recounted = True

    def totals(self) -> pb.WorkerReport:
        """The last report, with the cumulative figures of all processes of this name in the run."""
        totals = pb.WorkerReport()
        totals.CopyFrom(self.report)
        for name in CUMULATIVE:
            setattr(totals, name, getattr(self.report, name) + getattr(self._carried, name))
        for name in SHARES:
            value = getattr(self.report.time, name) + getattr(self._carried.time, name)
            if value:
                setattr(totals.time, name, value)
        return totals

    @property
    def commits(self) -> int:
        """c_i, as the parameter server counts them."""
        return self._commits_before + self._count.commits

    @property
    def steps(self) -> int:
        return self.report.steps + self._carried.steps

    @property
    def samples(self) -> int:
        return self.report.samples + self._carried.samples

    @property
    def staleness(self) -> int:
        return self._count.staleness

    @property
    def refused_commits(self) -> int:
        return self._count.refused

    @property
    def steps_per_s(self) -> float:
        """As the hub sees it: differences of reports over the time between them."""
        return self._speed.value if self.stage is Stage.TRAINING else 0.0

    def fitting(self, batch: int) -> int:
        """So much of a batch as fits it at a time, by its own word."""
        return min(batch, self.report.max_batch or batch)

    def training_loss(self) -> TrainingLoss:
        return TrainingLoss(self.report.train_loss, self.report.samples, self.report.shard_samples)

    def device(self) -> Device:
        return Device(
            name=self.name,
            commits=self.commits,
            steps=self.steps,
            samples=self.samples,
            shard_samples=self.report.shard_samples,
            step_s=self.report.step_s,
            commit_s=self.report.commit_s,
            hold_s=self.report.hold_s,
            train_loss=self.report.train_loss,
            joined_s=self.joined_s,
            trained_s=self._trained_s(),
            pull_s=self.report.pull_s,
            gradient_square=self.report.gradient_square,
            gradient_variance=self.report.gradient_variance,
            gradient_pairs=self.report.gradient_pairs,
            max_batch=self.report.max_batch,
            fetched=self.report.fetched_samples + self._carried.fetched_samples,
            fetch_s=self.report.fetch_s + self._carried.fetch_s,
        )

    def _trained_s(self) -> float:
        shares = (self.report.time, self._carried.time)
        return sum(share.compute_s + share.paced_s for share in shares)


class Server:
    """The parameter server in one run. `name` is empty while none takes part."""

    def __init__(self) -> None:
        self.name = ""
        self.incarnation = ""
        self.samples = 0  # in the data set that it holds
        self.report = pb.ServerReport()
        self.counted_at: float | None = None  # when the counts of the last report came
        self.resumed_from: int | None = None  # the last version heard of, where it was restarted in the run
        self._commit_s = SmoothedMean(0.2)

    def begin(self, hello: pb.Hello) -> None:
        """This process holds the run's model from now on."""
        self.name = hello.name
        self.incarnation = hello.incarnation
        self.samples = hello.samples
        self.report = pb.ServerReport()

    def resume(self, hello: pb.Hello, version: int) -> None:
        """This process goes on from the checkpoint of one before it; `version`: the newest heard of."""
        self.begin(hello)
        self.resumed_from = max(version, self.resumed_from or 0)

    @property
    def resumes(self) -> bool:
        """Has it still to load the checkpoint?"""
        return self.resumed_from is not None and not self.seeded

    def take(self, report: pb.ServerReport, now: float) -> None:
        commits = report.commits - self.report.commits
        busy_s = report.busy_s - self.report.busy_s
        if commits > 0 and is_time(busy_s):
            self._commit_s.add(busy_s / commits)
        self.report = report
        self.counted_at = now

    @property
    def commit_s(self) -> float:
        """Seconds that it is busy with one commit, smoothed; 0: not yet known."""
        return self._commit_s.value

    @property
    def seeded(self) -> bool:
        return self.report.seeded


def build_fleet(
    workers: Iterable[Worker], server: Server, started: float, now: float, closed: int = 0
) -> Fleet:
    """All that train or rest now, by name. `started`: when the run's training began."""
    active = sorted((w for w in workers if w.stage is Stage.TRAINING), key=lambda worker: worker.name)
    return Fleet(
        now_s=since(started, now),
        devices={worker.name: worker.device() for worker in active},
        server_s=server.commit_s,
        counted_at_s=None if server.counted_at is None else max(0.0, since(started, server.counted_at)),
        closed=closed,
        samples=server.samples,
    )
