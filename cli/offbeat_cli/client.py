"""The operator's calls to a scheduler, with errors that a person can act on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc

from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc
from offbeat_core import channels, retry
from offbeat_core.errors import OffbeatError

CALL_S = 10.0
ABSENT_S = 60.0


class SchedulerClient:
    """Calls to the scheduler at `address` (HOST:PORT); close it, or use it in a `with`."""

    def __init__(self, address: str, *, field: str = "--scheduler") -> None:
        channels.split_address(address, field)
        self.address = address
        self._field = field
        self._channel = channels.connect_blocking(address)
        self._stub = scheduler_pb2_grpc.SchedulerStub(self._channel)

    def __enter__(self) -> SchedulerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def submit(self, run_yaml: str) -> pb.SubmitRunReply:
        try:
            return self._stub.SubmitRun(pb.SubmitRunRequest(run_yaml=run_yaml), timeout=CALL_S)
        except grpc.RpcError as error:
            raise self._explain(error) from error

    def stop(self, run_id: str = "") -> str:
        """Ask to stop a run (empty: the current one); returns its id."""
        try:
            return str(self._stub.StopRun(pb.StopRunRequest(run_id=run_id), timeout=CALL_S).run_id)
        except grpc.RpcError as error:
            raise self._explain(error) from error

    def status(self) -> pb.Status:
        try:
            return self._stub.GetStatus(pb.StatusRequest(), timeout=CALL_S)
        except grpc.RpcError as error:
            raise self._explain(error) from error

    def watch(
        self, every_s: float, say: Callable[[str], None], *, absent_s: float = ABSENT_S
    ) -> Iterator[pb.Status]:
        """Statuses as they change, at most every `every_s`; without end.

        A scheduler that goes away is dialled again for `absent_s` seconds, then OffbeatError.
        `say` is told once that it is away, and once that it is back.
        """
        lost_at: float | None = None
        waits = retry.delays(longest=2.0)
        while True:
            try:
                for status in self._stub.WatchStatus(pb.StatusRequest(every_s=every_s)):
                    if lost_at is not None:
                        say(f"the scheduler at {self.address} is back")
                        lost_at = None
                    yield status
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise self._explain(error) from error
                problem = self._explain(error)
            else:
                problem = OffbeatError(f"{self._field}: {self.address}: the scheduler ended the stream")
            now = time.monotonic()
            if lost_at is None:
                lost_at, waits = now, retry.delays(longest=2.0)
                say(f"{problem.problem}; dialling again for {absent_s:g} s")
            elif now - lost_at > absent_s:
                raise problem
            time.sleep(next(waits))

    def _explain(self, error: grpc.RpcError) -> OffbeatError:
        code = error.code()
        details = str(error.details() or "")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return OffbeatError(
                f"{self._field}: {self.address}: no scheduler answers",
                "start one with offbeat-scheduler, or name the address that it listens on",
            )
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return OffbeatError(
                f"{self._field}: {self.address}: this is not an Offbeat scheduler",
                "the parameter server and the scheduler have ports of their own",
            )
        problem, _, remedy = details.partition("\n")
        return OffbeatError(problem or f"{self.address}: {code.name}", remedy)
