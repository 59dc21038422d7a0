"""A learner that holds no data: it trains on what it is dealt, and never holds more than that."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat_core.errors import OffbeatError
from offbeat_core.samples import Field, Layout
from offbeat_worker.localrun import Fresh, LocalRun, Site
from offbeat_worker.supply import Given, Wanted

TASK = """
import torch
from torch import nn

SEEN = []

def build_model():
    return nn.Linear(2, 1, bias=False)

def load_data(split, folder):
    raise RuntimeError("there is no data here")

def loss_and_metric(model, batch):
    x, number = batch
    SEEN.extend(number.tolist())
    return model(x).mean(), 0.0
"""

FIELDS = (Field("x", "float32", (2,)), Field("number", "int64", ()))


@pytest.fixture
def run(tmp_path: Path) -> LocalRun:
    (tmp_path / "mine.py").write_text(TASK)
    site = Site(0, 1, tmp_path, [tmp_path / "mine.py"], torch.device("cpu"))
    run = LocalRun(site, "r", pb.RunTask(name="mine"), 1, 4, parallelized=True)
    run.load(run.initial(), 0)
    return run


def directive(generation: int, draw: int, passes: int = 2, **fields: Any) -> pb.WorkerDirective:
    given: dict[str, Any] = {"batch": 4, "learning_rate": 0.01, "once": True, "parallelized": True}
    return pb.WorkerDirective(
        generation=generation, draw=draw, trigger=pb.Trigger(passes=passes), **(given | fields)
    )


def samples(generation: int, numbers: list[int]) -> Given:
    layout = Layout(FIELDS, len(numbers))
    data = np.zeros(layout.total_bytes, np.uint8)
    x, number = layout.arrays(data)
    x[:] = np.arange(2 * len(numbers)).reshape(-1, 2)
    number[:] = numbers
    return Given("r", generation, layout, data)


def seen(run: LocalRun) -> list[int]:
    """The samples of the local updates since the last look."""
    numbers = run._task.functions["loss_and_metric"].function.__globals__["SEEN"]
    found = list(numbers)
    numbers.clear()
    return found


def until_due(run: LocalRun) -> int:
    steps = 0
    while not run.due(0.0):
        run.step()
        steps += 1
    return steps


def committed(run: LocalRun) -> Any:
    cut = run.cut(0.0)
    run.take(Fresh("r", cut.sequence, ps.CommitAck.APPLIED, "", cut.sequence, run.initial()))
    return cut


def test_it_asks_once_and_trains_its_passes_over_what_comes(run: LocalRun) -> None:
    assert not run.supplied
    run.follow(directive(1, 6), 0.0, 0.0)
    assert run.wish() == Wanted("r", 1, 6)
    assert run.wish() is None
    run.follow(directive(1, 6, learning_rate=0.02), 0.0, 0.0)  # the same deal, said again
    assert run.wish() is None
    run.give(samples(1, [10, 11, 12, 13, 14, 15]))
    assert run.supplied
    seen(run)  # one batch was tried
    assert until_due(run) == 4
    assert sorted(seen(run)) == sorted(2 * [10, 11, 12, 13, 14, 15])
    cut = committed(run)
    assert (cut.samples, cut.shard_samples, cut.generation) == (12, 6, 1)
    assert run.rests
    run.follow(directive(1, 6), 0.0, 0.0)
    assert run.wish() is None, "it has made its commit of this generation"


def test_it_lets_go_of_what_it_has_before_it_asks_for_more(run: LocalRun) -> None:
    held: Callable[[], Any] = list  # called: what is left of the last generation's samples
    for generation, numbers in ((1, [1, 2, 3, 4, 5]), (2, [6, 7, 8]), (3, [9, 10, 11, 12, 13, 14])):
        run.follow(directive(generation, len(numbers)), 0.0, 0.0)
        wanted = run.wish()
        assert wanted is not None
        gc.collect()
        if generation > 1:
            assert held() is None, "the last generation's samples are gone"
        given = samples(generation, numbers)
        held = weakref.ref(given.data)
        run.give(given)
        del given
        assert run.report().shard_samples == len(numbers)
        until_due(run)
        assert set(seen(run)[4:]) <= set(numbers)
        committed(run)
    run.release()
    gc.collect()
    assert held() is None


def test_who_is_late_goes_on_with_the_passes_that_it_has_made_over_the_new_samples(run: LocalRun) -> None:
    run.follow(directive(1, 4, passes=3), 0.0, 0.0)
    run.wish()
    run.give(samples(1, [0, 1, 2, 3]))
    for _ in range(2):  # passes
        run.step()
    seen(run)
    run.follow(directive(2, 8, passes=3), 0.0, 0.0)
    assert not run.supplied
    assert not run.due(0.0)
    assert run.wish() == Wanted("r", 2, 8)
    run.give(samples(2, list(range(20, 28))))
    assert until_due(run) == 2, "the third pass"
    assert sorted(seen(run)) == list(range(20, 28))
    cut = committed(run)
    assert (cut.generation, cut.steps, cut.samples, cut.shard_samples) == (2, 4, 16, 8)


def test_who_is_late_and_has_made_enough_passes_commits_without_the_new_samples(run: LocalRun) -> None:
    run.follow(directive(1, 4, passes=3), 0.0, 0.0)
    run.wish()
    run.give(samples(1, [0, 1, 2, 3]))
    run.step()
    run.step()
    run.follow(directive(2, 8, passes=2), 0.0, 0.0)
    assert run.due(0.0)
    assert committed(run).generation == 2
    assert run.rests


def test_samples_of_another_generation_or_after_a_rest_are_dropped(run: LocalRun) -> None:
    run.follow(directive(1, 4), 0.0, 0.0)
    run.wish()
    run.follow(directive(2, 4), 0.0, 0.0)
    run.give(samples(1, [0, 1, 2, 3]))
    assert not run.supplied
    run.release()
    run.give(samples(2, [0, 1, 2, 3]))
    assert not run.supplied
    run.follow(directive(2, 4), 0.0, 0.0)
    assert run.wish() == Wanted("r", 2, 4), "asked anew after a rest"


def test_a_directive_that_deals_nothing_is_an_error(run: LocalRun) -> None:
    with pytest.raises(OffbeatError, match="draw: no samples are dealt"):
        run.follow(directive(1, 0), 0.0, 0.0)


def test_samples_that_the_task_can_not_train_on_are_an_error_that_names_the_task(run: LocalRun) -> None:
    run.follow(directive(1, 4), 0.0, 0.0)
    run.wish()
    layout = Layout((Field("x", "float32", (3,)), FIELDS[1]), 4)
    with pytest.raises(OffbeatError, match=r"mine\.py.*mat1 and mat2"):
        run.give(Given("r", 1, layout, np.zeros(layout.total_bytes, np.uint8)))


def test_each_dtype_becomes_the_tensor_that_it_was() -> None:
    from offbeat_core.samples import STORAGE
    from offbeat_worker.supply import Supply

    fields = tuple(Field(name, name, (3,)) for name in STORAGE)
    layout = Layout(fields, 2)
    data = np.zeros(layout.total_bytes, np.uint8)
    tensors = [torch.tensor([[0, 1, 0], [1, 1, 0]]).to(getattr(torch, name)) for name in STORAGE]
    for array, tensor in zip(layout.arrays(data), tensors, strict=True):
        array[:] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    supply = Supply("r")
    supply.follow(1, 2)
    dataset = supply.take(Given("r", 1, layout, data))
    assert dataset is not None
    for tensor, got in zip(tensors, dataset.tensors, strict=True):
        assert got.dtype is tensor.dtype
        assert torch.equal(got, tensor)
