"""Real gradients in virtual time: the worker's own numbers, for many devices on one module."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from offbeat.v1 import common_pb2 as pb  # noqa: E402
from offbeat_cli.simulator.devices import Directive  # noqa: E402
from offbeat_cli.simulator.torch_workload import TorchWorkload  # noqa: E402
from offbeat_core.dealing import deal  # noqa: E402
from offbeat_core.errors import OffbeatError  # noqa: E402
from offbeat_core.samples import Field, Layout  # noqa: E402
from offbeat_worker.localrun import LocalRun, Site  # noqa: E402
from offbeat_worker.noise import EVERY  # noqa: E402
from offbeat_worker.supply import Given  # noqa: E402
from support.virtual import run_settings  # noqa: E402

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def build_model(dropout: float = 0.0):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))

def load_data(split):
    torch.manual_seed(3)
    x = torch.randn(300, 4)
    return TensorDataset(x, x.argmax(1) % 3)

def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), ("accuracy", (scores.argmax(1) == y).float().mean())
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def workload(path, *, devices=3, labels=(), **fields):
    task = {
        "name": path.stem,
        "options": fields.pop("options", {}),
        "partition": fields.pop("partition", "iid"),
    }
    run = run_settings(task=task, training={"batch": 16, "momentum": 0.9, "seed": 5, **fields})
    return TorchWorkload(run, labels or [()] * devices, path.parent, [path])


def test_a_virtual_device_makes_the_very_steps_that_a_worker_makes(own, tmp_path):
    virtual = workload(own)
    site = Site(1, 3, tmp_path, [own], torch.device("cpu"))
    real = LocalRun(site, "run", pb.RunTask(name="own", partition="iid"), seed=5, batch=16)
    initial = real.initial()
    assert np.array_equal(virtual.initial(), initial)
    real.load(initial.copy(), 0)
    real.follow(
        pb.WorkerDirective(batch=16, learning_rate=0.05, momentum=0.9, trigger=pb.Trigger(steps=1000)),
        0.0,
        0.0,
    )
    mine, other = initial.copy(), initial.copy()
    for _ in range(20):  # more than a pass of 100 samples; another device steps in between
        real.step()
        virtual.step(1, mine, 0.0, 16)
        virtual.step(0, other, 0.0, 16)
        virtual.evaluate(other)
    real.flat.gather_buffers()
    assert np.array_equal(mine, real.flat.vector.numpy())
    assert not np.array_equal(mine, other)


def test_a_virtual_device_halves_the_batches_that_a_worker_halves_and_measures_the_same(own, tmp_path):
    virtual = workload(own)
    site = Site(1, 3, tmp_path, [own], torch.device("cpu"))
    real = LocalRun(site, "run", pb.RunTask(name="own", partition="iid"), seed=5, batch=16)
    values = real.initial()
    real.load(values.copy(), 0)
    told = {"learning_rate": 0.05, "momentum": 0.9, "trigger": pb.Trigger(steps=1000)}
    real.follow(pb.WorkerDirective(batch=16, gradient_noise=True, **told), 0.0, 0.0)
    virtual.allot(1, Directive(None, 16, True, 0, False, gradient_noise=True))
    halved = []
    for _ in range(2 * EVERY):
        halved.append(virtual.halves(1, 16))
        virtual.step(1, values, 0.0, 16)
        real.step()
        assert real.halved is halved[-1]
    assert sum(halved) == 2
    report, found = real.report(), virtual.noise(1)
    assert (report.gradient_square, report.gradient_variance) == (found.square, found.variance)
    assert report.gradient_pairs == found.pairs == 2
    assert not virtual.halves(0, 16), "nobody asked this one"


def test_a_virtual_device_trains_on_what_it_is_dealt_as_a_worker_does(own, tmp_path):
    virtual = workload(own)
    assert virtual.data_samples() == 300
    site = Site(1, 3, tmp_path, [own], torch.device("cpu"))
    real = LocalRun(site, "run", pb.RunTask(name="own"), seed=5, batch=16, parallelized=True)
    real.load(real.initial(), 0)
    mine = real.initial()
    x, y = virtual._shards.first.tensors  # as `offbeat samples` would write them
    layout_of = [Field("x", "float32", (4,)), Field("y", "int64", ())]
    for generation in (1, 2):
        indices = deal(300, {"a": 50, "b": 70}, 5, generation)["b"]
        layout = Layout(tuple(layout_of), len(indices))
        data = np.zeros(layout.total_bytes, np.uint8)
        for array, tensor in zip(layout.arrays(data), (x, y), strict=True):
            array[:] = tensor[indices].numpy()
        real.follow(
            pb.WorkerDirective(
                batch=16,
                learning_rate=0.05,
                momentum=0.9,
                trigger=pb.Trigger(steps=1000),
                generation=generation,
                draw=len(indices),
                parallelized=True,
            ),
            0.0,
            0.0,
        )
        assert real.wish() is not None
        real.give(Given("run", generation, layout, data))
        virtual.give(1, indices)
        assert virtual.pass_samples(1) == 70
        for _ in range(11):
            real.step()
            done = virtual.step(1, mine, 0.0, 16)
        real.flat.gather_buffers()
        assert np.array_equal(mine, real.flat.vector.numpy())
        assert done.passes == 2 * generation  # 5 local updates each, and one more is under way
    assert virtual.sample_bytes == 4 * 4 + 8


def test_the_hubs_data_set_is_whole_also_where_a_task_divides_its_data_itself(tmp_path):
    path = tmp_path / "apart.py"
    path.write_text(
        OWN.replace("def load_data(split):", "def load_data(split, shard, shards):").replace(
            "return TensorDataset(x, x.argmax(1) % 3)",
            "x = x[shard::shards]\n    return TensorDataset(x, x.argmax(1) % 3)",
        )
    )
    work = workload(path)
    assert [work.shard_samples(device) for device in range(3)] == [100, 100, 100]
    assert work.data_samples() == 300


def test_chance_depends_on_device_and_step_and_on_nothing_else(own):
    first, second = (workload(own, options={"dropout": 0.5}) for _ in range(2))
    a, b = first.initial(), second.initial()
    for _ in range(5):
        first.step(1, a, 0.0, 16)
    between = second.initial()
    for _ in range(5):
        second.step(2, between, 0.0, 16)
        second.evaluate(between)
        second.step(1, b, 0.0, 16)
    assert np.array_equal(a, b)


def test_buffers_travel_beside_what_is_trained(own):
    work = workload(own)
    assert work.elements - work.trainable == 16  # mean and variance of 8 features
    values = work.initial()
    before = values[work.trainable :].copy()
    work.step(0, values, 0.0, 16)
    assert not np.array_equal(values[work.trainable :], before)


def test_a_pass_is_counted_and_the_samples_of_each_step(own):
    work = workload(own)
    assert work.shard_samples(0) == 100
    done = [work.step(0, work.initial(), 0.0, 16) for _ in range(7)]
    assert [one.samples for one in done] == [16] * 6 + [4]
    assert [one.passes for one in done] == [0] * 6 + [1]


def test_a_group_of_devices_may_hold_some_classes_only(own):
    work = workload(own, labels=[(0,), (1, 2), (0, 1)])
    assert [work.shard_samples(device) > 0 for device in range(3)] == [True] * 3
    held = [
        set(work._shards.fetch(device, np.arange(work.shard_samples(device)))[1].tolist())
        for device in range(3)
    ]
    assert held == [{0}, {1, 2}, {0, 1}]
    assert sum(work.shard_samples(device) for device in range(3)) == 300


def test_an_unknown_class_is_refused(own):
    with pytest.raises(OffbeatError, match=r"devices\.labels: 7"):
        workload(own, labels=[(0,), (7,), ()])


def test_more_devices_than_samples_are_refused(own):
    with pytest.raises(OffbeatError, match="would hold no data"):
        workload(own, devices=301)


def test_a_typing_error_in_a_tasks_option_is_named(own):
    with pytest.raises(OffbeatError, match="dropot"):
        workload(own, options={"dropot": 0.5})


def test_evaluation_uses_all_of_the_held_out_data_and_leaves_no_trace(own):
    work = workload(own)
    values = work.initial()
    first = work.evaluate(values)
    assert work.evaluate(values) == first
    assert np.array_equal(values, work.initial())
    assert 0 < first[1] < 1


def test_a_task_that_divides_its_data_itself_is_asked_for_each_part(tmp_path):
    path = tmp_path / "divided.py"
    path.write_text(
        OWN.replace("def load_data(split):", "def load_data(split, shard, shards):").replace(
            "return TensorDataset(x, x.argmax(1) % 3)",
            "n = 10 * (shard + 1) if split == 'train' else 300\n"
            "    return TensorDataset(x[:n], x.argmax(1)[:n] % 3)",
        )
    )
    work = workload(path)
    assert [work.shard_samples(device) for device in range(3)] == [10, 20, 30]
    with pytest.raises(OffbeatError, match="divides its data itself"):
        workload(path, labels=[(0,), (), ()])


def test_the_folder_of_data_reaches_the_task(tmp_path):
    path = tmp_path / "finds.py"
    path.write_text(
        OWN.replace("def load_data(split):", "def load_data(split, folder):\n    assert folder.is_dir()")
    )
    assert workload(path).shard_samples(0) == 100


def test_a_device_trains_at_its_own_learning_rate_and_on_the_samples_drawn_for_the_generation(own):
    def trained(rate):
        work = workload(own)
        values = work.initial()
        work.allot(0, Directive(None, 16, False, 1, False, draw=5, rate=rate))
        assert work.step(0, values, 0.0, 16).samples == work.pass_samples(0) == 5
        work.allot(0, Directive(None, 16, False, 2, False))
        assert work.pass_samples(0) == work.shard_samples(0) == 100
        return (values - work.initial())[: work.trainable]

    moved = trained(1.0)
    assert np.abs(moved).max() > 0
    np.testing.assert_allclose(trained(2.0), 2 * moved, atol=1e-6)
