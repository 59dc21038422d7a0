"""Time as the decisions see it: whole microseconds, whatever the clock's origin.

A run recorded at one origin and replayed at another must see the same durations to the
last bit; differences of floats with unlike magnitudes would not give that.
"""

from __future__ import annotations

DIGITS = 6


def since(origin: float, now: float) -> float:
    """Seconds from `origin` to `now`, rounded to microseconds."""
    return round(now - origin, DIGITS)
