"""A run as it is submitted, and the small parts that decisions are made of."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.errors import OffbeatError
from offbeat_scheduler import metrics
from offbeat_scheduler.history import Thinned
from offbeat_scheduler.models import make_model, models
from offbeat_scheduler.submission import make_run_id, read_run, read_run_file
from offbeat_scheduler.timing import since
from support.scheduler_world import World

W = pb.WorkerReport


@pytest.mark.parametrize(
    "sync",
    [
        *sorted(models()),
        "{adsp: {rate: 4}}",
        "{adsp: {search: source}}",
        "{adsp: {search: formula}}",
        "local-sgd:8",
    ],
)
def test_the_effective_settings_of_a_run_can_be_submitted_again_and_mean_the_same(sync):
    first = read_run(f"task: digits\nsync: {sync}\n", make_model)
    second = read_run(first.effective_yaml, make_model)
    assert second.effective_yaml == first.effective_yaml
    one = make_model(first.settings.sync, first.settings)
    other = make_model(second.settings.sync, second.settings)
    assert type(one) is type(other)
    assert one.options == other.options


def test_effective_settings_show_the_models_defaults():
    assert "search: robust" in read_run("task: digits\n", make_model).effective_yaml


def test_a_run_file_is_named_in_what_is_wrong_with_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("task: digits\nwokers: 3\n")
    with pytest.raises(OffbeatError, match=r"mine\.yaml: wokers: unknown key\ndid you mean 'workers'"):
        read_run_file(path, make_model)


def test_ids_of_runs_with_one_name_differ():
    chance = random.Random(1)
    ids = {make_run_id("mine", chance) for _ in range(100)}
    assert len(ids) == 100
    assert all(run_id.startswith("mine-") for run_id in ids)


def test_no_time_is_minus_zero():
    assert str(since(1.0, 1.0 - 1e-9)) == "0.0"
    assert since(10.0, 7.25) == -2.75


@given(st.integers(2, 20), st.integers(0, 300))
def test_a_thinned_history_is_bounded_in_order_and_spans_everything(limit, count):
    history = Thinned(limit)
    for number in range(count):
        history.add(number)
    items = history.items()
    assert len(items) <= limit
    assert items == sorted(set(items))
    assert len(history) == count
    if count:
        assert (items[0], items[-1]) == (0, count - 1)
        gaps = [b - a for a, b in itertools.pairwise(items)]
        assert max(gaps, default=0) <= max(1, 4 * count / limit)


def test_metrics_follow_the_run_and_each_workers_reports():
    world = World()
    ps, evaluator, (w1, _) = world.training(2, target={"accuracy": 0.9})
    w1.say(steps=40, samples=1280, step_s=0.05, commit_s=0.3, train_loss=1.5, time={"compute_s": 3.0})
    ps.say(commits=5, counts=[pb.CommitCount(worker="w1", commits=4, staleness=2)])
    evaluator.evaluate(2, 0.7, 0.8)

    def samples():
        found = metrics.families(world.status())
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in found
            for sample in family.samples
        }

    shown = samples()
    assert shown["offbeat_phase", ("phase", "training")] == 1
    assert sum(value for name, value in shown.items() if name[0] == "offbeat_phase") == 1
    assert shown["offbeat_run_commits_total",] == 5
    assert shown["offbeat_loss",] == pytest.approx(0.7)
    assert shown["offbeat_metric",] == pytest.approx(0.8)
    assert shown["offbeat_commit_interval_seconds",] == 2.0
    assert shown["offbeat_worker_steps_total", ("worker", "w1")] == 40
    assert shown["offbeat_worker_commits_total", ("worker", "w1")] == 4
    assert shown["offbeat_worker_staleness", ("worker", "w1")] == 2
    assert shown["offbeat_worker_commit_seconds", ("worker", "w1")] == pytest.approx(0.3)
    assert shown["offbeat_worker_time_seconds_total", ("share", "compute"), ("worker", "w1")] == 3.0
    assert shown["offbeat_probes",] == 0
    w1.leave()
    assert not [key for key in samples() if ("worker", "w1") in key]


def test_metric_names_are_words_of_one_kind_and_labels_come_from_closed_sets():
    world = World()
    world.training(2)
    for family in metrics.families(world.status()):
        assert family.name.startswith("offbeat_")
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= {"worker", "share", "phase", "run_id", "name", "sync", "target"}


def test_histories_and_warnings_stay_bounded_over_a_long_run():
    world = World()
    _, evaluator, _ = world.training(1)
    for version in range(2, 2500):
        evaluator.evaluate(version, 1.0 / version)
        if version % 10 == 0:
            world.agent("worker", f"x{version}", tasks={}).join().leave()
    status = world.status()
    assert len(status.evaluations) <= 1000
    assert status.evaluations[0].version == 2
    assert status.evaluations[-1].version == 2499
    assert len(status.warnings) <= 50
    assert [worker.name for worker in status.workers] == ["w1"]
