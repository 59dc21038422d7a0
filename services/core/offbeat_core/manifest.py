"""The manifest: which tensors travel, in what order, and where each lies in the flat vector.

One manifest holds for a whole run. Its SHA-256 goes with every commit, so a worker
with another model is refused before anything of it is read.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

from offbeat.v1 import common_pb2 as pb

FLOAT32_BYTES = 4

ANOTHER_MODEL = "the model built here is not the run's"
"""So begins what a device says whose manifest differs; the scheduler adds whose model the run's is."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: its name, shape (empty for 0-d) and the dtype it has on the device."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Manifest:
    """Trainable tensors, then floating buffers, in the order in which they travel.

    The flat vector holds `trainable_elements` + `buffer_elements` float32 numbers,
    whatever the dtype on the device.
    """

    trainable: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...] = ()

    @cached_property
    def trainable_elements(self) -> int:
        return sum(spec.elements for spec in self.trainable)

    @cached_property
    def buffer_elements(self) -> int:
        return sum(spec.elements for spec in self.buffers)

    @property
    def elements(self) -> int:
        return self.trainable_elements + self.buffer_elements

    @property
    def total_bytes(self) -> int:
        return FLOAT32_BYTES * self.elements

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the flat vector, by name."""
        where: dict[str, slice] = {}
        start = 0
        for spec in (*self.trainable, *self.buffers):
            where[spec.name] = slice(start, start + spec.elements)
            start += spec.elements
        return where

    def tensor_at(self, index: int) -> str:
        """The name of the tensor that holds element `index` of the flat vector."""
        for name, where in self.slices.items():
            if where.start <= index < where.stop:
                return name
        raise IndexError(index)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes, dtypes and order; independent of protobuf's encoding."""
        lines = [
            f"{kind}\t{spec.name}\t{','.join(map(str, spec.shape))}\t{spec.dtype}"
            for kind, specs in (("trainable", self.trainable), ("buffer", self.buffers))
            for spec in specs
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def difference(self, other: Manifest) -> str:
        """What differs between this manifest and another, in one line; empty if nothing does."""
        for kind, ours, theirs in (
            ("trainable tensor", self.trainable, other.trainable),
            ("buffer", self.buffers, other.buffers),
        ):
            for a, b in zip(ours, theirs, strict=False):
                if a != b:
                    return (
                        f"{kind} '{b.name}' {list(b.shape)} {b.dtype} stands where "
                        f"'{a.name}' {list(a.shape)} {a.dtype} is expected"
                    )
            if len(ours) != len(theirs):
                return f"{len(theirs)} {kind}s instead of {len(ours)}"
        return ""

    def to_proto(self) -> pb.Manifest:
        def specs(tensors: tuple[TensorSpec, ...]) -> list[pb.TensorSpec]:
            return [pb.TensorSpec(name=t.name, shape=t.shape, dtype=t.dtype) for t in tensors]

        return pb.Manifest(trainable=specs(self.trainable), buffers=specs(self.buffers))

    @classmethod
    def from_proto(cls, message: pb.Manifest) -> Manifest:
        """Raises ValueError on a negative dimension or a name that comes twice."""
        specs = [
            tuple(TensorSpec(t.name, tuple(t.shape), t.dtype) for t in group)
            for group in (message.trainable, message.buffers)
        ]
        names = [t.name for group in specs for t in group]
        for t in (t for group in specs for t in group):
            if any(size < 0 for size in t.shape):
                raise ValueError(f"manifest: tensor '{t.name}' has a negative dimension: {list(t.shape)}")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"manifest: tensor '{twice}' comes twice")
        return cls(*specs)
