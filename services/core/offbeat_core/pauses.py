"""Was this process itself not running?

One that was frozen, swapped out or starved of CPU finds all that its peers said meanwhile
in its sockets, but its timers fire first: without care it takes everybody for dead.
A lease counts only time in which its keeper listened. (Failure detectors know this as a
local pause.)
"""

from __future__ import annotations


class Pauses:
    """Tells from beats that should come every `every_s` how long there were none.

    Pure: whoever keeps the time calls `beat` at `due` or earlier.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last: float | None = None

    def due(self, now: float) -> float:
        """When the next beat is due; the first call begins the beats."""
        if self._last is None:
            self._last = now
        return self._last + self._every_s

    def beat(self, now: float) -> float:
        """Seconds since the last beat in which this process did not run; 0 if the beat is not late.

        What is less than `every_s` is a busy process, not a paused one.
        """
        lost_s = now - self.due(now)
        self._last = now
        return lost_s if lost_s > self._every_s else 0.0
