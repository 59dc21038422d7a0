"""A server that can't be reached is said once, and once when it is back: not every second."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)


class Outage:
    """Says when `what` (a name with its address) is lost and when it is back; counts failures."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        self.failures = 0

    def failed(self, reason: str) -> None:
        self.failures += 1
        if self._since is None:
            self._since = time.monotonic()
            log.warning("%s cannot be reached (%s); trying again until it can", self._what, reason)

    def over(self) -> None:
        if self._since is not None:
            log.info("%s is back after %.0f s", self._what, time.monotonic() - self._since)
            self._since = None
