"""A link of a test's own: `offbeat_cli.relay` in a thread, to be cut or held at any moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from offbeat_cli.relay import Relay

T = TypeVar("T")


class Link:
    """Forwards to `target` (HOST:PORT); a context manager.

    Attributes:
        address: HOST:PORT to connect to instead.
    """

    def __init__(self, target: str, delay_s: float = 0.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._relay = self._do(self._make(target, delay_s))
        self.address = f"127.0.0.1:{self._do(self._relay.start())}"

    @staticmethod
    async def _make(target: str, delay_s: float) -> Relay:
        return Relay(target, delay_s)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._relay.let_go)
        self._do(self._relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """End every connection; new ones are accepted."""
        self._do(self._relay.cut())

    def hold(self) -> None:
        """Let nothing pass, and tell nobody."""
        self._call(self._relay.hold)

    def let_go(self) -> None:
        self._call(self._relay.let_go)

    def _call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
