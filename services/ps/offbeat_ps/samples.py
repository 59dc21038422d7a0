"""The data set that the server holds for learners who hold none, in a safetensors file.

Each tensor's first dimension counts the samples. The file is mapped, never loaded: what is
sent is read from it a part at a time. It must not change while the server runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offbeat_core import parts
from offbeat_core.errors import OffbeatError
from offbeat_core.samples import Field, Layout
from offbeat_ps.tensorfile import read_header

FIELDS = "fields"
"""Metadata: the tensors' names as JSON, in the order in which the task takes them. Without it: by name."""

SETTING = "samples"
REMEDY = "make one with: offbeat samples TASK --out FILE"

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_HASHED_AT_A_TIME = 2**20


class SampleFile:
    """A data set on disk.

    Attributes:
        fields: in the order in which the task takes them.
        count: samples.
        digest: SHA-256 of the file.

    Raises OffbeatError: no such file; not safetensors; tensors of different first dimensions, or none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            if not path.is_file():
                raise OffbeatError(f"{SETTING}: there is no file {path}", REMEDY)
            if not path.stat().st_size:
                raise OffbeatError(f"{SETTING}: {path} is empty", REMEDY)
            data = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise OffbeatError(f"{SETTING}: cannot read {path}: {error.strerror}", REMEDY) from error
        header, start = read_header(data.data, path, SETTING, REMEDY)
        metadata = header.pop("__metadata__", {})
        names = self._order(header, metadata)
        found = [self._field(name, header[name], data, start) for name in names]
        counts = {field.name: len(rows) for field, rows in found}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise self._fault(f"its tensors' first dimensions differ ({shown})", "each counts the samples")
        self.fields = tuple(field for field, _ in found)
        self._rows = [rows for _, rows in found]
        self.count = len(self._rows[0])
        if self.count == 0:
            raise self._fault("it holds no samples")
        try:
            self.layout(0)
        except ValueError as error:
            raise self._fault(str(error)) from error
        self.digest = _digest(data)

    def layout(self, count: int) -> Layout:
        """How so many samples travel."""
        return Layout(self.fields, count)

    def pieces(self, indices: np.ndarray) -> Iterator[np.ndarray]:
        """These samples' bytes as they travel, in pieces of about a part's size: uint8, shape (n,)."""
        layout = self.layout(len(indices))
        for rows, start, end in zip(self._rows, layout.starts, layout.starts[1:], strict=False):
            width = rows.shape[1]
            at_a_time = max(1, parts.PART_BYTES // max(1, width))
            for first in range(0, len(indices) if width else 0, at_a_time):
                yield np.asarray(rows[indices[first : first + at_a_time]]).reshape(-1)
            if padding := end - start - width * len(indices):
                yield np.zeros(padding, np.uint8)

    def _order(self, header: dict[str, Any], metadata: dict[str, Any]) -> list[str]:
        if not header:
            raise self._fault("it holds no tensor")
        if FIELDS not in metadata:
            return sorted(header)
        try:
            names = json.loads(metadata[FIELDS])
        except (TypeError, ValueError):
            names = None
        if not isinstance(names, list) or sorted(map(str, names)) != sorted(header):
            raise self._fault(f"its metadata '{FIELDS}' does not name each of its tensors once")
        return [str(name) for name in names]

    def _field(self, name: str, entry: Any, data: np.ndarray, start: int) -> tuple[Field, np.ndarray]:
        """A field, and its values as bytes: uint8 of shape (samples, bytes of one sample's)."""
        try:
            code, shape = entry["dtype"], tuple(int(size) for size in entry["shape"])
            begin, end = (start + int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise self._fault(f"tensor '{name}' is not described as safetensors do") from None
        if code not in _DTYPES:
            raise self._fault(f"tensor '{name}' has dtype {code}", f"known here: {', '.join(_DTYPES)}")
        if not shape:
            raise self._fault(f"tensor '{name}' has no dimensions; the first one counts the samples")
        try:
            field = Field(name, _DTYPES[code], shape[1:])
        except ValueError as error:
            raise self._fault(str(error)) from None
        if begin < start or end > len(data) or end - begin != shape[0] * field.sample_bytes:
            raise self._fault(f"tensor '{name}' does not lie within the file: it is damaged, or cut short")
        return field, data[begin:end].reshape(shape[0], field.sample_bytes)

    def _fault(self, problem: str, remedy: str = REMEDY) -> OffbeatError:
        return OffbeatError(f"{SETTING}: {self._path}: {problem}", remedy)


def _digest(data: np.ndarray) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(data), _HASHED_AT_A_TIME):
        digest.update(data[start : start + _HASHED_AT_A_TIME].data)
    return digest.hexdigest()
