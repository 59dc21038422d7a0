"""Where the training thread's time goes.

Every moment from the first training directive to the run's end belongs to exactly one
`Share`; counted in whole nanoseconds, so the shares sum exactly to the total.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

from offbeat.v1 import scheduler_pb2 as pb


class Share(IntEnum):
    """What the training thread is doing."""

    COMPUTE = 0  # data, forward, backward, optimizer
    PACED = 1  # emulated slowness
    COMMIT = 2  # held by a commit: cutting the update, merging the fresh model
    WAIT = 3  # for network, gate or directive


class Stopwatch:
    """Attributes time to shares. One thread switches; any thread may read.

    Args:
        now: monotonic nanoseconds.
    """

    def __init__(self, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._now = now
        # One tuple, replaced whole: a reader on another thread never sees half a switch.
        self._state: tuple[tuple[int, int, int, int], Share | None, int] = ((0, 0, 0, 0), None, now())

    @property
    def running(self) -> bool:
        return self._state[1] is not None

    def switch(self, share: Share) -> int:
        """From now on time belongs to `share`. Returns the nanosecond at which it switched."""
        return self._switch(share)

    def stop(self) -> None:
        """From now on time belongs to nothing, until the next `switch`."""
        self._switch(None)

    def nanoseconds(self) -> dict[Share, int]:
        """Time per share so far, that of the running share included."""
        totals, share, since = self._state
        times = dict(zip(Share, totals, strict=True))
        if share is not None:
            times[share] += max(0, self._now() - since)
        return times

    def to_proto(self) -> pb.Shares:
        times = self.nanoseconds()
        return pb.Shares(
            compute_s=times[Share.COMPUTE] * 1e-9,
            paced_s=times[Share.PACED] * 1e-9,
            commit_s=times[Share.COMMIT] * 1e-9,
            wait_s=times[Share.WAIT] * 1e-9,
        )

    def _switch(self, share: Share | None) -> int:
        totals, before, since = self._state
        now = self._now()
        if before is not None:
            changed = list(totals)
            changed[before] += now - since
            totals = (changed[0], changed[1], changed[2], changed[3])
        self._state = (totals, share, now)
        return now
