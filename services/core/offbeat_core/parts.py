"""Flat vectors as streams of parts: no copy more than gRPC needs, no 4 MB or 2 GB ceiling.

A sender cuts a vector (float32, or plain bytes: uint8) into `Part`s of `PART_BYTES`; a
receiver writes them into a vector that it allocated once, and refuses a stream that is
out of order, too long or too short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Protocol, TypeVar

import numpy as np

from offbeat.v1 import common_pb2 as pb

PART_BYTES = 512 * 1024
"""Size of a part. Loopback throughput is flat between 256 KiB and 1 MiB, and a small
part lets a keepalive through on a slow link."""

if sys.byteorder != "little":
    raise ImportError("Offbeat puts little-endian float32 on the wire; this machine is big-endian")


class StreamError(ValueError):
    """The parts do not make up the announced vector."""


def cut(vector: np.ndarray, part_bytes: int = PART_BYTES) -> Iterator[pb.Part]:
    """Cut a contiguous vector of shape (n,) into parts; an empty one gives none."""
    view = _bytes_of(vector)
    for offset in range(0, len(view), part_bytes):
        yield pb.Part(offset=offset, data=bytes(view[offset : offset + part_bytes]))


class _Carrier(Protocol):
    part: pb.Part


C = TypeVar("C", bound=_Carrier)


def messages(vector: np.ndarray, make: type[C], part_bytes: int = PART_BYTES, first: int = 0) -> Iterator[C]:
    """The same as messages of type `make`, each with its `part` filled in place.

    Passing a finished part to the message's constructor would copy it: most of the time
    that making the message takes.

    Args:
        first: where the vector begins in the stream, in bytes.
    """
    view = _bytes_of(vector)
    for offset in range(0, len(view), part_bytes):
        message = make()
        message.part.offset = first + offset
        message.part.data = bytes(view[offset : offset + part_bytes])
        yield message


def _bytes_of(vector: np.ndarray) -> memoryview:
    if vector.dtype == np.uint8:
        return np.ascontiguousarray(vector).data
    return np.ascontiguousarray(vector, dtype="<f4").data.cast("B")


class Assembler:
    """Puts parts back together into one vector.

    Args:
        total_bytes: as the header announced; a multiple of the dtype's size.
        limit_bytes: refuse more than this; None for no limit.
        dtype: of the vector.
    """

    def __init__(self, total_bytes: int, limit_bytes: int | None = None, dtype: str = "<f4") -> None:
        size = np.dtype(dtype).itemsize
        if total_bytes % size:
            raise StreamError(f"total_bytes: {total_bytes} is not a multiple of {size}")
        if limit_bytes is not None and total_bytes > limit_bytes:
            raise StreamError(f"total_bytes: {total_bytes} is more than the {limit_bytes} expected")
        self._vector = np.empty(total_bytes // size, dtype=dtype)
        self._view = self._vector.data.cast("B")
        self._received = 0

    def add(self, part: pb.Part) -> None:
        data = part.data  # each look at it makes a copy
        end = part.offset + len(data)
        if part.offset != self._received:
            raise StreamError(f"a part starts at byte {part.offset}; {self._received} was expected")
        if end > len(self._view):
            raise StreamError(f"parts reach byte {end} of {len(self._view)}")
        self._view[part.offset : end] = data
        self._received = end

    @property
    def received(self) -> int:
        """Bytes so far."""
        return self._received

    @property
    def complete(self) -> bool:
        return self._received == len(self._view)

    def finish(self) -> np.ndarray:
        """The whole vector; float32: of shape (total_bytes / 4,). Raises StreamError if parts are missing."""
        if not self.complete:
            raise StreamError(f"the stream ended at byte {self._received} of {len(self._view)}")
        return self._vector
