"""A server that can't be reached is said once, and once when it is back: not every second."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)


class Outage:
    """Says when `what` (a name with its address) is lost and when it is back; counts failures.

    Several kinds of call may fail and work at different times: it is back once all of
    those that failed have worked again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = 0.0
        self._failing: set[str] = set()
        self.failures = 0

    def failed(self, reason: str, call: str = "") -> None:
        self.failures += 1
        if not self._failing:
            self._since = time.monotonic()
            log.warning("%s cannot be reached (%s); trying again until it can", self._what, reason)
        self._failing.add(call)

    def over(self, call: str = "") -> None:
        if call in self._failing:
            self._failing.remove(call)
            if not self._failing:
                log.info("%s is back after %.0f s", self._what, time.monotonic() - self._since)
