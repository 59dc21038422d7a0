"""Which directive holds: the one with the highest revision, by whichever way it came.

A scheduler that was restarted counts from the start again; its Welcome names another
incarnation, and then whatever it says next holds.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Revised(Protocol):
    @property
    def revision(self) -> int: ...


D = TypeVar("D", bound=Revised)


class DirectiveBook(Generic[D]):
    """Keeps the directive in force.

    Args:
        start: in force until the first one comes.
    """

    def __init__(self, start: D) -> None:
        self.current = start
        self._revision: int | None = None
        self._incarnation = ""

    def welcome(self, scheduler_incarnation: str) -> None:
        """The scheduler said who it is."""
        if scheduler_incarnation != self._incarnation:
            self._incarnation = scheduler_incarnation
            self._revision = None

    def offer(self, directive: D) -> bool:
        """A directive came; True if it holds from now on."""
        if self._revision is not None and directive.revision <= self._revision:
            return False
        self.current = directive
        self._revision = directive.revision
        return True

    def offer_in_reply(self, directive: D) -> bool:
        """The same for one that came in a commit's reply, where the parameter server kept it.

        It may be of a scheduler that is gone, with a revision that the present one won't
        reach for long: until that one has spoken itself, a reply changes nothing.
        """
        return self._revision is not None and self.offer(directive)
