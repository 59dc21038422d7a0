"""Every synchronization model with real processes: unequal devices, and what makes the model that model.

What is asserted is what the parameter server counted, as its reports stand in the run's event log; and
each of these logs is fed again to fresh decision objects, which must decide the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.models import make_model
from offbeat_scheduler.replay import replay
from support.fleet import Fleet, Phase, of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS_S = {"worker-1": 0.16, "worker-2": 0.08, "worker-3": 0.04, "worker-4": 0.04}
SLOW, FAST = "worker-1", ("worker-3", "worker-4")

OWN_MODEL = """
from pydantic import Field

from offbeat_core.config import Settings
from offbeat_scheduler.sync import Fold, Plan, Steps, SyncModel


class ByName(SyncModel):
    '''The device with the highest name makes more local updates than the others.'''

    short_option = "more"

    class Options(Settings):
        more: int = Field(3, ge=1)

    def decide(self, fleet):
        last = max(fleet.devices, default="")
        return Plan(
            triggers={name: Steps(self.options.more if name == last else 1) for name in fleet.devices},
            fold=Fold(when="at_once"),
        )
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A hub with an evaluator and four unequal workers; the runs of this module follow one another there."""
    folder = tmp_path_factory.mktemp("models")
    own = folder / "models"
    own.mkdir()
    (own / "by_name.py").write_text(OWN_MODEL)
    with Fleet(folder, report_every_s=0.1) as fleet:
        fleet.start_scheduler(models=[own])
        fleet.start_server()
        for name in STEPS_S:
            _start(fleet, name)
        fleet.start_evaluator()
        yield fleet


def _start(fleet: Fleet, name: str) -> None:
    shard = list(STEPS_S).index(name)
    fleet.start_worker(name, shard=shard, shards=len(STEPS_S), step_seconds=STEPS_S[name])


@pytest.fixture
def fleet(hub: Fleet) -> Fleet:
    """No run is active, and everybody attends, whatever the test before has done."""
    hub.stop_run()
    for name in STEPS_S:
        if not hub.runs(name):
            _start(hub, name)
    hub.until(
        lambda s: s.evaluator_attached and s.parameter_server_attached and len(_attached(s)) == len(STEPS_S),
        "everybody attends",
    )
    return hub


def _attached(status: pb.Status) -> list[str]:
    return [worker.name for worker in status.workers if worker.attached]


class Trace:
    """A run's event log, while it trained.

    Attributes:
        counts: after each report of the parameter server, commits by device.
        steps: local updates in those commits, by device, at last.
        versions: (commits, version) after each of these reports.
        plans: in the order in which they were made.
        reports: each device's last one.
    """

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.counts: list[dict[str, int]] = []
        self.steps: dict[str, int] = {}
        self.samples: dict[str, int] = {}
        self.versions: list[tuple[int, int]] = []
        self.plans: list[dict[str, Any]] = []
        self.reports: dict[str, dict[str, Any]] = {}
        now: dict[str, int] = {}
        for line in lines:
            report = line.get("report", {})
            if line.get("decision") == "PhaseChanged" and line["phase"] == "finishing":
                break
            if line.get("decision") == "PlanMade":
                self.plans.append(line["plan"])
            elif line.get("event") == "WorkerReported" and report.get("steps"):
                self.reports[line["name"]] = report
            elif line.get("event") == "ServerReported" and report.get("counts"):
                for count in report["counts"]:
                    now[count["worker"]] = count.get("commits", 0)
                    self.steps[count["worker"]] = count.get("steps", 0)
                    self.samples[count["worker"]] = count.get("samples", 0)
                self.counts.append(dict(now))
                self.versions.append((report.get("commits", 0), report.get("version", 0)))

    @property
    def commits(self) -> dict[str, int]:
        return self.counts[-1]

    def spreads(self, *names: str) -> list[int]:
        """How far the first was ahead of the last, after each report in which all had committed."""
        names = names or tuple(STEPS_S)
        whole = [[counts[name] for name in names] for counts in self.counts if set(names) <= counts.keys()]
        return [max(found) - min(found) for found in whole]

    def wait_share(self, name: str) -> float:
        seconds = self.reports[name]["time"]
        return float(seconds.get("wait_s", 0.0) / sum(seconds.values()))

    def taus(self) -> list[int]:
        """Local updates a commit as the plans said it, where it is the same for all."""
        return [
            steps for plan in self.plans for steps in {t["Steps"]["steps"] for t in plan["triggers"].values()}
        ]


def _submit(fleet: Fleet, sync: object, **values: Any) -> str:
    training = {"batch": 16, "learning_rate": 0.1, **values.pop("training", {})}
    return fleet.submit(workers=len(STEPS_S), task="digits", sync=sync, training=training, **values)


def _run(fleet: Fleet, sync: object, seconds: float = 4, **values: Any) -> Trace:
    """Train for so many seconds."""
    run_id = _submit(fleet, sync, limits={"seconds": seconds}, **values)
    status = fleet.until(lambda s: s.run_id == run_id and s.phase == Phase.IDLE, "the run ends")
    assert status.outcome == pb.Status.LIMIT, status.message
    return _ended(fleet, run_id)


def _ended(fleet: Fleet, run_id: str) -> Trace:
    """The log of a run that is over; it replays to the same decisions."""
    path = fleet.folder / "scheduler" / run_id / "events.jsonl"
    own = partial(make_model, own_files=[fleet.folder / "models"])
    steps = 0
    with path.open(encoding="utf-8") as lines:
        for step in replay(lines, own):
            assert step.recorded == step.replayed, step.event
            steps += 1
    assert steps > 50
    return Trace([json.loads(line) for line in path.read_text().splitlines()])


# ---- what makes each model that model ------------------------------------------------------


def test_bsp_keeps_all_at_one_step(fleet: Fleet) -> None:
    trace = _run(fleet, "bsp")
    assert max(trace.spreads()) <= 1
    assert trace.steps == trace.commits
    assert min(trace.commits.values()) >= 8
    assert trace.wait_share(FAST[0]) > 0.5 > trace.wait_share(SLOW)


def test_ssp_lets_nobody_be_further_ahead_than_its_staleness(fleet: Fleet) -> None:
    spreads = (trace := _run(fleet, "ssp:3")).spreads()
    assert max(spreads) <= 4  # the fourth waits for its reply
    assert max(spreads) >= 3, "the fast ones are ahead"
    assert trace.steps == trace.commits


def test_asp_lets_everybody_commit_each_step(fleet: Fleet) -> None:
    trace = _run(fleet, "asp")
    assert trace.steps == trace.commits
    assert max(trace.spreads()) > 15
    assert min(trace.commits[name] for name in FAST) > 2 * trace.commits[SLOW]
    assert all(version == commits for commits, version in trace.versions)


@pytest.mark.parametrize("name", ["fixed-adacomm", "local-sgd"])
def test_fixed_adacomm_commits_after_tau_steps(fleet: Fleet, name: str) -> None:
    trace = _run(fleet, f"{name}:4")
    assert max(trace.spreads()) <= 1
    assert trace.steps == {device: 4 * commits for device, commits in trace.commits.items()}
    assert min(trace.commits.values()) >= 2


def test_adacomm_commits_more_often_as_the_loss_falls(fleet: Fleet) -> None:
    trace = _run(fleet, {"adacomm": {"tau0": 12}}, seconds=8, check_period_s=1.5)
    taus = trace.taus()
    assert taus[0] == 12
    assert taus == sorted(taus, reverse=True)
    assert taus[-1] < 12
    assert max(trace.spreads()) <= 1
    for device, commits in trace.commits.items():
        assert min(taus) * commits <= trace.steps[device] <= 12 * commits


@pytest.mark.parametrize(("sync", "tau"), [("batchtune-bsp", 1), ("batchtune-fixed-adacomm:3", 3)])
def test_batchtune_gives_batches_by_speed(fleet: Fleet, sync: str, tau: int) -> None:
    trace = _run(fleet, sync, seconds=8, check_period_s=2)
    batches = trace.plans[-1]["batches"]
    assert sum(batches.values()) == 16 * len(STEPS_S)
    assert batches[SLOW] < batches["worker-2"] < min(batches[name] for name in FAST)
    assert max(trace.spreads()) <= 1
    assert trace.steps == {device: tau * commits for device, commits in trace.commits.items()}
    assert trace.samples[SLOW] < trace.samples["worker-2"] < min(trace.samples[name] for name in FAST)


def test_fedavg_trains_a_fraction_in_each_round(fleet: Fleet) -> None:
    trace = _run(fleet, {"fedavg": {"fraction": 0.5, "tau": 2}}, seconds=6)
    rounds: dict[int, set[str]] = {}
    for plan in trace.plans:
        rounds.setdefault(plan["round"], set()).update(plan["triggers"])
        assert set(plan["resting"]) == set(STEPS_S) - set(plan["triggers"])
    assert all(len(drawn) == 2 for drawn in rounds.values()), rounds
    assert len(rounds) >= 6
    taken = {name: sum(name in drawn for drawn in rounds.values()) for name in STEPS_S}
    for name, commits in trace.commits.items():
        assert taken[name] - 1 <= commits <= taken[name], "one commit in each of its rounds"
        assert trace.steps[name] == 2 * commits
    assert all(0 <= commits - 2 * version <= 1 for commits, version in trace.versions), "two make a round"


def test_fedbuff_folds_every_k_commits(fleet: Fleet) -> None:
    trace = _run(fleet, {"fedbuff": {"k": 3, "tau": 2}})
    assert trace.steps == {device: 2 * commits for device, commits in trace.commits.items()}
    assert all(version == commits // 3 for commits, version in trace.versions)
    assert min(trace.commits[name] for name in FAST) > 2 * trace.commits[SLOW], "nobody waits"


def test_fedcompass_lets_devices_of_like_speed_arrive_together(fleet: Fleet) -> None:
    trace = _run(fleet, {"fedcompass": {"min_steps": 3, "max_steps": 8}}, seconds=8, check_period_s=2)
    plan = trace.plans[-1]
    groups = [set(group["members"]) for group in plan["groups"]]
    assert sorted(name for group in groups for name in group) == sorted(STEPS_S)
    assert len(groups) == 2
    assert {SLOW} in groups
    steps = {name: trigger["Steps"]["steps"] for name, trigger in plan["triggers"].items()}
    assert 3 <= steps["worker-2"] < steps[FAST[0]] <= 8
    assert trace.commits[SLOW] < min(trace.commits[name] for name in FAST)


def test_adsp_lets_all_commit_equally_often_and_nobody_wait(fleet: Fleet) -> None:
    trace = _run(fleet, {"adsp": {"rate": 4}}, seconds=6, check_period_s=2)
    assert max(trace.spreads()) <= 2
    assert trace.steps[FAST[0]] > 2 * trace.steps[SLOW]
    assert max(trace.wait_share(name) for name in STEPS_S) < 0.05


def test_a_model_in_a_file_of_the_users_own(fleet: Fleet) -> None:
    trace = _run(fleet, "by_name.py:ByName:5")
    tau = {name: 5 if name == "worker-4" else 1 for name in STEPS_S}
    assert trace.steps == {name: tau[name] * commits for name, commits in trace.commits.items()}


# ---- devices that die, and devices that join ------------------------------------------------

MODELS_THAT_WAIT = {
    "bsp": "bsp",
    "fedavg": {"fedavg": {"tau": 2}},
    "fedcompass": {"fedcompass": {"min_steps": 3, "max_steps": 8}},
}


@pytest.mark.parametrize("sync", MODELS_THAT_WAIT.values(), ids=MODELS_THAT_WAIT)
def test_who_is_killed_stalls_nobody_and_who_comes_takes_part(fleet: Fleet, sync: object) -> None:
    victim, others = "worker-3", ("worker-1", "worker-2", "worker-4")
    run_id = _submit(fleet, sync, check_period_s=2)
    fleet.until_commits(2, *STEPS_S)
    fleet.kill(victim)
    fleet.until(lambda s: victim not in _attached(s), "its leaving is noticed")
    fleet.until_commits(4, *others)
    _start(fleet, victim)
    fleet.until_commits(3, *STEPS_S)
    status = fleet.stop_run()
    assert status.outcome == pb.Status.STOPPED
    trace = _ended(fleet, run_id)
    assert of(status, victim).commits < max(trace.commits[name] for name in others)


def test_a_worker_that_is_killed_in_its_round_does_not_hold_it_up(fleet: Fleet) -> None:
    """A round of one: nobody is left in it, so that no gate can close it."""
    run_id = _submit(fleet, {"fedavg": {"fraction": 0.25, "tau": 40}})
    fleet.until(lambda s: s.phase == Phase.TRAINING, "it trains")
    path = fleet.folder / "scheduler" / run_id / "events.jsonl"
    plans = Trace([json.loads(line) for line in path.read_text().splitlines()]).plans
    (drawn,) = plans[-1]["triggers"]
    fleet.kill(drawn)
    fleet.until_commits(1)
    fleet.stop_run()
    _ended(fleet, run_id)
