"""A live scheduler on a free port of loopback, and scripted agents that dial it over real gRPC."""

import asyncio
import contextlib

import grpc
import grpc.aio

from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc
from offbeat_core import channels
from offbeat_core.clock import RealClock
from offbeat_core.config import Settings
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.event_log import EventLog
from offbeat_scheduler.events import HubState
from offbeat_scheduler.hub import Hub
from offbeat_scheduler.service import SchedulerService
from offbeat_scheduler.servicer import SchedulerServicer
from support.scheduler_world import DIGEST, ROLES, FakeModel

WAIT_S = 20.0
"""Only ever reached by a test that fails."""


def make_fake(spec, run):
    if spec.model != "fake":
        raise OffbeatError(f"sync: '{spec.model}' is not a synchronization model", "known here: fake")
    return FakeModel(Settings(), run)


class Live:
    """A scheduler in this event loop. Use with `async with live_scheduler(...)`."""

    def __init__(self, service, server, port):
        self.service = service
        self.server = server
        self.port = port
        self.channel = channels.connect(f"127.0.0.1:{port}")
        self.stub = scheduler_pb2_grpc.SchedulerStub(self.channel)
        self.agents = []

    async def agent(self, role, name, incarnation=None, *, tasks=None, channel=None):
        """An agent that attends and was welcomed."""
        agent = ScriptedAgent(self, role, name, incarnation or f"{name}-1", tasks, channel)
        self.agents.append(agent)
        await agent.until(lambda directive: directive.WhichOneof("kind") == "welcome")
        return agent

    async def submit(self, text):
        return (await self.stub.SubmitRun(pb.SubmitRunRequest(run_yaml=text))).run_id

    async def status(self):
        return await self.stub.GetStatus(pb.StatusRequest())

    async def status_where(self, holds):
        """The first status for which it holds."""
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while not holds(status := await self.status()):
            assert asyncio.get_running_loop().time() < deadline, status
            await asyncio.sleep(0.01)
        return status


class ScriptedAgent:
    """Says what the test tells it to say; keeps what it hears."""

    def __init__(self, live, role, name, incarnation, tasks, channel):
        has = {"digits": DIGEST} if role != "ps" else {}
        self.hello = pb.Hello(
            role=ROLES[role], name=name, incarnation=incarnation, tasks=has if tasks is None else tasks
        )
        stub = scheduler_pb2_grpc.SchedulerStub(channel) if channel else live.stub
        self.call = stub.Attend()
        self.heard = []
        self._news = asyncio.Event()
        self._tasks = [asyncio.create_task(self._listen())]

    async def _listen(self):
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await self.call.write(pb.Report(hello=self.hello))
            while (directive := await self.call.read()) is not grpc.aio.EOF:
                self.heard.append(directive)
                self._news.set()
        self._news.set()

    async def say(self, **report):
        await self.call.write(pb.Report(**report))

    def keep_saying(self, every_s=0.1, **report):
        """Again and again, until `quiet`."""

        async def beat():
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                while True:
                    await self.say(**report)
                    await asyncio.sleep(every_s)

        self._tasks.append(asyncio.create_task(beat()))

    def quiet(self):
        while len(self._tasks) > 1:
            self._tasks.pop().cancel()

    async def until(self, holds):
        """The first directive for which it holds, of all that were heard."""

        async def search():
            seen = 0
            while True:
                for directive in self.heard[seen:]:
                    if holds(directive):
                        return directive
                seen = len(self.heard)
                self._news.clear()
                assert not self.call.done(), f"the stream ended: {await self.call.code()}: {self.heard}"
                await self._news.wait()

        return await asyncio.wait_for(search(), WAIT_S)

    async def told(self, action):
        """The first WorkerDirective with that action."""
        found = await self.until(lambda d: d.WhichOneof("kind") == "worker" and d.worker.action == action)
        return found.worker

    async def end(self):
        """(code, details) with which the scheduler ended the stream."""
        return (
            await asyncio.wait_for(self.call.code(), WAIT_S),
            await asyncio.wait_for(self.call.details(), WAIT_S),
        )

    def close(self):
        self.quiet()
        self.call.cancel()


@contextlib.asynccontextmanager
async def live_scheduler(folder, *, lease_s=10.0, make_model=make_fake):
    hub = Hub(HubState("live-1", lease_s=lease_s, report_every_s=lease_s / 10), make_model)
    service = SchedulerService(hub, RealClock(), EventLog(folder), make_model)
    server = channels.make_server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SchedulerServicer(service), server)
    port = channels.listen(server, "127.0.0.1:0")
    await server.start()
    live = Live(service, server, port)
    try:
        yield live
    finally:
        for agent in live.agents:
            agent.close()
        await live.channel.close()
        service.close()
        await server.stop(1.0)
