"""Memory that runs out: the run goes on with fewer samples at a time, and loses none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import common_pb2 as pb
from offbeat_core.errors import OffbeatError
from offbeat_worker.localrun import LocalRun, Site
from offbeat_worker.memory import Fit, ran_out
from offbeat_worker.noise import EVERY

SIZE = 40

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

FITS, BACK, SEEN = 1000, False, []


class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + torch.empty(10**15).sum()


def build_model():
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    model.other = nn.Parameter(torch.zeros(2))
    return model

def load_data(split):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(40))

def loss_and_metric(model, batch):
    x, y, number = batch
    made = model(x)
    if len(x) > FITS:
        if not BACK:
            torch.empty(10**15)
        loss = (Hungry.apply(made) - y).square().mean()
        return loss + model.other.sum(), 0.0  # of which the gradient is there before memory runs out
    SEEN.extend(number.tolist())
    return (made - y).square().mean(), 0.0
"""


def allocation_failure() -> Exception:
    """What torch really raises on a CPU."""
    try:
        torch.empty(10**15)
    except RuntimeError as error:
        return error
    raise AssertionError("so much memory there is not")


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    "error",
    [
        allocation_failure(),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError("Unable to allocate 7.11 PiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        caused(OffbeatError("mine.py:3: loss_and_metric: RuntimeError", "correct it"), allocation_failure()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_says_that_memory_ran_out(error: Exception) -> None:
    assert ran_out(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("out of memory"),
        caused(OffbeatError("a", "b"), RuntimeError("x")),
        None,
    ],
    ids=str,
)
def test_what_does_not(error: Exception | None) -> None:
    assert not ran_out(error)


@given(batch=st.integers(1, 5000), fits=st.integers(1, 5000), bound=st.integers(0, 5000))
def test_the_batch_is_halved_until_it_fits_and_what_did_not_fit_is_not_tried_again(
    batch: int, fits: int, bound: int
) -> None:
    fit = Fit(bound)
    tried: list[int] = []
    cleared: list[int] = []

    def attempt(samples: int) -> str:
        tried.append(samples)
        if samples > fits:
            raise MemoryError
        return f"{samples} done"

    found = fit.within(batch, attempt, lambda: cleared.append(1))
    assert found == f"{tried[-1]} done"
    assert tried[0] == (min(batch, bound) if bound else batch)
    assert all(after == before // 2 for before, after in pairwise(tried))
    assert len(cleared) == len(tried) - 1
    count = len(tried)
    fit.within(batch, attempt, lambda: cleared.append(1))
    assert len(tried) == count + 1
    assert fit.bound == (tried[-1] if count > 1 else bound)


def test_what_else_goes_wrong_changes_no_bound() -> None:
    fit = Fit()
    with pytest.raises(ZeroDivisionError):
        fit.within(8, lambda samples: samples // 0, lambda: None)
    assert fit.bound == 0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "mine.py").write_text(TASK)
    return Site(0, 1, tmp_path, [tmp_path / "mine.py"], torch.device("cpu"))


Start = Callable[..., tuple[LocalRun, dict[str, Any]]]


@pytest.fixture
def start(site: Site) -> Start:
    """A run that trains with batches of 16, and the names in its task's file."""

    def made(batch: int = 16, max_batch: int = 0, **fields: Any) -> tuple[LocalRun, dict[str, Any]]:
        place = Site(site.shard, site.shards, site.folder, site.task_paths, site.device, max_batch)
        run = LocalRun(place, "r", pb.RunTask(name="mine"), 1, batch)
        run.load(run.initial(), 0)
        names = run._task.functions["loss_and_metric"].function.__globals__
        names["SEEN"].clear()
        run.follow(
            pb.WorkerDirective(batch=batch, learning_rate=0.01, trigger=pb.Trigger(steps=3), **fields), 0, 0
        )
        return run, names

    return made


def one_pass(run: LocalRun) -> None:
    while run.samples < SIZE:
        run.step()


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("noise", [False, True])
def test_no_sample_is_lost_and_each_counts_once(
    start: Start, in_backward: bool, noise: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run, names = start(gradient_noise=noise)
    run.step()
    assert (run.samples, run.report().max_batch) == (16, 0)
    names.update(FITS=5, BACK=in_backward)
    with caplog.at_level(logging.WARNING):
        one_pass(run)
    assert sorted(names["SEEN"]) == list(range(SIZE))
    assert (run.samples, run.steps) == (SIZE, 1 + 24 // 4)
    assert run.report().max_batch == run.batch == 4
    assert len(caplog.records) == 1
    assert "16 samples at a time: from now on there are at most 4 here" in caplog.text
    cut = run.cut(0.0)
    assert (cut.steps, cut.samples) == (run.steps, run.samples)


@pytest.mark.parametrize("in_backward", [False, True])
def test_what_failed_leaves_nothing_in_the_gradient(start: Start, in_backward: bool) -> None:
    weights = []
    for fits in (1000, 8):
        run, names = start(8 if fits == 1000 else 16)
        names.update(FITS=fits, BACK=in_backward)
        run.step()
        weights.append(run.initial())
    assert np.array_equal(*weights), "the first 8 of 16 samples, as in an update of 8"


@pytest.mark.parametrize("in_backward", [False, True])
def test_memory_that_runs_out_in_one_half_of_a_batch_costs_no_sample_and_no_pair(
    start: Start, in_backward: bool
) -> None:
    run, names = start(8, gradient_noise=True)
    for _ in range(EVERY - 1):
        run.step()
    names["SEEN"].clear()
    names.update(FITS=2, BACK=in_backward)
    begun = run.samples
    while run.samples < begun + SIZE:
        run.step()
    assert run.batch == 2, "halves of 4 did not fit, nor 4 whole: those are halved no more"
    assert run.report().gradient_pairs == 1


@pytest.mark.parametrize("in_backward", [False, True])
def test_what_the_first_half_has_left_is_gone_where_the_second_does_not_fit(
    start: Start, in_backward: bool
) -> None:
    weights, pairs = [], []
    for fits in (1000, 2):
        run, names = start(5, gradient_noise=True)
        for _ in range(EVERY - 1):
            run.step()
        names.update(FITS=fits, BACK=in_backward)
        if fits == 1000:
            run.follow(pb.WorkerDirective(batch=2, learning_rate=0.01, trigger=pb.Trigger(steps=3)), 0, 0)
        run.step()  # in halves of 2 and 3 samples; then of 2, as the other one does at once
        weights.append(run.initial())
        pairs.append(run.report().gradient_pairs)
    assert np.array_equal(*weights)
    assert pairs == [0, 0]


def test_a_single_sample_that_does_not_fit_ends_the_run_with_a_clear_word(start: Start) -> None:
    run, names = start()
    names["FITS"] = 0
    with pytest.raises(OffbeatError, match=r"a single sample does not fit: .*can't allocate memory"):
        run.step()


def test_a_bound_that_is_configured_holds_from_the_first_update_on(start: Start) -> None:
    run, names = start(max_batch=6)
    one_pass(run)
    assert sorted(names["SEEN"]) == list(range(SIZE))
    assert run.steps == 7
    assert run.report().max_batch == 6


def test_a_batch_that_does_not_fit_when_the_task_is_tried_is_halved_too(site: Site) -> None:
    path = site.task_paths[0]
    path.write_text(path.read_text().replace("FITS, BACK, SEEN = 1000", "FITS, BACK, SEEN = 9"))
    run = LocalRun(site, "r", pb.RunTask(name="mine"), 1, 32)
    assert run.report().max_batch == 8


def test_a_plan_with_more_than_fits_is_followed_as_far_as_it_fits(start: Start) -> None:
    run, names = start()
    run.step()
    run.timed(0.6)
    names["FITS"] = 8
    run.step()
    run.timed(1.0)  # it was computed twice: that says nothing
    assert run.report().step_s == pytest.approx(0.3)
    assert run.scale == 0.5
    run.follow(pb.WorkerDirective(batch=64, learning_rate=0.01, trigger=pb.Trigger(steps=3)), 0, 0)
    assert run.report().step_s == pytest.approx(0.3), "its updates have as many samples as before"
    before = run.samples
    run.step()
    assert run.samples - before == 8
    run.follow(pb.WorkerDirective(batch=4, learning_rate=0.01, trigger=pb.Trigger(steps=3)), 0, 0)
    assert run.report().step_s == pytest.approx(0.15)
    before = run.samples
    run.step()
    assert run.samples - before == 4
    assert run.report().max_batch == 8
