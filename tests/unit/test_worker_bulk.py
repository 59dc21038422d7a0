"""One attempt at the parameter server, where the other end does not move."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from offbeat.v1 import parameter_server_pb2 as ps
from offbeat_worker import bulk
from offbeat_worker.bulk import Bulk


class Stuck:
    """A call whose parts never leave; reading it ends, as gRPC's does, when it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def write(self, message: Any) -> None:
        await asyncio.sleep(3600)

    async def read(self) -> Any:
        await self.cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self) -> None:
        self.cancelled.set()

    def done(self) -> bool:
        return False


def test_update_that_cannot_leave_is_a_timeout_and_not_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the task that carries the commit would end, and the update be lost."""
    monkeypatch.setattr(bulk, "PART_S", 0.05)

    async def scenario() -> None:
        connection = Bulk(bulk.grpc.aio.insecure_channel("127.0.0.1:1"), "w", "i")
        stuck = Stuck()

        class Stub:
            def Commit(self) -> Stuck:
                return stuck

        connection._stub = Stub()
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await connection.commit(ps.CommitHeader(), np.zeros(4, "f4"), gated=False)
        assert stuck.cancelled.is_set()

    asyncio.run(scenario())
