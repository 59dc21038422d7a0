"""Calls to the parameter server that are tried until they work, or can't ever.

What breaks off is tried again, with growing pauses, for as long as it takes; it is counted, and
an outage said once. An error that would only come again is raised.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from offbeat_core.retry import delays
from offbeat_worker.attend import Superseded
from offbeat_worker.bulk import RETRIED, Verdict, describe, judge
from offbeat_worker.outage import Outage

log = logging.getLogger(__name__)

PATIENT_TRIES = 3
"""A server that hears of a run a little later than its workers is no news; one that forgot it is."""

CALLS, LEASE = "calls", "lease"
"""What may fail on its own: an outage is over once both work."""

T = TypeVar("T")


class Hopeless(Exception):
    """The parameter server says that this will never work."""


class Persistence:
    """Tries again.

    Args:
        name: of this worker.
        server: the parameter server's address, for the log.
        introduce: makes this process known to a server that does not know it.

    Attributes:
        retries: attempts that failed and were made again.
    """

    def __init__(self, name: str, server: str, introduce: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._introduce = introduce
        self.outage = Outage(f"parameter server {server}")
        self.retries = 0

    async def persist(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        until_not_yet: bool = False,
        again: Callable[[], None] = lambda: None,
    ) -> T | None:
        """Try until it works; None where the server has no model yet and `until_not_yet` is set.

        Args:
            again: called before each further attempt.

        Raises Superseded, Hopeless, ManifestMismatch: trying again would not help.
        """
        waits = delays(longest=5.0)
        for tries in itertools.count(1):
            try:
                result = await attempt()
            except RETRIED as error:
                verdict = self.weigh(error, CALLS)
                if verdict is Verdict.NOT_YET and until_not_yet:
                    return None
                if verdict is not Verdict.AGAIN and tries == PATIENT_TRIES:
                    self.outage.failed(describe(error), CALLS)
                if verdict is Verdict.NOT_PULLED:
                    await self._introduce()
            else:
                self.outage.over(CALLS)
                return result
            await asyncio.sleep(next(waits))
            again()
        raise AssertionError("itertools.count has ended")

    def weigh(self, error: BaseException, call: str) -> Verdict:
        """Count an error and say it once; raises where trying again would not help."""
        verdict = judge(error)
        if verdict is Verdict.SUPERSEDED:
            raise Superseded(self._name, "parameter server") from error
        if verdict is Verdict.WRONG:
            raise Hopeless(f"parameter server: {describe(error)}") from error
        # An unclear end is tried again as well, though it says nothing about the server.
        self.retries += verdict in (Verdict.AGAIN, Verdict.UNCLEAR)
        if verdict is Verdict.AGAIN:
            self.outage.failed(describe(error), call)
        else:
            log.debug("parameter server: %s", describe(error))
        return verdict
