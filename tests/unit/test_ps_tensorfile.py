"""safetensors files: readable by the library, every dtype, whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from offbeat_core.errors import OffbeatError
from offbeat_ps import tensorfile
from offbeat_ps.tensorfile import Tensor

VALUES = np.array([1.0, -2.5, 3.14159274, 65504.0, 1e-3, 0.0], "<f4")


def write(path: Path, **tensors: Tensor) -> None:
    tensorfile.write(path, tensors, {"run_id": "r"})


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "m.safetensors"
    write(
        path,
        matrix=Tensor(VALUES, (2, 3)),
        half=Tensor(VALUES, (6,), "float16"),
        double=Tensor(VALUES[:1], (), "float64"),
        nothing=Tensor(VALUES[:0], (0, 4)),
    )
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["matrix"], VALUES.reshape(2, 3))
    np.testing.assert_array_equal(loaded["half"], VALUES.astype("f2"))
    assert (loaded["double"].dtype, loaded["double"].shape) == (np.float64, ())
    assert loaded["nothing"].shape == (0, 4)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["run_id"] == "r"


def test_bfloat16_is_torchs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    values = np.concatenate(
        [VALUES, [np.nan, np.inf, -np.inf, 3.3e38, 1e-40], np.random.default_rng(0).normal(size=5000)]
    ).astype("<f4")
    path = tmp_path / "m.safetensors"
    write(path, weight=Tensor(values, values.shape, "bfloat16"))
    loaded = load_torch(path)["weight"]
    assert loaded.dtype is torch.bfloat16
    assert torch.equal(loaded.nan_to_num(7), torch.from_numpy(values).to(torch.bfloat16).nan_to_num(7))
    assert loaded.isnan().sum() == 1
    again, _ = tensorfile.read(path, "initial_model")
    np.testing.assert_array_equal(again["weight"].values, loaded.to(torch.float32).numpy())


def test_it_reads_what_the_library_writes_and_leaves_integers_out(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(
        {
            "a": VALUES.reshape(3, 2),
            "b": VALUES.astype("f2"),
            "c": VALUES.astype("f8"),
            "n": np.array(3),
            "scalar": np.array(2.5, "<f4"),
        },
        path,
    )
    tensors, _ = tensorfile.read(path, "initial_model")
    assert set(tensors) == {"a", "b", "c", "scalar"}
    assert (tensors["a"].shape, tensors["scalar"].shape) == ((3, 2), ())
    np.testing.assert_array_equal(tensors["c"].values, VALUES)
    np.testing.assert_array_equal(tensors["b"].values, VALUES.astype("f2").astype("f4"))


def header(**entry: Any) -> bytes:
    head = json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    return struct.pack("<Q", len(head)) + head + b"\0" * 8


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a safetensors file"),
        (b"\x80\x04pickle", "is not a safetensors file"),
        (struct.pack("<Q", 2**60), "is not a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "is not a safetensors file"),
        (header(data_offsets=[0, 80]), "tensor 't' does not lie within the file"),
        (header(data_offsets=[-8, 0]), "tensor 't' does not lie within the file"),
        (header(shape=[3]), "tensor 't' does not lie within the file"),
        (header(shape=[-1, -2]), "tensor 't' does not lie within the file"),
        (header(dtype="F8_E4M3"), "tensor 't' has dtype F8_E4M3"),
        (header(shape="x"), "tensor 't' is not described"),
    ],
)
def test_a_file_that_is_none_is_said_to_be(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(OffbeatError, match=said) as caught:
        tensorfile.read(path, "initial_model")
    assert caught.value.problem.startswith("initial_model: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match=r"initial_model: cannot read .*gone.*No such file"):
        tensorfile.read(tmp_path / "gone", "initial_model")


def test_a_torn_file_is_recognised_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, weight=Tensor(np.ones(1000, "<f4"), (1000,)))
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(OffbeatError, match="its checksum does not hold"):
        tensorfile.read(path, "initial_model")


def test_a_write_that_fails_leaves_the_older_file_and_no_rubbish(tmp_path: Path) -> None:
    """The system refuses to let a file grow beyond a limit, as a full disk would."""
    path = tmp_path / "m.safetensors"
    write(path, weight=Tensor(VALUES, (6,)))
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, weight=Tensor(np.zeros(1_000_000, "<f4"), (1_000_000,)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.safetensors"]
