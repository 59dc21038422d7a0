"""Waiting between attempts: exponential, with full jitter, from an injected source of chance."""

from __future__ import annotations

import random
from collections.abc import Iterator


def delays(
    *, first: float = 0.2, factor: float = 2.0, longest: float = 10.0, chance: random.Random | None = None
) -> Iterator[float]:
    """Seconds to wait before attempt 2, 3, ...: uniform in [ceiling/2, ceiling], ceiling doubling.

    Jitter keeps a thousand workers that lost the same server from coming back in the
    same millisecond; half of the ceiling is kept so that a retry is never at once.
    """
    chance = chance or random.Random()
    ceiling = first
    while True:
        yield ceiling * (0.5 + 0.5 * chance.random())
        ceiling = min(ceiling * factor, longest)
