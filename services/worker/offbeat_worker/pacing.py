"""Emulated slowness: no local update takes less than `step_seconds`.

That is with the run's batch; where a plan gives the device another one, and for the smaller one at a
pass's end, in proportion, but for a fixed part: t(b) = fixed + (step - fixed) b / b0.
The training thread really sleeps, so a paced worker behaves as a slow device does in
everything but the heat. The pace can change while running: `PaceFile` reads it from
a file whenever that changes.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

log = logging.getLogger(__name__)


class Pace:
    """The seconds that a local update takes at least; 0 does not slow down. Any thread may set it.

    Args:
        fixed_seconds: of these, what does not grow with the batch; all of them where they are fewer.
    """

    def __init__(self, step_seconds: float = 0.0, fixed_seconds: float = 0.0) -> None:
        self.step_seconds = step_seconds
        self._fixed_seconds = fixed_seconds

    def rest(self, spent_s: float, scale: float = 1.0, *, halved: bool = False) -> float:
        """Seconds left to sleep after an update that took `spent_s`, of `scale` times the run's batch, gone
        through in two halves or not."""
        whole = self.step_seconds
        fixed = min(self._fixed_seconds, whole)
        return max(0.0, fixed * (1 + halved) + (whole - fixed) * scale - spent_s)


class PaceFile:
    """A file with one number: the seconds per local update.

    A value that makes no sense is said once per change of the file, and the last good one stays.
    """

    def __init__(self, path: Path, pace: Pace) -> None:
        self._path = path
        self._pace = pace
        self._seen: tuple[int, int] | None = None

    def poll(self) -> bool:
        """Read the file if it changed; True if the pace did. A file that is not there changes nothing."""
        try:
            status = self._path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if mark == self._seen:
                return False
            text = self._path.read_text(encoding="utf-8").strip()
        except OSError:
            return False
        self._seen = mark
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value >= 0 and math.isfinite(value)):
            log.warning(
                "step_seconds_file: %s holds %r, not seconds of 0 or more; staying at %g s",
                self._path,
                text[:40],
                self._pace.step_seconds,
            )
            return False
        changed = value != self._pace.step_seconds
        self._pace.step_seconds = value
        if changed:
            log.info("a local update now takes at least %g s", value)
        return changed
