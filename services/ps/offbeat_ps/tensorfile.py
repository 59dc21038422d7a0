"""safetensors files, written and read whole or not at all.

The format (https://github.com/huggingface/safetensors): 8 bytes of header length, a JSON
header that says dtype, shape and place of each tensor, the raw bytes. It is written here
by hand because the library's numpy interface has no bfloat16, and so that a model is
streamed to the disk from one vector instead of being copied first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offbeat_core.errors import OffbeatError

SHA256 = "sha256"
"""Metadata: the digest of the data, so that a torn file is recognised."""

MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> the upper 16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2")


def _from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("<u4") << 16).view("<f4")


class _Format(NamedTuple):
    code: str  # in the file
    storage: str  # numpy's
    encode: Callable[[np.ndarray], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray]


def _plain(code: str, storage: str) -> _Format:
    return _Format(code, storage, lambda v: v.astype(storage, copy=False), lambda v: v.astype("<f4"))


FORMATS: Mapping[str, _Format] = {
    "float32": _plain("F32", "<f4"),
    "float64": _plain("F64", "<f8"),
    "float16": _plain("F16", "<f2"),
    "bfloat16": _Format("BF16", "<u2", _to_bfloat16, _from_bfloat16),
}
"""By the dtype that a tensor has on the device."""

_BY_CODE = {f.code: f for f in FORMATS.values()}
_OTHER_SIZES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


class Tensor(NamedTuple):
    """A tensor to write: flat float32 values, the shape, and the dtype it has in the file."""

    values: np.ndarray
    shape: tuple[int, ...]
    dtype: str = "float32"


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write to a temporary file, fsync, rename: a reader finds the old file or the new one, both whole.

    Raises:
        OSError: disk full, read-only, no such folder. The file that stood there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded: dict[str, Any] = {}
    digest, offset = hashlib.sha256(), 0
    for name, tensor in tensors.items():
        form = FORMATS[tensor.dtype]
        data = form.encode(tensor.values)
        digest.update(data.data if data.size else b"")
        end = offset + data.nbytes
        encoded[name] = {"dtype": form.code, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps({"__metadata__": {**metadata, SHA256: digest.hexdigest()}, **encoded}).encode()
    head += b" " * (-len(head) % 8)  # the data begins at a multiple of 8
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head)
            for tensor in tensors.values():
                data = FORMATS[tensor.dtype].encode(tensor.values)
                if data.size:
                    file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, field: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All floating tensors of a file, as float32, and its metadata. Integer tensors are left out.

    Raises:
        OffbeatError: naming `field`: the file is missing, not safetensors, torn, or of a dtype unknown here.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise OffbeatError(
            f"{field}: cannot read {path}: {error.strerror}",
            "give the path of a safetensors file on the parameter server's machine",
        ) from error
    header, start = read_header(raw, path, field, "save the model with safetensors")
    metadata = header.pop("__metadata__", {})
    expected = metadata.get(SHA256)
    if expected and hashlib.sha256(memoryview(raw)[start:]).hexdigest() != expected:
        raise OffbeatError(f"{field}: {path} is damaged: its checksum does not hold", "use an older file")
    tensors = {}
    for name, entry in header.items():
        tensor = _tensor(name, entry, raw, start, path, field)
        if tensor is not None:
            tensors[name] = tensor
    return tensors, metadata


def read_header(raw: bytes | memoryview, path: Path, field: str, remedy: str) -> tuple[dict[str, Any], int]:
    """The JSON header of a file's bytes, and where its data begin. Raises OffbeatError."""
    broken = OffbeatError(f"{field}: {path} is not a safetensors file", remedy)
    if len(raw) < 8:
        raise broken
    (length,) = struct.unpack_from("<Q", raw)
    if length > min(MAX_HEADER_BYTES, len(raw) - 8):
        raise broken
    try:
        header = json.loads(bytes(raw[8 : 8 + length]))
    except ValueError:
        raise broken from None
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__", {}), dict):
        raise broken
    return header, 8 + length


def _tensor(name: str, entry: Any, raw: bytes, start: int, path: Path, field: str) -> Tensor | None:
    try:
        code, shape = entry["dtype"], tuple(int(size) for size in entry["shape"])
        begin, end = (start + int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise OffbeatError(f"{field}: {path}: tensor '{name}' is not described as safetensors do") from None
    form = _BY_CODE.get(code)
    if form is None:
        if code in _OTHER_SIZES:
            return None
        raise OffbeatError(
            f"{field}: {path}: tensor '{name}' has dtype {code}", f"known here: {', '.join(_BY_CODE)}"
        )
    size = np.dtype(form.storage).itemsize * math.prod(shape)
    if begin < start or end > len(raw) or end - begin != size or min(shape, default=0) < 0:
        raise OffbeatError(f"{field}: {path} is damaged: tensor '{name}' does not lie within the file")
    stored = np.frombuffer(raw, form.storage, math.prod(shape), begin)
    return Tensor(form.decode(stored), shape, next(d for d, f in FORMATS.items() if f is form))
