"""The three functions of a task's file: which arguments they take, and calling them with those."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.options import converted

RESERVED = ("shard", "shards", "split", "folder", "seed", "partition", "model", "batch")
"""What the run itself passes; an option can't be called so."""

SIGNATURES = {
    "build_model": "build_model()",
    "load_data": "load_data(shard, shards, split, folder, seed)",
    "loss_and_metric": "loss_and_metric(model, batch)",
}


@dataclass
class TaskFunction:
    """One function of a task's file, with what it takes.

    Raises OffbeatError if `function` is None, or takes what the run can't give.
    """

    path: Path
    name: str
    function: Any
    parameters: Mapping[str, inspect.Parameter] = field(init=False)
    takes_anything: bool = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            what = "is missing" if self.function is None else "is not a function"
            raise OffbeatError(
                f"{self.path}: {self.name} {what}", f"the file needs def {SIGNATURES[self.name]}"
            )
        try:
            signature = inspect.signature(self.function, eval_str=False)
        except ValueError:  # a callable of C
            raise self.wrong("its parameters can't be found out") from None
        kinds = inspect.Parameter
        if self.name == "loss_and_metric":
            try:
                signature.bind_partial(None, None)
            except TypeError:
                raise self.wrong("must take a model and a batch") from None
            positional = [
                p.name
                for p in signature.parameters.values()
                if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
            ]
            taken = set(positional[:2])
        else:
            taken = set()
        self.takes_anything = any(p.kind == kinds.VAR_KEYWORD for p in signature.parameters.values())
        self.parameters = {
            p.name: p
            for p in signature.parameters.values()
            if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) and p.name not in taken
        }
        for p in self.parameters.values():
            if p.kind == kinds.POSITIONAL_ONLY:
                raise self.wrong(f"'{p.name}' must be passable by name")
        if self.name == "load_data":
            if not self.takes("split"):
                raise self.wrong("must take 'split' ('train' or 'test')")
            if self.takes("shard") != self.takes("shards"):
                raise self.wrong("must take both 'shard' and 'shards', or neither")

    @property
    def where(self) -> str:
        """'file:line' of its definition."""
        code = getattr(self.function, "__code__", None)
        if code is not None and code.co_filename == str(self.path):
            return f"{self.path}:{code.co_firstlineno}"
        return str(self.path)

    def takes(self, name: str) -> bool:
        return name in self.parameters or self.takes_anything

    def wrong(self, what: str) -> OffbeatError:
        return OffbeatError(
            f"{self.where}: {self.name}: {what}",
            f"it is called as {SIGNATURES[self.name]}; see docs/tasks.md",
        )

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those options that this function takes, in the types that it expects."""
        return {
            key: converted(value, key, self.parameters.get(key))
            for key, value in given.items()
            if self.takes(key)
        }

    def call(self, *arguments: Any, **by_name: Any) -> Any:
        """Call it. Raises OffbeatError naming the line in the file that failed."""
        for p in self.parameters.values():
            if p.default is p.empty and p.name not in by_name:
                raise OffbeatError(
                    f"{self.where}: {self.name} needs '{p.name}', which the run does not give",
                    f"give '{p.name}' a default, or the run's task an option of this name",
                )
        try:
            return self.function(*arguments, **by_name)
        except (Exception, SystemExit) as error:
            raise explain(error, self.path, self.name) from error
