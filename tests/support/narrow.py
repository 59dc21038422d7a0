"""A link that lets only so many bytes per second through to the device, as a weak radio does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

CHUNK_BYTES = 4096


class NarrowLink:
    """Forwards to `target` (HOST:PORT); a context manager.

    Args:
        bytes_per_s: that come down, over all of its connections. What goes up is not held back.

    Attributes:
        address: HOST:PORT to connect to instead.
    """

    def __init__(self, target: str, bytes_per_s: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="narrow link", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> NarrowLink:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=CHUNK_BYTES)

    async def _close(self) -> None:
        self._server.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(sock=await self._far(), limit=CHUNK_BYTES)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.ensure_future(self._forward(reader, far_writer, narrow=False)),
            asyncio.ensure_future(self._forward(far_reader, writer, narrow=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            far_writer.close()

    async def _far(self) -> socket.socket:
        """A connection to the target on which little can wait: what is on its way is what the link holds."""
        far = socket.socket()
        far.setblocking(False)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK_BYTES)
        await self._loop.sock_connect(far, self._target)
        return far

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, narrow: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if narrow:
                    now = self._loop.time()
                    self._free_s = max(now, self._free_s) + len(data) / self._bytes_per_s
                    await asyncio.sleep(self._free_s - now)
                writer.write(data)
                await writer.drain()
