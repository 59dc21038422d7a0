"""A run's instructions, carried out on its vectors, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from offbeat_core.manifest import Manifest
from offbeat_ps.checkpoint import Captured, Waiting
from offbeat_ps.fold import Sums
from offbeat_ps.instructions import Add, Apply, Capture, DropSums, FoldSums, Instruction, Reply
from offbeat_ps.store import Snapshot, Store


class Model:
    """The store, and by lot the sums of updates that wait for their fold. Used in the run's lane alone."""

    def __init__(self, manifest: Manifest, values: np.ndarray) -> None:
        self.store = Store(manifest, values)
        self.sums: dict[int, Sums] = {}

    def carry_out(
        self, work: Sequence[Instruction], updates: Mapping[int, np.ndarray]
    ) -> tuple[Snapshot | None, list[Captured]]:
        """Change the model.

        Args:
            updates: by token; those that `work` applies or adds are taken over.

        Returns:
            The snapshot that replies carry, taken after all of `work` (None if there are
            none), and the captured checkpoints.
        """
        captures = []
        for instruction in work:
            match instruction:
                case Apply(token, weight):
                    self.store.apply(updates[token], weight)
                case Add(token, weight, lot):
                    self.sums.setdefault(lot, Sums()).add(updates[token], weight)
                case FoldSums(scale, share, lot):
                    self.store.fold(self.sums.pop(lot), scale, share)
                case DropSums(lot):
                    del self.sums[lot]
                case Capture(epoch, _, accounts):
                    captures.append(self._capture(epoch, accounts))
        replies = any(isinstance(instruction, Reply) for instruction in work)
        return (self.store.snapshot() if replies else None), captures

    def _capture(self, epoch: int, accounts: str) -> Captured:
        waiting = {
            lot: Waiting(sums.values.copy(), sums.weight)
            for lot, sums in self.sums.items()
            if sums.values is not None
        }
        return Captured(epoch, self.store.snapshot(), accounts, waiting)
