"""What the decisions of one event add up to: instructions in order, and the warnings that stand."""

from __future__ import annotations

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.directives import Directives
from offbeat_scheduler.evaluations import Best
from offbeat_scheduler.events import Instruction, Log, SendTo
from offbeat_scheduler.membership import Agent

WARNINGS = 50


class Outbox:
    """Collects instructions; the hub empties it after each event.

    Warnings have a key: one that is raised again with the same words is said once, and
    it stands, in the status, until it is cleared.
    """

    def __init__(self, revision: int = 0, warnings: dict[str, str] | None = None) -> None:
        self.directives = Directives(revision)
        self.warnings: dict[str, str] = dict(warnings or {})
        self._instructions: list[Instruction] = []

    def add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    def say(self, text: str) -> None:
        self.add(Log("info", text))

    def warn(self, key: str, text: str, *, say: bool = True) -> None:
        """`say` False: it stands in the status, and is not said anew."""
        if self.warnings.get(key) == text:
            return
        self.warnings.pop(key, None)
        if len(self.warnings) >= WARNINGS:
            del self.warnings[next(iter(self.warnings))]
        self.warnings[key] = text
        if say:
            self.add(Log("warning", text))

    def clear(self, key: str) -> bool:
        """The warning holds no longer. Returns whether it stood."""
        return self.warnings.pop(key, None) is not None

    def clear_run(self) -> None:
        """Forget what concerned one run; what concerns names stays."""
        self.warnings = {key: text for key, text in self.warnings.items() if key.startswith("name:")}

    def keep_best(self, server: Agent, run_id: str, found: Best) -> None:
        """Have the parameter server write the model that was just found the best."""
        best = pb.KeepBest(run_id=run_id, version=found.version, loss=found.loss, metric=found.metric)
        self.add(SendTo(server.name, server.incarnation, pb.Directive(keep_best=best)))

    def take(self) -> list[Instruction]:
        taken, self._instructions = self._instructions, []
        return taken
