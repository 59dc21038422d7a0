"""What goes into the scheduler's decisions and what comes out of them.

Events and instructions are plain values that can be written as JSON and, events, read
back: a run's log of them replays to identical decisions. Times are not part of them;
the driver passes the time in beside the event.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from google.protobuf import json_format
from google.protobuf.message import Message
from pydantic import BaseModel

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings
from offbeat_scheduler.sync import Plan, Probe

# ---- events --------------------------------------------------------------------


@dataclass(frozen=True)
class AgentJoined:
    """An agent opened its stream and said who it is."""

    hello: pb.Hello


@dataclass(frozen=True)
class AgentLeft:
    """A stream ended: by the agent's word (`goodbye`), or cut, and then its lease still holds."""

    name: str
    incarnation: str
    reason: str = ""
    goodbye: bool = False


@dataclass(frozen=True)
class WorkerReported:
    name: str
    incarnation: str
    report: pb.WorkerReport


@dataclass(frozen=True)
class ServerReported:
    name: str
    incarnation: str
    report: pb.ServerReport


@dataclass(frozen=True)
class Evaluated:
    """A report of the evaluator: that it is ready, a loss and a metric, or what went wrong."""

    name: str
    incarnation: str
    report: pb.EvaluatorReport


@dataclass(frozen=True)
class RunSubmitted:
    """A run whose settings are valid; `run_id` was made by the driver, for it needs chance."""

    run_id: str
    settings: RunSettings


@dataclass(frozen=True)
class StopRequested:
    reason: str = "stopped by the operator"


@dataclass(frozen=True)
class Tick:
    """The time that `Hub.next_wake` asked for has come.

    `lost_s`: so many seconds until now the scheduler itself did not run, and so heard of nobody.
    """

    lost_s: float = 0.0


Event = (
    AgentJoined
    | AgentLeft
    | WorkerReported
    | ServerReported
    | Evaluated
    | RunSubmitted
    | StopRequested
    | Tick
)

# ---- instructions ----------------------------------------------------------------


@dataclass(frozen=True)
class SendTo:
    """Push a directive down the agent's stream."""

    name: str
    incarnation: str
    directive: pb.Directive


@dataclass(frozen=True)
class Close:
    """End the agent's stream and say why.

    why: a newer process took the name; the name belongs to another role; the lease ended.
    """

    name: str
    incarnation: str
    reason: str
    why: Literal["superseded", "name", "lease"]


@dataclass(frozen=True)
class PhaseChanged:
    """The run's phase, what it waits for or how it ended."""

    phase: str
    outcome: str = ""
    message: str = ""


@dataclass(frozen=True)
class PlanMade:
    """The synchronization model's plan changed (`wake_at_s` and probes aside)."""

    plan: Plan
    generation: int


@dataclass(frozen=True)
class ProbeEnded:
    probe: Probe


@dataclass(frozen=True)
class Log:
    """A line for a person."""

    level: Literal["info", "warning", "error"]
    text: str


Instruction = SendTo | Close | PhaseChanged | PlanMade | ProbeEnded | Log

# ---- JSON ------------------------------------------------------------------------

_EVENTS: dict[str, type] = {kind.__name__: kind for kind in typing.get_args(Event)}


def plain(value: Any) -> Any:
    """`value` as JSON's types: protobuf messages by their set fields, numbers that JSON lacks as text."""
    if isinstance(value, Message):
        return {f.name: _plain_field(f, content) for f, content in value.ListFields()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _plain_field(descriptor: Any, content: Any) -> Any:
    if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
        return {str(key): plain(item) for key, item in content.items()}
    names = descriptor.enum_type.values_by_number if descriptor.enum_type is not None else None
    if isinstance(content, (str, bytes, int, float, Message)):
        items, many = [content], False
    else:
        items, many = list(content), True
    shown = [names[item].name if names and item in names else plain(item) for item in items]
    return shown if many else shown[0]


def record(item: Event | Instruction) -> dict[str, Any]:
    """An event as {"event": kind, ...}, an instruction as {"decision": kind, ...}."""
    kind = type(item).__name__
    content = plain(item)
    if isinstance(item, PlanMade):
        content["plan"].pop("probes")
        content["plan"]["triggers"] = {
            name: {type(trigger).__name__: plain(trigger)} for name, trigger in item.plan.triggers.items()
        }
    return {"event" if kind in _EVENTS else "decision": kind, **content}


def read_event(values: dict[str, Any]) -> Event:
    """The event that `record` wrote. Raises ValueError on a kind that is not known."""
    kind = _EVENTS.get(values.get("event", ""))
    if kind is None:
        raise ValueError(f"event: {values.get('event')!r} is not known")
    hints = typing.get_type_hints(kind)
    made = {
        f.name: _read(hints[f.name], values[f.name]) for f in dataclasses.fields(kind) if f.name in values
    }
    event: Event = kind(**made)
    return event


def _read(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Message):
        return json_format.ParseDict(value, kind())
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate(value)
    return value


# ---- the hub's state between runs ---------------------------------------------------


@dataclass(frozen=True)
class KnownAgent:
    """An agent as a new run finds it."""

    hello: pb.Hello
    seen_s: float
    attached: bool = True
    superseded: tuple[str, ...] = ()
    takeovers: int = 0
    taken_over_s: float = 0.0


@dataclass(frozen=True)
class HubState:
    """Where the decisions of a run start from; the first line of its log.

    Args:
        scheduler_incarnation: of this process, for Welcome.
        lease_s: an agent silent for longer has left.
        report_every_s: how often agents are asked to report.
        revision: of the last directive sent.
        agents: in the order in which they joined; times relative to the run's submission.
        warnings: that stand, by key.
    """

    scheduler_incarnation: str
    lease_s: float = 10.0
    report_every_s: float = 1.0
    offbeat_version: str = ""
    revision: int = 0
    agents: tuple[KnownAgent, ...] = ()
    warnings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, values: dict[str, Any]) -> HubState:
        agents = tuple(
            KnownAgent(
                **{
                    **known,
                    "hello": json_format.ParseDict(known["hello"], pb.Hello()),
                    "superseded": tuple(known["superseded"]),
                }
            )
            for known in values["agents"]
        )
        names = {f.name for f in dataclasses.fields(cls)} - {"agents"}
        return cls(agents=agents, **{name: values[name] for name in names if name in values})
