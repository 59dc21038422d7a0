"""Who attends: agents by name, incarnation and lease.

A cut stream is no departure: the agent stays a member, *detached*, until its lease ends,
for it may be training on and dial again. A newer process of the same name takes over at
once and the older one is told. A process that was told and comes back while the newer
one attends shows that two live devices have one name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.events import KnownAgent
from offbeat_scheduler.timing import since

REMEMBERED_INCARNATIONS = 8
FIGHT_TAKEOVERS = 3
"""So many live processes pushed out in a row, each soon after the last, are a fight over the name."""

ROLE_NAMES = {
    common.ROLE_PARAMETER_SERVER: "parameter server",
    common.ROLE_WORKER: "worker",
    common.ROLE_EVALUATOR: "evaluator",
}


@dataclass
class Agent:
    """A member. `seen_s`: when something of it was last heard."""

    hello: pb.Hello
    seen_s: float
    attached: bool = True
    superseded: tuple[str, ...] = ()
    takeovers: int = 0
    taken_over_s: float = 0.0

    @property
    def name(self) -> str:
        return self.hello.name

    @property
    def incarnation(self) -> str:
        return self.hello.incarnation

    @property
    def role(self) -> common.Role:
        return self.hello.role


class Arrival(Enum):
    """What a Hello meant."""

    NEW = "new"
    RETURNED = "returned"  # the same process dialled again
    REPLACED = "replaced"  # a newer process of that name
    REFUSED = "refused"


@dataclass(frozen=True)
class Joined:
    """The outcome of a Hello.

    Args:
        closes: the incarnation whose stream must end, with `reason`; its own where it was refused.
        clash: it was refused because another role has the name.
        fight: two live devices use this name; what to tell the operator.
    """

    arrival: Arrival
    closes: str = ""
    reason: str = ""
    fight: str = ""
    clash: bool = False


class Membership:
    """Agents by name, in the order in which they joined."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._agents: dict[str, Agent] = {}
        self._no_expiry_before = float("inf")  # a lower bound: leases only grow

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def get(self, name: str) -> Agent | None:
        return self._agents.get(name)

    def with_role(self, role: common.Role) -> list[Agent]:
        """Members with that role, in the order in which they joined."""
        return [agent for agent in self._agents.values() if agent.role == role]

    def restore(self, known: KnownAgent) -> None:
        """A member as a log recorded it."""
        self._agents[known.hello.name] = Agent(
            known.hello,
            known.seen_s,
            known.attached,
            known.superseded,
            known.takeovers,
            known.taken_over_s,
        )
        self._no_expiry_before = min(self._no_expiry_before, known.seen_s + self._lease_s)

    def known(self, now: float) -> tuple[KnownAgent, ...]:
        """All members, with times relative to `now`."""
        return tuple(
            KnownAgent(
                agent.hello,
                since(now, agent.seen_s),
                agent.attached,
                agent.superseded,
                agent.takeovers,
                since(now, agent.taken_over_s),
            )
            for agent in self
        )

    def join(self, hello: pb.Hello, now: float) -> Joined:
        old = self._agents.get(hello.name)
        self._no_expiry_before = min(self._no_expiry_before, now + self._lease_s)
        if old is None:
            self._agents[hello.name] = Agent(hello, now)
            return Joined(Arrival.NEW)
        if old.role != hello.role:
            reason = (
                f"the name '{hello.name}' is taken by the {ROLE_NAMES.get(old.role, 'agent')}; "
                f"give this {ROLE_NAMES.get(hello.role, 'agent')} another `name`"
            )
            return Joined(Arrival.REFUSED, hello.incarnation, reason, fight=reason, clash=True)
        if old.incarnation == hello.incarnation:
            old.hello, old.seen_s, old.attached = hello, now, True
            return Joined(Arrival.RETURNED)
        if hello.incarnation in old.superseded:
            return Joined(
                Arrival.REFUSED,
                hello.incarnation,
                _newer(hello.name),
                fight=self._fight(hello.name, old.hello, hello),
            )
        return self._replace(old, hello, now)

    def _replace(self, old: Agent, hello: pb.Hello, now: float) -> Joined:
        """A newer process takes the name over."""
        soon = since(old.taken_over_s, now) < 6 * self._lease_s
        takeovers = (old.takeovers if soon else 0) + 1 if old.attached else 0
        del self._agents[old.name]  # so that it stands last in the order of joining
        self._agents[hello.name] = Agent(
            hello,
            now,
            superseded=(*old.superseded, old.incarnation)[-REMEMBERED_INCARNATIONS:],
            takeovers=takeovers,
            taken_over_s=now,
        )
        return Joined(
            Arrival.REPLACED,
            old.incarnation if old.attached else "",
            _newer(hello.name),
            fight=self._fight(hello.name, old.hello, hello) if takeovers >= FIGHT_TAKEOVERS else "",
        )

    @staticmethod
    def _fight(name: str, one: pb.Hello, other: pb.Hello) -> str:
        def shown(hello: pb.Hello) -> str:
            where = f"{hello.device.machine} " if hello.device.machine else ""
            return f"{where}process {hello.incarnation[:8]}, shard {hello.shard}"

        return (
            f"two devices call themselves '{name}' ({shown(one)}; {shown(other)}): "
            "only one of them takes part; give each its own `name`"
        )

    def seen(self, name: str, incarnation: str, now: float) -> Agent | None:
        """Renew the lease of the agent that a report came from; None if that is not its member any more."""
        agent = self._agents.get(name)
        if agent is None or agent.incarnation != incarnation:
            return None
        agent.seen_s = now
        return agent

    def leave(self, name: str, incarnation: str, *, goodbye: bool) -> Agent | None:
        """A stream ended. Returns the agent if it has left (goodbye), None if its lease still holds."""
        agent = self._agents.get(name)
        if agent is None or agent.incarnation != incarnation:
            return None
        agent.attached = False
        return self._agents.pop(name) if goodbye else None

    def excuse(self, lost_s: float, now: float) -> None:
        """Nobody listened for `lost_s` seconds until now: they count in no lease."""
        for agent in self:
            agent.seen_s = min(now, agent.seen_s + lost_s)

    def expire(self, now: float) -> list[Agent]:
        """Remove and return the members whose lease has ended."""
        if since(self._no_expiry_before, now) < 0:
            return []
        gone = [agent for agent in self if since(agent.seen_s, now) >= self._lease_s]
        for agent in gone:
            del self._agents[agent.name]
        self._no_expiry_before = min((a.seen_s for a in self), default=float("inf")) + self._lease_s
        return gone

    @property
    def next_expiry(self) -> float:
        """No lease ends before this."""
        return self._no_expiry_before


def _newer(name: str) -> str:
    return f"a newer process attends as '{name}'; if that is another device, give each its own `name`"
