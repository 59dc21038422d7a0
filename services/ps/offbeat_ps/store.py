"""The model: one flat float32 vector, changed as a whole and handed out in consistent snapshots.

A snapshot is handed out by reference. While somebody holds the current one, the next
update is written elsewhere, into the memory that the update itself came in, so that
neither a reader nor a writer ever waits for the other, and no vector is allocated.
When nobody holds it, the model is changed in place.

Nothing here is safe to call from two threads at once: `lane.py` keeps the order.
"""

from __future__ import annotations

import math
import weakref

import numpy as np

from offbeat_core.manifest import Manifest
from offbeat_ps.fold import Sums


class Snapshot:
    """The model at one version. Hold it for as long as `values` (or a view of it) is used.

    Attributes:
        values: float32 of shape (trainable + buffer elements,), read-only.
        version: how many folds made it.
    """

    __slots__ = ("__weakref__", "values", "version")

    def __init__(self, values: np.ndarray, version: int) -> None:
        self.values = values.view()
        self.values.flags.writeable = False
        self.version = version


class Store:
    """Holds the model.

    Args:
        manifest: what lies where in the vector.
        values: float32 of shape (manifest.elements,); the store takes it over.
        version: to count on from.

    Raises:
        ValueError: `values` does not have the manifest's size.
    """

    def __init__(self, manifest: Manifest, values: np.ndarray, version: int = 0) -> None:
        if values.shape != (manifest.elements,):
            raise ValueError(f"values: {values.shape[0]} numbers for a manifest of {manifest.elements}")
        self.manifest = manifest
        self.version = version
        self._values = values
        self._handed_out: weakref.ref[Snapshot] | None = None
        self._split = manifest.trainable_elements

    def snapshot(self) -> Snapshot:
        """The model as it is now. All who ask between two folds get the same object."""
        snapshot = self._handed_out() if self._handed_out else None
        if snapshot is None:
            snapshot = Snapshot(self._values, self.version)
            self._handed_out = weakref.ref(snapshot)
        return snapshot

    def apply(self, update: np.ndarray, weight: float) -> None:
        """W <- W - weight U and, for buffers, B <- (1 - weight) B + weight B_i.

        Buffers are never moved by differences: a variance could turn negative.

        Args:
            update: float32 of the model's shape, U then the worker's buffers. The store
                takes it over: it may become the model.
        """
        np.multiply(update, np.float32(weight), out=update)
        self._move(update, keep=1.0 - weight)

    def fold(self, sums: Sums, scale: float, share: float) -> None:
        """W <- W - scale Σ w U and B <- (1 - share) B + share Σ w B_i / Σ w; empties `sums`."""
        total = sums.weight
        update = sums.take()
        update[: self._split] *= np.float32(scale)
        update[self._split :] *= np.float32(share / total)
        self._move(update, keep=1.0 - share)

    def _move(self, scaled: np.ndarray, keep: float) -> None:
        """Subtract what is trainable, blend the buffers; both are scaled already."""
        model, split = self._values, self._split
        held = self._handed_out is not None and self._handed_out() is not None
        target = scaled if held else model
        np.subtract(model[:split], scaled[:split], out=target[:split])
        if keep == 0.0:  # exactly the mean, whatever stood there before
            target[split:] = scaled[split:]
        elif target is scaled:
            target[split:] += np.float32(keep) * model[split:]
        else:
            target[split:] *= np.float32(keep)
            target[split:] += scaled[split:]
        self._values = target
        self._handed_out = None
        self.version += 1


def norm(vector: np.ndarray) -> float:
    """Euclidean norm; inf where it overflows float32's range, nan where a number is not one."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(vector, vector))
    if math.isfinite(square):
        return math.sqrt(square)
    return float(np.linalg.norm(vector.astype(np.float64)))
