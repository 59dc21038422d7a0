"""Who trains: leases of the data plane, and M.

A worker's lease begins when it pulls and is kept by commits and renewals. M is the
number of distinct trainers that held a lease or committed within the membership
window, which is longer than a lease: a broken link that comes back must not halve M
and so double everybody's weight.
"""

from __future__ import annotations

import math
from collections.abc import Set


class Membership:
    """Leases by worker. Times are monotonic seconds, passed in.

    Args:
        lease_s: a lease ends so long after it was last kept.
        window_s: a worker counts in M for so long after its lease ended.
    """

    def __init__(self, lease_s: float, window_s: float) -> None:
        self.lease_s = lease_s
        self.window_s = window_s
        self._ends: dict[str, float] = {}  # when the lease ends, or ended
        self._live: set[str] = set()
        self._active: frozenset[str] = frozenset()  # as of `_active_at`, and until `_active_until`
        self._active_at = math.inf
        self._active_until = -math.inf

    def configure(self, lease_s: float, window_s: float) -> None:
        """New durations; a lease in force keeps its end until it is kept again."""
        self.lease_s, self.window_s = lease_s, window_s
        self._active_until = -math.inf

    def keep(self, worker: str, now: float) -> bool:
        """Begin or keep a lease. True if the worker had none."""
        if worker not in self._active:
            self._active_until = -math.inf
        self._ends[worker] = max(now + self.lease_s, self._ends.get(worker, now))
        returned = worker not in self._live
        self._live.add(worker)
        return returned

    def drop(self, worker: str) -> bool:
        """End a lease and forget the worker at once (a quarantine). True if it had a lease."""
        self._ends.pop(worker, None)
        self._active_until = -math.inf
        had = worker in self._live
        self._live.discard(worker)
        return had

    def excuse(self, lost_s: float, now: float) -> None:
        """This process did not listen for `lost_s` seconds until now: they count in no lease."""
        for name in self._live:
            end = self._ends[name]
            self._ends[name] = max(end, min(end + lost_s, now + self.lease_s))
        self._active_until = -math.inf

    def expire(self, now: float) -> list[str]:
        """End the leases that are due; returns whose, by name."""
        ended = sorted(name for name in self._live if self._ends[name] <= now)
        self._live.difference_update(ended)
        for name in [n for n, end in self._ends.items() if n not in self._live and end + self.window_s < now]:
            del self._ends[name]
        return ended

    @property
    def live(self) -> Set[str]:
        """Who holds a lease, as of the last `expire`."""
        return self._live

    def active(self, now: float) -> Set[str]:
        """The trainers that M counts. Each commit asks, so they are counted anew only when one may be out."""
        if not self._active_at <= now <= self._active_until:
            self._active = frozenset(self.counted(now))
            self._active_at = now
            self._active_until = min((self._ends[n] for n in self._active), default=-math.inf) + self.window_s
        return self._active

    def counted(self, now: float) -> Set[str]:
        """The same, for another thread: changes nothing."""
        ends = list(self._ends.items())  # in one step
        return {name for name, end in ends if end + self.window_s >= now}

    def next_end(self) -> float | None:
        """When the next lease ends."""
        return min((self._ends[name] for name in self._live), default=None)
