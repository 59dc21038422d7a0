"""Whatever devices report, every model goes on deciding."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.figures import LEAST_S, MOST, MOST_S, sound, sound_evaluation
from offbeat_scheduler.fleet import Worker
from offbeat_scheduler.models import make_model, models
from offbeat_scheduler.plan_check import check
from offbeat_scheduler.sync import Fleet, Loss
from support.virtual import run_settings

SYNCS = [
    *models(),
    {"adsp": {"search": "source"}},
    {"adsp": {"search": "formula", "overlap": False}},
    {"adsp": {"allocation": True}},
    {"adsp": {"allocation": True, "max_staleness": 2}},
]
NAMES = ("w1", "w2", "w3")

seconds = st.one_of(st.floats(0, 10), st.floats(), st.sampled_from([0.0, 5e-324, 1e-9, 1e9, 1e10]))
gradients = st.one_of(st.floats(0, 10), st.floats())
losses = st.one_of(st.floats(0, 10), st.floats(), st.sampled_from([0.0, 5e-324, 1e100, 1e101]))
figures = st.builds(
    pb.WorkerReport,
    train_loss=losses,
    step_s=seconds,
    commit_s=seconds,
    hold_s=seconds,
    pull_s=seconds,
    fetch_s=seconds,
    time=st.builds(pb.Shares, compute_s=seconds, paced_s=seconds, commit_s=seconds, wait_s=seconds),
    gradient_square=gradients,
    gradient_variance=gradients,
    gradient_pairs=st.integers(0, 20),
    max_batch=st.sampled_from([0, 1, 7, 4096]),
    shard_samples=st.sampled_from([1, 40, 500]),
)
moments = st.lists(
    st.tuples(st.sampled_from([0.1, 1.0, 3.0, 50.0]), losses, st.lists(figures, min_size=3, max_size=3)),
    min_size=1,
    max_size=15,
)


@pytest.mark.parametrize("sync", SYNCS, ids=str)
@given(moments=moments)
def test_every_model_decides_whatever_devices_report(sync, moments):
    run = run_settings(sync)
    model = make_model(run.sync, run)
    workers = {name: Worker(pb.Hello(name=name, incarnation="one")) for name in NAMES}
    now_s = 0.0
    for count, (passed_s, loss, reports) in enumerate(moments, 1):
        now_s += passed_s
        for worker, report in zip(workers.values(), reports, strict=True):
            report.steps, report.samples = 9 * count, 9 * 32 * count
            worker.take(report, now_s)
            worker.counted(pb.CommitCount(worker=worker.name, commits=2 * count, steps=9 * count))
        seen = sound_evaluation(pb.EvaluatorReport(loss=loss)).loss
        if math.isfinite(seen):
            model.observe(Loss(now_s, seen, 9 * count, "evaluator"))
        fleet = Fleet(now_s, {name: worker.device() for name, worker in workers.items()}, counted_at_s=now_s)
        check(model.decide(fleet), fleet)


@given(figures)
def test_what_can_be_stays_and_what_cannot_is_unknown(report):
    mended, said = sound(report)
    for name in ("step_s", "commit_s", "hold_s", "pull_s", "fetch_s"):
        before, after = getattr(report, name), getattr(mended, name)
        assert after == (max(before, LEAST_S) if 0 < before <= MOST_S else 0)
        assert (f"{name}: " in said.replace("time.commit_s", "")) == (not 0 <= before <= MOST_S)
    for name in ("compute_s", "paced_s", "commit_s", "wait_s"):
        before, after = getattr(report.time, name), getattr(mended.time, name)
        assert after == (before if 0 <= before <= MOST_S else 0)
        assert (f"time.{name}: " in said) == (not 0 <= before <= MOST_S)
    for name in ("gradient_square", "gradient_variance"):
        before, after = getattr(report, name), getattr(mended, name)
        assert after == (before if abs(before) <= MOST else 0)
    assert mended.max_batch == report.max_batch


@pytest.mark.parametrize(
    ("value", "seen"), [(1.5, 1.5), (-1e100, -1e100), (1e101, math.inf), (-1e300, -math.inf)]
)
def test_a_loss_beyond_all_bounds_is_infinite(value, seen):
    assert sound(pb.WorkerReport(train_loss=value))[0].train_loss == seen
    evaluation = sound_evaluation(pb.EvaluatorReport(loss=value, metric=value, version=3))
    assert (evaluation.loss, evaluation.metric, evaluation.version) == (seen, seen, 3)
    assert math.isnan(sound(pb.WorkerReport(train_loss=math.nan))[0].train_loss)
