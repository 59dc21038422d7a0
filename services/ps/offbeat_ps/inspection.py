"""Is this update fit to enter the model?

Refused are numbers that are not finite, and updates that exploded (a device with bad
memory, a learning rate gone wrong). The bound on the norm is wide, because a refusal
of honest work costs more than a large step; both of these must be exceeded:

- `GROWTH` times the median of the last accepted norms per local update, times the
  update's own number of local updates. Before `ENOUGH` updates were accepted: `FIRST`
  times sqrt(n) for n numbers, i.e. a root mean square of `FIRST` per parameter.
- the norm of the model itself: an update that moves the model by less than its own
  length is never called an explosion.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np

from offbeat_core.manifest import Manifest
from offbeat_ps.store import norm

GROWTH = 100.0
FIRST = 1000.0
ENOUGH = 8
REMEMBERED = 64


@dataclass(frozen=True)
class Finding:
    """What was seen of an update, before any decision."""

    fault: str = ""  # names the tensor that is not finite; empty: all are
    norm: float = 0.0  # of the trainable part


def inspect(vector: np.ndarray, manifest: Manifest) -> Finding:
    """Look at every number once. `vector` is float32 of shape (manifest.elements,)."""
    split = manifest.trainable_elements
    length = norm(vector[:split])
    if not math.isfinite(length) or not math.isfinite(norm(vector[split:])):
        finite = np.isfinite(vector)
        if not finite.all():
            first = int(finite.argmin())
            value = "NaN" if math.isnan(vector[first]) else "infinity"
            return Finding(f"tensor '{manifest.tensor_at(first)}' has {value} in it", math.inf)
    return Finding("", length)


class NormBound:
    """The bound on an update's norm, learnt from those that were accepted.

    Args:
        elements: trainable numbers of the model.
    """

    def __init__(self, elements: int) -> None:
        self._per_step: deque[float] = deque(maxlen=REMEMBERED)
        self._first = FIRST * math.sqrt(max(elements, 1))

    def limit(self, steps: int) -> float:
        """An update over `steps` local updates is above suspicion up to this norm."""
        if len(self._per_step) < ENOUGH:
            return self._first
        typical = statistics.median(self._per_step)
        return GROWTH * typical * max(steps, 1) if typical > 0 else self._first

    def fault(self, length: float, steps: int, model_norm: float) -> str:
        """Why the update is refused; empty if it is not."""
        limit = max(self.limit(steps), model_norm)
        if length <= limit:
            return ""
        return f"its norm {length:.3g} is above the bound {limit:.3g} for {steps} local updates"

    def accept(self, length: float, steps: int) -> None:
        self._per_step.append(length / max(steps, 1))
