"""What the evaluator reports is what a person would count."""

import asyncio
import logging
import threading
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.manifest import Manifest
from offbeat_worker.device import Device
from offbeat_worker.evaluator import EvaluatorAgent, HeldOut
from offbeat_worker.localrun import Site

TASK = """\
import torch
from torch import nn


def build_model():
    return nn.Linear(1, 2)


def load_data(shard, shards, split, folder, seed):
    x = torch.ones(360, 1)
    return torch.utils.data.TensorDataset(x, (torch.arange(360) < 342).long())


def loss_and_metric(model, batch):
    x, y = batch
    right = torch.ones_like(y) == y  # 342 of 360, whatever the model says
    return nn.functional.cross_entropy(model(x), y), right.float().mean()
"""


def test_342_of_360_are_095_and_not_a_hair_less_whatever_the_batch(tmp_path: Path) -> None:
    """A mean in float32 is 0.94999999, and a target of 0.95 would not be met by a model that meets it."""
    file = tmp_path / "counted.py"
    file.write_text(TASK)
    site = Site(0, 1, tmp_path, [file], torch.device("cpu"))
    for batch in (7, 64, 256, 360):
        held_out = HeldOut(site, pb.RunTask(name="counted"), 1, batch)
        vector = np.zeros(held_out.flat.manifest.elements, np.float32)
        found = held_out.evaluate(vector, threading.Event())
        assert found is not None
        assert found.metric == 342 / 360


HUNGRY = TASK.replace("def build_model", "FITS = 1000\n\n\ndef build_model").replace(
    "    right =", "    if len(x) > FITS:\n        torch.empty(10**15)\n    right ="
)


@pytest.mark.parametrize("when", ["tried", "evaluated"])
def test_where_memory_runs_out_it_evaluates_fewer_samples_at_a_time(
    tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hungry.py"
    file.write_text(HUNGRY.replace("1000", "50") if when == "tried" else HUNGRY)
    site = Site(0, 1, tmp_path, [file], torch.device("cpu"))
    held_out = HeldOut(site, pb.RunTask(name="hungry"), 1, 256)
    held_out._task.functions["loss_and_metric"].function.__globals__["FITS"] = 50
    vector = np.zeros(held_out.flat.manifest.elements, np.float32)
    found = [held_out.evaluate(vector, threading.Event()) for _ in range(2)]
    assert all(one is not None and one.metric == 342 / 360 for one in found)
    assert (
        caplog.text.count("memory ran out with 256 samples at a time: from now on there are at most 32") == 1
    )


class _Restarted:
    """A parameter server that is gone, and when it is back has no model yet."""

    def __init__(self) -> None:
        self._answers = iter(
            [(grpc.StatusCode.UNAVAILABLE, "gone"), (grpc.StatusCode.FAILED_PRECONDITION, "no model yet")]
        )

    async def pull(self, *_: object, **__: object) -> None:
        code, details = next(self._answers)
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_a_server_that_answers_is_back_also_while_it_has_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def pull() -> object:
        site = Site(0, 1, tmp_path, [], torch.device("cpu"))
        device = Device(torch.device("cpu"), "cpu", "", False, 1)
        agent = EvaluatorAgent(sc.Hello(name="e"), _Restarted(), "hub:1", site, device)  # type: ignore[arg-type]
        return await agent._pull("run", Manifest(()), None)

    with caplog.at_level(logging.INFO):
        assert asyncio.run(pull()) is None
    said = [record.getMessage() for record in caplog.records]
    assert "cannot be reached" in said[0]
    assert "is back" in said[1]
