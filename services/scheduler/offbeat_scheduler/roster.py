"""Who takes part in a run: devices that have its task, told to prepare, ready, in training.

    new -> refused | preparing -> ready -> training        (failed, away: from anywhere)

A process that comes back under the same incarnation goes on where it was; a newer process
of the same name prepares anew. One worker at a time may seed an empty server.
"""

from __future__ import annotations

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings
from offbeat_core.manifest import ANOTHER_MODEL
from offbeat_scheduler.directives import Wording
from offbeat_scheduler.fleet import Server, Stage, Worker
from offbeat_scheduler.membership import Agent, Membership
from offbeat_scheduler.outbox import Outbox
from offbeat_scheduler.readiness import together, unfit, waiting_for_task, waiting_for_workers

HOLDS_MODEL = (pb.WorkerReport.READY, pb.WorkerReport.TRAINING, pb.WorkerReport.RESTING)
"""A worker that reports one of these has loaded data and model."""


class Roster:
    """The run's workers and its parameter server.

    `changed`: somebody came, left, got ready or failed since it was last cleared.
    `fleet_changed`: the same of those in training.
    """

    def __init__(self, settings: RunSettings, words: Wording, members: Membership, out: Outbox) -> None:
        self.workers: dict[str, Worker] = {}
        self.server = Server()
        self.digest = settings.task.digest
        self.changed = True
        self.fleet_changed = False
        self._settings = settings
        self._words = words
        self._members = members
        self._out = out
        self._seeder = ""

    # ---- what is asked of it --------------------------------------------------------

    def active(self) -> list[Worker]:
        """Those in training, by name."""
        found = [worker for worker in self.workers.values() if worker.stage is Stage.TRAINING]
        return sorted(found, key=lambda worker: worker.name)

    def steps(self) -> int:
        """Local updates of the whole fleet so far."""
        return sum(worker.steps for worker in self.workers.values())

    def server_agent(self) -> Agent | None:
        """The run's parameter server, where it attends as the process that holds the run's model."""
        agent = self._members.get(self.server.name)
        return agent if agent is not None and agent.incarnation == self.server.incarnation else None

    def waits_for(self) -> str:
        """What of tasks, workers and server is missing before training can begin; empty if nothing is."""
        task = self._settings.task.name
        devices = [(a.name, a.hello.tasks) for a in self._members if a.role != common.ROLE_PARAMETER_SERVER]
        fits = any(not unfit(tasks, task, self.digest) for _, tasks in devices)
        present = [worker for worker in self.workers.values() if worker.stage is not Stage.AWAY]
        workers = waiting_for_workers(self._settings.workers, present)
        server = ""
        if not self.server.name:
            server = "waiting for the parameter server: none attends"
        elif not self.server.seeded and self._settings.initial_model:
            server = f"waiting for the parameter server to load {self._settings.initial_model}"
        elif not self.server.seeded and not workers:
            server = "waiting for the parameter server to have the model"
        return together("" if fits else waiting_for_task(task, self.digest, devices), workers, server)

    # ---- who comes and goes -----------------------------------------------------------

    def worker_attends(self, agent: Agent) -> str:
        """A worker came, or dialled again. Returns what there is to say of it."""
        self.changed = True
        worker = self.workers.get(agent.name)
        if worker is None:
            self.workers[agent.name] = Worker(agent.hello)
            return ""
        if worker.incarnation != agent.incarnation:
            self.fleet_changed = self.fleet_changed or worker.stage is Stage.TRAINING
            worker.restart(agent.hello)
            return "is back as a new process: it takes the current model"
        mended = worker.stage is Stage.REFUSED and dict(worker.hello.tasks) != dict(agent.hello.tasks)
        worker.hello = agent.hello
        if mended:
            worker.stage = Stage.NEW
        if worker.stage is not Stage.AWAY:
            return ""
        # It went on under its last directive, or got ready meanwhile, and holds the model.
        holds_model = worker.stage_before_away in (Stage.READY, Stage.TRAINING)
        worker.stage = Stage.READY if holds_model else Stage.NEW
        return "is back"

    def worker_left(self, worker: Worker) -> bool:
        """It left, or its lease ended. Returns whether it was in training.

        One that did nothing in this run is forgotten, whoever comes and goes for however long.
        """
        self.changed = True
        trained = worker.stage is Stage.TRAINING
        self.fleet_changed = self.fleet_changed or trained
        worker.away()
        if not worker.steps and not worker.commits and not trained:
            del self.workers[worker.name]
            self._out.clear(f"worker:{worker.name}")
        return trained

    def worker_says(self, worker: Worker, report: pb.WorkerReport) -> None:
        """How far a worker says that it has come."""
        if report.phase == pb.WorkerReport.FAILED and worker.stage not in (Stage.FAILED, Stage.REFUSED):
            self.changed = True
            self.fleet_changed = self.fleet_changed or worker.stage is Stage.TRAINING
            worker.stage = Stage.FAILED
            worker.problem = self.explain(worker.name, report.error) or "it gives no reason"
            self._out.warn(f"worker:{worker.name}", f"{worker.name} failed: {worker.problem}")
        elif (
            report.phase in HOLDS_MODEL
            and worker.stage in (Stage.PREPARING, Stage.FAILED)
            and self._out.directives.heard(worker.name, report.revision)
        ):
            self.changed = True
            worker.stage = Stage.READY
            worker.problem = ""
            self._out.clear(f"worker:{worker.name}")

    def explain(self, name: str, error: str) -> str:
        """What a device says went wrong. Where its model is another one, also whose the run's is."""
        if error.startswith(ANOTHER_MODEL) and self._seeder not in ("", name):
            return f"{error} (the run's is what {self._seeder} built; if no other agrees, mend that one)"
        return error

    def server_attends(self, agent: Agent) -> None:
        """This process holds the run's model from now on; what workers loaded, another held."""
        self.changed = True
        self.server.begin(agent.hello)
        self._seeder = ""
        for worker in self.workers.values():
            worker.stage_before_away = Stage.NEW
            if worker.stage in (Stage.PREPARING, Stage.READY):
                self._out.directives.drop(worker.name)
                worker.stage = Stage.NEW

    def server_resumes(self, agent: Agent, version: int) -> None:
        """It was restarted in training, and goes on from its checkpoint; `version`: the newest heard of."""
        self.changed = self.fleet_changed = True
        self.server.resume(agent.hello, max(version, self.server.report.version))
        for worker in self.workers.values():
            worker.recounted()

    def server_left(self) -> None:
        """Before training began: the next one that comes holds the model."""
        self.changed = True
        self.server = Server()

    # ---- what they are told -------------------------------------------------------------

    def enlist(self, *, begun: bool) -> None:
        """Tell who has come what to do: prepare, or that it can't take part. `begun`: training has."""
        self._fix_digest()
        for worker in self.workers.values():
            agent = self._members.get(worker.name)
            if worker.stage is not Stage.NEW or agent is None or agent.incarnation != worker.incarnation:
                continue
            worker.problem = unfit(agent.hello.tasks, self._settings.task.name, self.digest)
            if worker.problem:
                worker.stage = Stage.REFUSED
                self._out.warn(f"worker:{worker.name}", f"{worker.name} can't take part: {worker.problem}")
                self._out.directives.post(agent, self._words.refused(worker.problem))
            elif self.server.name:
                worker.stage = Stage.PREPARING
                self._out.clear(f"worker:{worker.name}")
                self._out.directives.post(agent, self._words.prepare(self.digest, may_seed=False))
        if not begun:
            self._choose_seeder()

    def _fix_digest(self) -> None:
        """The run's task is that of the first device which has it, unless the run names a digest."""
        if not self.digest:
            task = self._settings.task.name
            devices = (a for a in self._members if a.role != common.ROLE_PARAMETER_SERVER)
            self.digest = next((a.hello.tasks[task] for a in devices if task in a.hello.tasks), "")

    def _choose_seeder(self) -> None:
        """Exactly one worker may seed: the first by name, and another if that one can't any more.

        Also where the run starts from a file: the manifest is a worker's, the values are the file's.
        """
        if not self.server.name or self.server.seeded:
            return
        stages = {worker.name: worker.stage for worker in self.workers.values()}
        if Stage.READY in stages.values():  # it pulled the model, so there is one
            return
        able = sorted(name for name, stage in stages.items() if stage is Stage.PREPARING)
        if not able or self._seeder in able:
            return
        self._seeder = able[0]
        agent = self._members.get(self._seeder)
        assert agent is not None, "who prepares is a member"
        self._out.directives.post(agent, self._words.prepare(self.digest, may_seed=True))

    def admit_ready(self, at_s: float) -> list[Worker]:
        """Take all that are ready into the training, `at_s` seconds after it began."""
        ready = [worker for worker in self.workers.values() if worker.stage is Stage.READY]
        for worker in ready:
            worker.stage = Stage.TRAINING
            worker.joined_s = at_s
            self.fleet_changed = True
        return sorted(ready, key=lambda worker: worker.name)
