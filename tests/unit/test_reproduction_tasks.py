"""The reproduction's workloads: plain task files on data that is here, which can be learned."""

import ast
import math
from pathlib import Path

import pytest
import torch

from offbeat_worker import tasks

FOLDER = Path(__file__).parents[2] / "benchmarks" / "reproduction" / "tasks"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
RATE = {"co2_lstm": 0.2, "cells_svm": 1.0}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def data(name, split, tmp_path):
    return tasks.load(name, list(FILES.values())).load_data(0, 1, split, tmp_path, 1)


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_a_workload_imports_nothing_of_offbeat(path):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported
    assert not {name for name in imported if name.startswith(("offbeat", "benchmarks"))}


@pytest.mark.parametrize("name", FILES)
def test_a_workload_passes_the_check_of_task_files(name, tmp_path):
    report = tasks.check(tasks.load(name, list(FILES.values())), tmp_path, shards=18)
    assert report.test_samples >= 100
    assert math.isfinite(report.loss)


@pytest.mark.parametrize("name", FILES)
def test_a_workload_learns(name, tmp_path):
    """Plain SGD takes the held-out loss to less than half of what it was, in a few hundred steps."""
    task = tasks.load(name, list(FILES.values()))
    torch.manual_seed(1)
    model = task.build_model()
    train, held_out = data(name, "train", tmp_path), data(name, "test", tmp_path)

    def held_out_loss():
        with torch.no_grad():
            return float(task.loss_and_metric(model, list(held_out.tensors))[0])

    before = held_out_loss()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE[name])
    for _ in range(300):
        rows = torch.randint(len(train), (64,))
        loss, _ = task.loss_and_metric(model, [tensor[rows] for tensor in train.tensors])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert held_out_loss() < before / 2


def test_no_training_window_reaches_into_the_held_out_weeks(tmp_path):
    """A window less its last value is unique in this series, so a shared stretch would be found."""
    train, held_out = data("co2_lstm", "train", tmp_path), data("co2_lstm", "test", tmp_path)
    assert train.tensors[0].shape[1] == 100
    changes = train.tensors[0].diff(dim=1)
    first_held_out = held_out.tensors[0][0].diff()
    # The first held-out window's weeks, wherever a training window might contain their beginning.
    stretch = first_held_out[:20]
    found = (changes.unfold(1, 20, 1) - stretch).abs().amax(dim=2).min()
    assert found > 1e-3  # values have one decimal: another stretch differs by more, the same one by rounding


def test_the_series_fills_its_gaps_between_the_neighbours(tmp_path):
    values = [line.split(",")[1] for line in (FOLDER / "co2.csv").read_text().splitlines()[1:]]
    assert len(values) == 2284
    assert values.count("") == 59
    windows, change = data("co2_lstm", "train", tmp_path).tensors
    assert torch.isfinite(windows).all()
    assert torch.isfinite(change).all()
    assert 0.5 < float(change.std()) < 2


def test_the_support_vector_machine_has_the_same_kernel_on_every_device():
    task = tasks.load("cells_svm", list(FILES.values()))
    torch.manual_seed(1)
    first = task.build_model()
    torch.manual_seed(2)
    second = task.build_model()
    assert torch.equal(first.directions, second.directions)
    assert [name for name, p in first.named_parameters() if p.requires_grad] == [
        "classifier.weight",
        "classifier.bias",
    ]
