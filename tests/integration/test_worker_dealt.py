"""A worker without data: it fetches what it is dealt, whatever the server and the network do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_worker import bulk
from support.worker_hub import TASK, FakeServer, Hub

W = sc.WorkerReport
Play = Callable[..., None]

# A local update over x moves the weights by the mean of x: the update shows which samples were trained on.
DEALT = """
from torch import nn

def build_model():
    return nn.Linear(3, 1, bias=False)

def load_data(split, folder):
    raise RuntimeError("this device has no data")

def loss_and_metric(model, batch):
    x, label = batch
    return model(x).mean(), 0.0
"""
RATE = 0.5


def samples(*numbers: int) -> list[np.ndarray]:
    labels = np.array(numbers, "<i8")
    return [np.stack([labels, labels**2, labels**3], axis=1).astype("<f4"), labels]


def deal(hub: Hub, generation: int, *numbers: int, **fields: Any) -> None:
    """Tell the worker to make one pass over these samples, in one batch."""
    hub.server.dealt[generation] = samples(*numbers)
    tell(hub, generation, len(numbers), **fields)


def tell(hub: Hub, generation: int, count: int, **fields: Any) -> None:
    given = {"trigger": pb.Trigger(passes=1), "batch": 64, "learning_rate": RATE, "overlap": False}
    hub.train(generation=generation, draw=count, once=True, parallelized=True, **(given | fields))


async def ready(hub: Hub) -> None:
    hub.prepare(parallelized=True)
    await hub.phase(W.READY)


async def committed(hub: Hub, commits: int) -> None:
    await hub.until(lambda: len(hub.server.applied) >= commits, f"commit {commits}")


def trained_on(hub: Hub, *numbers: int) -> bool:
    """Was the last update made on these samples, and no others?"""
    return np.allclose(hub.server.updates[-1], RATE * samples(*numbers)[0].mean(axis=0), rtol=1e-4)


def holds(hub: Hub) -> bool:
    trainer = hub.station._trainer
    assert trainer is not None
    run = trainer._run
    return run is not None and run._supply is not None and run._supply.dataset is not None


def test_it_trains_on_the_samples_of_each_generation_and_loads_none_itself(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        held: list[bool] = []
        hub.server.on_ask = lambda: held.append(holds(hub))
        await ready(hub)
        assert hub.scheduler.worker.shard_samples == 0
        deal(hub, 1, 1, 2, 3)
        await committed(hub, 1)
        assert trained_on(hub, 1, 2, 3)
        deal(hub, 2, 4, 5, 6, 7, 8)
        await committed(hub, 2)
        assert trained_on(hub, 4, 5, 6, 7, 8)
        header = hub.server.applied[-1]
        assert (header.samples, header.shard_samples, header.generation) == (5, 5, 2)
        await hub.until(lambda: hub.scheduler.worker.fetched_samples == 8, "figures")
        assert hub.scheduler.worker.fetch_s > 0
        assert [request.generation for request in hub.server.asked] == [1, 2]
        assert held == [False, False], "what it held was let go before it asked"
        hub.rest(parallelized=True)
        await hub.until(lambda: not holds(hub), "it lets go at rest")

    play(scenario, task=DEALT)


def test_while_the_server_is_gone_it_waits_and_goes_on_when_it_is_back(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.down = True
        deal(hub, 1, 1, 2, 3)
        await hub.until(lambda: len(hub.server.asked) > 2, "it tries again")
        await hub.until(lambda: hub.scheduler.worker.time.wait_s > 0.3, "that is waiting")
        report = hub.scheduler.worker
        assert report.time.compute_s < 0.3
        assert report.fetched_samples == 0
        assert report.fetch_s == 0, "an outage is no property of the link"
        hub.server.down = False
        await committed(hub, 1)
        assert trained_on(hub, 1, 2, 3)

    play(scenario, task=DEALT)


def test_a_transfer_that_was_cut_is_made_again_and_what_came_counts(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.sample_faults = ["cut"]
        deal(hub, 1, *range(1, 33))
        await committed(hub, 1)
        assert trained_on(hub, *range(1, 33))
        await hub.until(lambda: hub.scheduler.worker.fetched_samples >= 32, "figures")
        assert 32 < hub.scheduler.worker.fetched_samples < 64
        assert len(hub.server.asked) == 2

    play(scenario, task=DEALT)


@pytest.mark.parametrize("lie", ["one more", "longer", "complex"])
def test_a_header_that_says_other_than_was_announced_is_not_believed(play: Play, lie: str) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.sample_faults = [lie, lie]
        deal(hub, 1, 1, 2, 3)
        await committed(hub, 1)
        assert trained_on(hub, 1, 2, 3)
        assert len(hub.server.asked) == 3
        await hub.until(lambda: hub.scheduler.worker.fetched_samples == 3, "nothing of the lies was taken")

    play(scenario, task=DEALT)


def test_a_new_deal_takes_the_place_of_one_that_is_still_on_its_way(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.sample_faults = ["stall"]
        deal(hub, 1, *range(1, 33))
        await hub.until(lambda: hub.scheduler.worker.fetched_samples > 0, "some came")
        await hub.until(lambda: hub.scheduler.worker.fetch_s > 0.3, "and then no more, which counts")
        deal(hub, 2, 40, 41)
        await committed(hub, 1)
        assert trained_on(hub, 40, 41)
        assert hub.server.applied[0].generation == 2

    play(scenario, task=DEALT)


def test_a_silent_transfer_ends_by_its_deadline_and_is_tried_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_S", 0.3)

    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.sample_faults = ["stall"]
        deal(hub, 1, *range(1, 33))
        await committed(hub, 1)
        assert trained_on(hub, *range(1, 33))

    play(scenario, task=DEALT)


def test_another_data_set_in_the_middle_of_a_run_is_an_error(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        deal(hub, 1, 1, 2)
        await committed(hub, 1)
        hub.server.data_set = "b"
        deal(hub, 2, 3, 4)
        await hub.phase(W.FAILED)
        assert "data set is another one than before" in hub.scheduler.worker.error

    play(scenario, task=DEALT)


def test_a_server_without_samples_is_an_error_that_says_so(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.sample_faults = ["none"]
        deal(hub, 1, 1, 2)
        await hub.phase(W.FAILED)
        assert "samples: this server holds none" in hub.scheduler.worker.error

    play(scenario, task=DEALT)


def test_samples_that_do_not_fit_the_model_fail_the_run_here_with_the_tasks_line(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await ready(hub)
        hub.server.dealt[1] = [np.zeros((4, 2), "<f4"), np.zeros(4, "<i8")]
        tell(hub, 1, 4)
        await hub.phase(W.FAILED)
        assert "tiny.py" in hub.scheduler.worker.error
        assert "loss_and_metric" in hub.scheduler.worker.error

    play(scenario, task=DEALT)


def test_the_next_run_may_be_on_its_own_data_and_of_another_data_set(play: Play) -> None:
    both = TASK.replace("x, y = batch", "x, y = batch[0][:, :2], batch[0][:, :1]")

    async def scenario(hub: Hub) -> None:
        await ready(hub)
        deal(hub, 1, 1, 2, 3)
        await committed(hub, 1)
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(W.IDLE)
        await hub.training()
        await committed(hub, 2)
        assert hub.scheduler.worker.shard_samples == 64
        assert hub.scheduler.worker.fetched_samples == 0

    play(scenario, FakeServer(), task=both)
