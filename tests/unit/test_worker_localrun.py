"""One run on this device, without threads and network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat_core.errors import OffbeatError
from offbeat_worker.localrun import Cut, Fresh, LocalRun, Site
from offbeat_worker.noise import EVERY

torch.set_num_threads(1)

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def build_model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))

def load_data(shard, shards, split, folder, seed, size: int = 33):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(shard))
    return TensorDataset(x, x.sum(1, keepdim=True))

def loss_and_metric(model, batch):
    x, y = batch
    return (model(x) - y).square().mean(), 0.0
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "mine.py").write_text(TASK)
    return Site(0, 2, tmp_path, [tmp_path / "mine.py"], torch.device("cpu"))


def _run(site: Site, seed: int = 1, **options: str) -> LocalRun:
    run = LocalRun(site, "r", pb.RunTask(name="mine", options=options), seed, 8)
    run.load(run.initial(), 0)
    return run


def _directive(**fields: Any) -> pb.WorkerDirective:
    given: dict[str, Any] = {"batch": 8, "learning_rate": 0.01, "trigger": pb.Trigger(steps=3)}
    return pb.WorkerDirective(**(given | fields))


def _fresh(run: LocalRun, cut: Cut, outcome: int = ps.CommitAck.APPLIED) -> Fresh:
    return Fresh("r", cut.sequence, outcome, "", cut.sequence, run.initial())


def test_the_same_seed_builds_the_same_model_and_takes_the_same_steps(site: Site) -> None:
    runs = []
    for _ in range(2):
        run = _run(site)
        run.follow(_directive(), 0.0, 0.0)
        for _ in range(10):
            run.step()
        runs.append(run.initial())
        torch.randn(1)
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(_run(site, seed=2).initial(), _run(site, seed=1).initial())


def test_all_shards_build_the_same_model_and_take_chances_of_their_own(site: Site) -> None:
    other = Site(1, 2, site.folder, site.task_paths, site.device)
    first = _run(site)
    chances = [torch.rand(1).item()]
    second = _run(other)
    chances.append(torch.rand(1).item())
    assert np.array_equal(first.initial(), second.initial())
    assert chances[0] != chances[1]


def test_last_batch_of_one_sample_under_batch_norm_is_merged(site: Site) -> None:
    run = _run(site)  # 33 samples in batches of 8
    run.follow(_directive(), 0.0, 0.0)
    for _ in range(4):
        run.step()
    assert (run.steps, run.samples) == (4, 33)


def test_shard_smaller_than_a_batch_trains(site: Site) -> None:
    run = _run(site, size="5")
    run.follow(_directive(batch=32), 0.0, 0.0)
    run.step()
    run.step()
    assert (run.steps, run.samples) == (2, 10)


def test_empty_shard_says_so(site: Site) -> None:
    with pytest.raises(OffbeatError, match="load_data returned nothing"):
        _run(site, size="0")


def test_cut_says_what_is_in_it(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(generation=7), 0.0, 0.0)
    for _ in range(3):
        assert not run.due(0.0)
        run.step()
    assert run.due(0.0)
    cut = run.cut(0.0)
    assert (cut.sequence, cut.base_version, cut.generation, cut.steps, cut.samples) == (1, 0, 7, 3, 24)
    assert cut.train_loss > 0
    assert cut.vector.shape == (run.manifest.elements,)
    for _ in range(5):
        run.step()
    assert not run.due(0.0), "one commit at most is in flight"
    run.take(_fresh(run, cut))
    assert run.due(0.0)
    second = run.cut(0.0)
    assert (second.sequence, second.base_version, second.steps) == (2, 1, 5)
    assert run.report().commits == 1


def test_a_model_that_was_pulled_while_a_commit_is_on_its_way_is_not_taken(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(), 0.0, 0.0)
    run.step()
    cut = run.cut(0.0)
    pulled = Fresh("r", 0, 0, "", 9, run.initial())
    run.take(pulled)
    assert run.in_flight
    run.take(_fresh(run, cut))
    assert not run.in_flight
    run.step()
    run.take(pulled)
    assert run.version == 9
    assert run.report().commits == 1
    assert run.report().steps_since_pull == 1


def test_refused_commit_is_counted_and_training_goes_on_from_the_fresh_model(site: Site) -> None:
    run = _run(site)
    start = run.initial()
    run.follow(_directive(momentum=0.9), 0.0, 0.0)
    run.step()
    cut = run.cut(0.0)
    run.step()
    run.take(Fresh("r", cut.sequence, ps.CommitAck.REFUSED, "NaN in '0.weight'", 1, start))
    n = run.manifest.trainable_elements
    assert np.array_equal(run.initial()[:n], start[:n])
    assert (run.refused, run.dropped_steps, run.report().commits) == (1, 2, 0)


def test_directive_takes_effect_at_once(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(), 0.0, 0.0)
    run.step()
    run.follow(_directive(batch=16, learning_rate=0.0, samples=list(range(16)), revision=4), 0.0, 0.0)
    before = run.initial()
    run.step()
    n = run.manifest.trainable_elements
    assert np.array_equal(run.initial()[:n], before[:n])
    assert run.samples == 24
    assert run.cut(0.0).shard_samples == 16
    assert run.report().shard_samples == 33  # what it holds
    assert run.report().revision == 4


def test_an_update_in_two_halves_says_nothing_of_how_long_the_others_take(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(batch=8, gradient_noise=True), 0.0, 0.0)
    halved = []
    for _ in range(2 * EVERY + 3):
        run.step()
        halved.append(run.halved)
        run.timed(0.4 if run.halved else 0.2)
    assert [number for number, was in enumerate(halved, 1) if was] == [EVERY, 2 * EVERY]
    assert run.report().step_s == pytest.approx(0.2)
    assert run.report().gradient_pairs == 2


def test_emulated_slowness_goes_with_the_samples_of_an_update(site: Site) -> None:
    run = _run(site)  # 33 samples
    run.follow(_directive(batch=10), 0.0, 0.0)
    scales = []
    for seconds in (0.2, 0.2, 0.2, 0.06):
        run.step()
        scales.append(run.scale)
        run.timed(seconds)
    assert scales == pytest.approx([1.25, 1.25, 1.25, 0.375])  # the run's batch is 8
    assert run.report().step_s == pytest.approx(0.2)
    run.follow(_directive(batch=40), 0.0, 0.0)
    run.step()
    assert run.scale == 5.0  # a usual one, on such a device


def test_a_draw_is_of_the_shard_anew_for_each_generation_and_kept_within_one(site: Site) -> None:
    run = _run(site)

    def drawn(generation: int, **changes: Any) -> list[int]:
        run.follow(_directive(batch=40, draw=7, generation=generation, **changes), 0.0, 0.0)
        return sorted(run._order.next(40).tolist())

    first = drawn(1)
    assert len(first) == 7
    assert drawn(1, max_lone_steps=9) == first
    assert drawn(2) != first
    assert run.cut(0.0).shard_samples == 7
    run.follow(_directive(batch=40), 0.0, 0.0)
    assert len(run._order.next(40)) == 33


def test_grid_counts_from_the_moment_of_receipt_less_what_had_elapsed(site: Site) -> None:
    run = _run(site)
    grid = pb.Trigger(grid=pb.Grid(interval_s=10.0, elapsed_s=4.0))
    run.follow(_directive(trigger=grid), received_s=100.0, now_s=100.5)
    run.step()
    assert not run.due(105.9)
    assert run.due(106.0)


def test_passes_count_whole_passes_over_the_samples(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(trigger=pb.Trigger(passes=2)), 0.0, 0.0)
    while not run.due(0.0):
        run.step()
    cut = run.cut(0.0)
    assert cut.samples == 66


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"trigger": pb.Trigger()},
        {"trigger": pb.Trigger(steps=0)},
        {"trigger": pb.Trigger(grid=pb.Grid(interval_s=0.0))},
    ],
)
def test_directive_that_makes_no_sense_is_an_error(site: Site, wrong: dict[str, Any]) -> None:
    with pytest.raises(OffbeatError, match="directive"):
        _run(site).follow(_directive(**wrong), 0.0, 0.0)


def test_loss_that_is_not_finite_does_not_spoil_the_smoothed_one(site: Site) -> None:
    run = _run(site)
    run.follow(_directive(), 0.0, 0.0)
    run.step()
    whole = run.initial()
    with torch.no_grad():
        run.flat.parameters.fill_(torch.nan)
    run.step()
    run.load(whole, 1)
    run.step()
    report = run.report()
    assert report.train_loss > 0
    assert report.steps == 3


def test_another_digest_than_the_runs_is_refused(site: Site) -> None:
    with pytest.raises(OffbeatError, match="'mine' here has the digest"):
        LocalRun(site, "r", pb.RunTask(name="mine", digest="ab" * 32), 1)


def test_a_loss_that_is_no_number_is_reported_as_such_and_not_as_zero_or_as_it_was(site: Site) -> None:
    for steps_before in (0, 1):
        run = _run(site)
        run.follow(_directive(), 0.0, 0.0)
        assert run.report().train_loss == 0
        for _ in range(steps_before):
            run.step()
            assert math.isfinite(run.report().train_loss)
        run.load(np.full_like(run.initial(), np.nan), 1)
        run.step()
        assert math.isnan(run.report().train_loss)
