"""Time as the decisions see it: whole microseconds, whatever the clock's origin.

A run recorded at one origin and replayed at another must see the same durations to the
last bit; differences of floats with unlike magnitudes would not give that.
"""

from __future__ import annotations

DIGITS = 6


def since(origin: float, now: float) -> float:
    """Seconds from `origin` to `now`, rounded to microseconds; never -0.0, which JSON and protobuf keep."""
    return round(now - origin, DIGITS) + 0.0
