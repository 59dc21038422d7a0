"""`offbeat samples`: a task's training data as the file from which a parameter server deals them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offbeat_core.errors import OffbeatError
from offbeat_ps.samples import SampleFile
from offbeat_worker import tasks
from offbeat_worker.tasks.export import export

HEAD = """
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

def build_model():
    return nn.Linear(4, 3)

def loss_and_metric(model, batch):
    x, y = batch[0], batch[1]
    return nn.functional.cross_entropy(model(x.float()), y), 0.0
"""

TENSORS = """
def load_data(split, count: int = 50):
    x = torch.arange(4.0 * count).view(count, 4)
    return TensorDataset(x, torch.arange(count) % 3)
"""

ITEMS = """
class Own(Dataset):
    def __len__(self):
        return 2500
    def __getitem__(self, index):
        return torch.full((4,), index % 256, dtype=torch.uint8), index % 3

def load_data(split):
    return Own()
"""


def task(folder: Path, data: str) -> tasks.Task:
    path = folder / "mine.py"
    path.write_text(HEAD + data)
    return tasks.load("mine", [path])


def read(path: Path) -> list[np.ndarray]:
    file = SampleFile(path)
    whole = np.arange(file.count)
    return file.layout(file.count).arrays(np.concatenate(list(file.pieces(whole))))


def test_a_tensor_data_set_is_written_as_it_is(tmp_path):
    written = export(task(tmp_path, TENSORS), tmp_path, tmp_path / "out" / "s", options={"count": 30})
    assert written.samples == 30
    assert [field.dtype for field in written.fields] == ["float32", "int64"]
    x, y = read(tmp_path / "out" / "s")
    np.testing.assert_array_equal(x, np.arange(120.0).reshape(30, 4))
    np.testing.assert_array_equal(y, np.arange(30) % 3)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["s"]


def test_items_become_what_a_batch_makes_of_them(tmp_path):
    assert export(task(tmp_path, ITEMS), tmp_path, tmp_path / "s").samples == 2500
    x, y = read(tmp_path / "s")
    assert (x.dtype, x.shape) == (np.uint8, (2500, 4))
    np.testing.assert_array_equal(x[:, 0], (np.arange(2500) % 256).astype(np.uint8))
    assert y.dtype == np.int64


def test_two_fields_that_are_the_same_tensor_are_both_written(tmp_path):
    shared = TENSORS.replace("return TensorDataset(x, ", "return TensorDataset(x, x.argmax(1) % 3, x, ")
    export(task(tmp_path, shared), tmp_path, tmp_path / "s")
    x, _, again, _ = read(tmp_path / "s")
    np.testing.assert_array_equal(x, again)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("def load_data(split): return [{'x': 1}] * 5", r"items \(dict\) are not made of tensors"),
        ("def load_data(split): return [torch.zeros(4)] * 5", r"items \(Tensor\) are not made of tensors"),
        ("def load_data(split): return [(torch.zeros(4), 'cat')] * 5", r"items \(tuple\) are not made"),
        (TENSORS.replace("% 3)", "% 3 + 0j)"), "field '1': dtype complex64"),
        (TENSORS.replace("4.0 * count).view(count, 4)", "5.0 * count).view(count, 5)"), "mat1 and mat2"),
    ],
)
def test_data_that_can_not_be_dealt_or_trained_on_are_refused_and_nothing_is_written(tmp_path, data, said):
    with pytest.raises(OffbeatError, match=said) as caught:
        export(task(tmp_path, data), tmp_path, tmp_path / "s")
    assert "mine.py" in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_a_file_that_can_not_be_written_leaves_the_old_one_whole(tmp_path, monkeypatch):
    export(task(tmp_path, TENSORS), tmp_path, tmp_path / "s")
    before = (tmp_path / "s").read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OffbeatError, match=r"--out: cannot write .*No space left"):
        export(task(tmp_path, ITEMS), tmp_path, tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("s")) == ["s"]


def test_the_command_says_what_it_wrote_and_what_is_wrong(tmp_path):
    def command(*words):
        whole = [sys.executable, "-m", "offbeat_cli.main", "samples", *map(str, words)]
        return subprocess.run(whole, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    done = command("digits", "--out", "d.safetensors")
    assert done.returncode == 0, done.stderr
    assert "1,437 samples (float32 [64], int64 [])" in done.stdout
    assert "offbeat-ps --samples d.safetensors" in done.stdout
    assert SampleFile(tmp_path / "d.safetensors").count == 1437
    wrong = command("digit", "--out", "d")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "TASK: 'digit' is neither a task of Offbeat nor a file\ndid you mean 'digits'?" in wrong.stderr
    assert "--out: . is a folder" in command("digits", "--out", ".").stderr


@pytest.mark.parametrize("hidden", [0o022, 0o077])
def test_the_file_may_be_read_by_whom_the_user_lets_read_new_files(tmp_path, hidden):
    before = os.umask(hidden)
    try:
        export(task(tmp_path, TENSORS), tmp_path, tmp_path / "out.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "out.safetensors").stat().st_mode & 0o777 == 0o666 & ~hidden
