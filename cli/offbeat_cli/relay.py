"""A TCP relay that gives a link a delay.

What one side writes reaches the other `delay_s` seconds later, in both directions, in
order; nothing else changes: no limit of bandwidth, no loss. So a call of one round
trip takes 2 * delay_s longer. `offbeat demo --commit-delay` puts it between the workers
and the parameter server, as a process of its own:

    python -m offbeat_cli.relay --target 127.0.0.1:50051 --delay 0.05 --ready-file relay.json

Tests use `Relay` in their own event loop; there `delay_s` can be changed at any time,
`cut` ends every connection, as a router does that restarts, and between `hold` and
`let_go` nothing passes and nobody is told, as with a cable that was pulled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import signal
import socket
import sys
from collections import deque
from pathlib import Path

from offbeat_core import lifeline, logs
from offbeat_core.channels import split_address
from offbeat_core.errors import OffbeatError, guard
from offbeat_core.service import announce

CHUNK_BYTES = 256 * 1024
# A sender that is far ahead of a slow reader is held back, as it would be by a socket.
ON_THE_WAY_BYTES = 256 * 1024 * 1024


class Relay:
    """Accepts connections and forwards each to `target` (HOST:PORT).

    Args:
        target: where the connections go.
        delay_s: seconds that each byte is under way, per direction.
    """

    def __init__(self, target: str, delay_s: float) -> None:
        self._target = split_address(target, "target")
        self.delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()

    async def start(self, listen: str = "127.0.0.1:0") -> int:
        """Listen, and return the port. Raises OffbeatError where it is taken."""
        host, port = split_address(listen, "listen")
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=CHUNK_BYTES)
        except OSError as error:
            raise OffbeatError(f"listen: {listen}: {error.strerror}", "choose another port, or 0") from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server:
            self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End every connection, at both ends, at once; new ones are accepted."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def hold(self) -> None:
        """Let nothing pass, neither bytes nor the end of a connection, until `let_go`."""
        self._passing.clear()

    def let_go(self) -> None:
        """What was held arrives, as TCP would send it again."""
        self._passing.set()

    async def passing(self) -> None:
        """Wait while held."""
        await self._passing.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        # Cancelling is how a link is cut: asyncio need not report it.
        with contextlib.suppress(asyncio.CancelledError):
            await self._link(reader, writer)
        self._links.discard(link)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            far_reader, far = await asyncio.open_connection(*self._target, limit=CHUNK_BYTES)
            ends.append(far)
            for end in ends:
                # A small frame must not wait for the acknowledgement of the one before it.
                end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = _Direction(self, reader, far)
            back = _Direction(self, far_reader, writer)
            await asyncio.gather(there.run(), back.run())
        except (OSError, _Cut):
            pass  # either end may vanish; the other then sees its connection end
        finally:
            for end in ends:
                end.transport.abort()


class _Cut(Exception):
    """The other end of a connection has gone."""


class _Direction:
    """Bytes from `reader` to `writer`, each `relay.delay_s` after it was read."""

    def __init__(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relay = relay
        self._reader = reader
        self._writer = writer
        self._under_way: deque[tuple[float, bytes]] = deque()  # (due, bytes); no bytes: the end
        self._under_way_bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._take()), asyncio.create_task(self._give())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.wait()
            try:
                data = await self._reader.read(CHUNK_BYTES)
            except OSError as error:
                await self._relay.passing()
                raise _Cut from error
            self._under_way.append((loop.time() + self._relay.delay_s, data))
            self._under_way_bytes += len(data)
            if self._under_way_bytes > ON_THE_WAY_BYTES:
                self._room.clear()
            self._arrived.set()
            if not data:
                return

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._under_way:
                self._arrived.clear()
                await self._arrived.wait()
            due, data = self._under_way[0]
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            await self._relay.passing()
            self._under_way.popleft()
            self._under_way_bytes -= len(data)
            self._room.set()
            try:
                if not data:
                    if self._writer.can_write_eof():
                        self._writer.write_eof()
                    return
                self._writer.write(data)
                await self._writer.drain()
            except OSError as error:
                raise _Cut from error


async def _serve(listen: str, target: str, delay_s: float, ready_file: Path | None) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    lifeline.hold_on()
    relay = Relay(target, delay_s)
    port = await relay.start(listen)
    announce(ready_file, port=port)
    logs.setup("offbeat-relay").info("127.0.0.1:%d -> %s, %g s each way", port, target, delay_s)
    await stop.wait()
    await relay.close()
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="offbeat-relay", description="A TCP link with a delay.")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--target", required=True, metavar="HOST:PORT")
    parser.add_argument("--delay", type=float, required=True, metavar="S", help="Seconds, each way.")
    parser.add_argument("--ready-file", type=Path, metavar="FILE")
    given = parser.parse_args(argv)

    def body() -> int:
        if not (math.isfinite(given.delay) and given.delay >= 0):
            raise OffbeatError(f"--delay: {given.delay} is not 0 or more", "give seconds")
        return asyncio.run(_serve(given.listen, given.target, given.delay, given.ready_file))

    return guard(body)


if __name__ == "__main__":
    sys.exit(main())
