"""Updates that wait for their fold, in lots: a gate's own, or with a buffer of K all of the fleet's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """What the accounts and answers need of an update in the sums.

    Attributes:
        weight: with which it is in the sums.
        measure: at a gate, the weight before its staleness lowered it.
        in_cycle: it came on time to the gate's open cycle. Late ones, and those made for a
            generation of which this server has not heard yet, are not cut off with the cycle.
    """

    worker: str
    incarnation: str
    sequence: int
    weight: float
    measure: float
    in_cycle: bool = False


class Pending:
    """The updates by lot."""

    def __init__(self) -> None:
        self._lots: dict[int, list[Update]] = {}

    def __len__(self) -> int:
        lots = list(self._lots.values())  # in one step: metrics are read from another thread
        return sum(len(updates) for updates in lots)

    def add(self, lot: int, update: Update) -> int:
        """How many wait in this lot now."""
        updates = self._lots.setdefault(lot, [])
        updates.append(update)
        return len(updates)

    def take(self, lot: int) -> list[Update]:
        """All of a lot, leaving nothing behind."""
        return self._lots.pop(lot, [])

    def lots(self) -> list[int]:
        """Those in which something waits."""
        return list(self._lots)

    def in_cycle(self, lot: int) -> bool:
        """Does anything wait for the open cycle itself?"""
        return any(update.in_cycle for update in self._lots.get(lot, ()))
