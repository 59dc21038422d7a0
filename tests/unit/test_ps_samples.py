"""The data set that the server deals: read from a file in slices, and refused with reasons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from offbeat_core.errors import OffbeatError
from offbeat_ps.samples import SampleFile


def written(path: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    save_file(tensors, path, metadata=metadata or None)
    return path


def taken(file: SampleFile, indices: list[int]) -> list[np.ndarray]:
    chosen = np.array(indices, np.int64)
    data = np.concatenate([np.zeros(0, np.uint8), *file.pieces(chosen)])
    layout = file.layout(len(chosen))
    assert len(data) == layout.total_bytes
    return layout.arrays(data)


def test_chosen_samples_come_in_the_order_of_the_fields(tmp_path):
    x, y = torch.randn(50, 3, 2), torch.arange(50)
    z = torch.randn(50).bfloat16()
    path = written(tmp_path / "s", {"a": y, "b": x, "c": z}, fields=json.dumps(["b", "c", "a"]))
    file = SampleFile(path)
    assert file.count == 50
    assert [(f.name, f.dtype, f.shape) for f in file.fields] == [
        ("b", "float32", (3, 2)),
        ("c", "bfloat16", ()),
        ("a", "int64", ()),
    ]
    got = taken(file, [3, 7, 49])
    np.testing.assert_array_equal(got[0], x[[3, 7, 49]].numpy())
    np.testing.assert_array_equal(got[1], z[[3, 7, 49]].view(torch.int16).numpy())
    np.testing.assert_array_equal(got[2], [3, 7, 49])
    assert [f.name for f in SampleFile(written(path, {"b": x, "a": y})).fields] == ["a", "b"]


@pytest.mark.parametrize("width", [1, 3, 5, 200_000])
def test_samples_larger_than_a_part_and_odd_ones_travel(tmp_path, width):
    values = torch.randint(0, 255, (7, width), dtype=torch.uint8)
    file = SampleFile(written(tmp_path / "s", {"x": values, "y": torch.rand(7) > 0.5}))
    got = taken(file, [0, 2, 6])
    np.testing.assert_array_equal(got[0], values[[0, 2, 6]].numpy())
    assert got[1].dtype == bool


def test_two_files_with_other_samples_have_other_digests(tmp_path):
    one = SampleFile(written(tmp_path / "a", {"x": torch.zeros(4, 2)}))
    again = SampleFile(written(tmp_path / "b", {"x": torch.zeros(4, 2)}))
    other = SampleFile(written(tmp_path / "c", {"x": torch.ones(4, 2)}))
    assert one.digest == again.digest != other.digest


@pytest.mark.parametrize(
    ("tensors", "metadata", "said"),
    [
        ({"x": torch.zeros(4, 2), "y": torch.zeros(5)}, {}, r"first dimensions differ \('x' 4, 'y' 5\)"),
        ({"x": torch.zeros(0, 2)}, {}, "holds no samples"),
        ({}, {}, "holds no tensor"),
        ({"x": torch.tensor(3.0)}, {}, "'x' has no dimensions"),
        ({"x": torch.zeros(4)}, {"fields": '["x", "y"]'}, "does not name each of its tensors once"),
        ({"x": torch.zeros(4)}, {"fields": "x"}, "does not name each of its tensors once"),
        ({"x": torch.zeros(4, dtype=torch.complex64)}, {}, "dtype C64"),
        ({f"x{k}": torch.zeros(1) for k in range(65)}, {}, "65 fields"),
    ],
)
def test_a_file_that_is_no_data_set_is_refused(tmp_path, tensors, metadata, said):
    path = written(tmp_path / "s.safetensors", tensors, **metadata)
    with pytest.raises(OffbeatError, match=f"samples: .*{said}") as caught:
        SampleFile(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_what_is_no_file_or_no_safetensors_is_refused(tmp_path):
    with pytest.raises(OffbeatError, match=r"samples: there is no file .*none"):
        SampleFile(tmp_path / "none")
    with pytest.raises(OffbeatError, match=r"samples: there is no file"):
        SampleFile(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(OffbeatError, match=r"samples: .*empty is empty"):
        SampleFile(tmp_path / "empty")
    for content in (b"1234", b"\xff" * 100, b"PK\x03\x04" + bytes(200)):
        (tmp_path / "odd").write_bytes(content)
        with pytest.raises(OffbeatError, match=r"samples: .*odd is not a safetensors file"):
            SampleFile(tmp_path / "odd")


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    path = written(tmp_path / "s", {"x": torch.zeros(100, 10)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OffbeatError, match="'x' does not lie within the file"):
        SampleFile(path)
