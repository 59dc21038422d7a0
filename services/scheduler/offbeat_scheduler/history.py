"""Histories that cover a whole run in bounded memory."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Thinned(Generic[T]):
    """At most `limit` items spread over everything that was added; the first and the last are always there.

    When it is full every second item goes, and from then on only every second one is
    kept, so a plot of an hour-long run has as many points as one of a minute.
    """

    def __init__(self, limit: int = 1000) -> None:
        if limit < 2:
            raise ValueError(f"limit: {limit} is less than 2")
        self._limit = limit
        self._stride = 1
        self._added = 0
        self._kept: list[T] = []
        self._last: T | None = None

    def add(self, item: T) -> None:
        if self._added % self._stride == 0:
            self._kept.append(item)
        self._last = item
        self._added += 1
        if len(self._kept) >= self._limit:
            self._kept = self._kept[::2]
            self._stride *= 2

    def items(self) -> list[T]:
        """Oldest first."""
        if self._last is None or (self._kept and self._kept[-1] is self._last):
            return list(self._kept)
        return [*self._kept, self._last]

    def __len__(self) -> int:
        return self._added
