"""Samples on the wire: fields of one dtype and shape each, all samples' values of one after those of another.

A *field* is one tensor of a sample: its picture, its label. `Layout` says where the values
of each field lie in the bytes that travel; both ends compute it, so that a header which
says otherwise is refused before anything is received.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from offbeat.v1 import common_pb2 as pb

ALIGNED = 8
"""Each field begins at a multiple of so many bytes: no dtype is read from an odd address."""

MOST_FIELDS = 64
MOST_SAMPLE_BYTES = 2**28
"""Of one sample. What a header may claim is bounded."""

STORAGE = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<i2",  # numpy has none: its bits
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "|i1",
    "uint8": "|u1",
    "bool": "|b1",
}
"""numpy's dtype of the values, by the dtype on the device."""


@dataclass(frozen=True)
class Field:
    """One tensor of each sample. `shape` is that of one sample's. Raises ValueError for what can't be."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE:
            raise ValueError(f"field '{self.name}': dtype {self.dtype} is not one of {', '.join(STORAGE)}")
        if min(self.shape, default=0) < 0:
            raise ValueError(f"field '{self.name}': a negative dimension: {list(self.shape)}")

    @property
    def sample_bytes(self) -> int:
        return np.dtype(STORAGE[self.dtype]).itemsize * math.prod(self.shape)


def to_proto(fields: Iterable[Field]) -> list[pb.TensorSpec]:
    return [pb.TensorSpec(name=field.name, shape=field.shape, dtype=field.dtype) for field in fields]


def from_proto(fields: Iterable[pb.TensorSpec]) -> tuple[Field, ...]:
    """Raises ValueError."""
    return tuple(Field(field.name, field.dtype, tuple(field.shape)) for field in fields)


@dataclass(frozen=True)
class Layout:
    """Where `count` samples' values lie. Raises ValueError for fields that can't be meant."""

    fields: tuple[Field, ...]
    count: int

    def __post_init__(self) -> None:
        if not 0 < len(self.fields) <= MOST_FIELDS:
            raise ValueError(f"{len(self.fields)} fields; a sample has 1 to {MOST_FIELDS}")
        size = sum(field.sample_bytes for field in self.fields)
        if size > MOST_SAMPLE_BYTES:
            raise ValueError(f"a sample of {size} bytes; {MOST_SAMPLE_BYTES} are the most")

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Where each field begins, in bytes; then the end."""
        starts = [0]
        for field in self.fields:
            starts.append(_aligned(starts[-1] + self.count * field.sample_bytes))
        return tuple(starts)

    @property
    def total_bytes(self) -> int:
        return self.starts[-1]

    def arrays(self, data: np.ndarray) -> list[np.ndarray]:
        """Each field's values, shape (count, *shape): views into `data`, uint8 of shape (total_bytes,)."""
        return [
            data[start : start + self.count * field.sample_bytes]
            .view(STORAGE[field.dtype])
            .reshape(self.count, *field.shape)
            for field, start in zip(self.fields, self.starts, strict=False)
        ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
