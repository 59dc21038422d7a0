"""A loaded task: its three functions, called with what they take and held to what they promise.

Whatever goes wrong in the file is an OffbeatError that names the file, the user's own
line and the remedy; our own frames are of no use to whoever wrote the task.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsFloat

from offbeat_core.errors import OffbeatError
from offbeat_core.usercode import line_of
from offbeat_worker.tasks import results
from offbeat_worker.tasks.datasets import divide
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.files import TaskFile, find
from offbeat_worker.tasks.functions import RESERVED, SIGNATURES, TaskFunction

if TYPE_CHECKING:  # torch takes seconds to import, and `available` must be cheap
    import torch
    from torch import nn


def load(name: str, paths: Sequence[Path]) -> Task:
    """Run the file of task `name` and return the task.

    Args:
        name: built in, or a user's file's name without .py.
        paths: the user's files, as configured on this device.

    Raises:
        OffbeatError: no such task; an error while the file runs; a function that is
            missing or can't be called as docs/tasks.md says.
    """
    file = find(name, paths)
    module = _run(file)
    functions = {
        function: TaskFunction(file.path, function, getattr(module, function, None))
        for function in SIGNATURES
    }
    return Task(name, file.digest, file.path, functions)


def _run(file: TaskFile) -> ModuleType:
    code = file.compile("task")
    module = ModuleType(f"offbeat_task_{file.name.replace('-', '_')}")
    module.__file__ = str(file.path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look their module up there
    try:
        exec(code, module.__dict__)
    except ModuleNotFoundError as error:
        raise OffbeatError(
            f"{line_of(error, file.path) or file.path}: the task imports '{error.name}', "
            "which is not installed here",
            f"install it on this device: {sys.executable} -m pip install {(error.name or '').split('.')[0]} "
            "(a task is one file: modules beside it are not found)",
        ) from error
    except (Exception, SystemExit) as error:
        raise explain(error, file.path, "the task's file") from error
    return module


@dataclass
class Task:
    """A task as the worker uses it. All methods raise OffbeatError."""

    name: str
    digest: str  # SHA-256 of the source, hex
    path: Path
    functions: Mapping[str, TaskFunction]

    def build_model(self, **options: Any) -> nn.Module:
        """A new model, on the CPU; seed torch before."""
        self.check_options(options)
        function = self.functions["build_model"]
        model = function.call(**function.options(options))
        results.check_model(function, model)
        return model

    def load_data(
        self,
        shard: int,
        shards: int,
        split: str,
        folder: Path,
        seed: int,
        partition: str = "iid",
        **options: Any,
    ) -> Any:
        """This device's part of the training data, or all of the held-out data.

        A file whose load_data takes shard and shards divides by itself; else what it
        returns is divided here, the same way on each device (datasets.py).

        Args:
            shard, shards: which part of how many; the held-out split is never divided.
            split: "train" or "test".
            folder: the device's data folder.
            seed: the run's; makes the division.
            partition: "iid" or "dirichlet:ALPHA".

        Returns:
            a torch Dataset: len() and indexing; items as loss_and_metric takes them in batches.
        """
        self.check_options(options)
        function = self.functions["load_data"]
        if split == "test":
            shard, shards = 0, 1
        divides = function.takes("shard")
        if divides and partition != "iid" and not function.takes("partition") and split == "train":
            raise OffbeatError(
                f"{function.where}: partition: '{partition}' can't be had: this load_data takes shard and "
                "shards, so it divides the data itself",
                "leave shard and shards out (Offbeat then divides), or take partition as well",
            )
        given = {
            "shard": shard,
            "shards": shards,
            "split": split,
            "folder": Path(folder),
            "seed": seed,
            "partition": partition,
        }
        arguments = {key: value for key, value in given.items() if function.takes(key)}
        dataset = function.call(**arguments, **function.options(options))
        results.check_dataset(function, dataset, f"split '{split}', shard {shard} of {shards}")
        if divides or split != "train" or shards == 1:
            return dataset
        return divide(function, dataset, shard, shards, seed, partition)

    def loss_and_metric(
        self, model: nn.Module, batch: Any, **options: Any
    ) -> tuple[torch.Tensor, dict[str, SupportsFloat]]:
        """Loss and metrics of one batch.

        Returns:
            the loss as a 0-d tensor, and the metrics by name, of which the first is the one
            that a run's target means. They are means over the batch, and not yet floats (a float
            of a tensor on a GPU waits for the GPU).
        """
        function = self.functions["loss_and_metric"]
        result = function.call(model, batch, **(function.options(options) if options else {}))
        return results.loss_and_metrics(function, result)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises OffbeatError for an option that none of the three functions takes."""
        for key in options:
            if key in RESERVED:
                raise OffbeatError(f"task.options.{key}: the run itself sets it", "call the option otherwise")
            if not any(function.takes(key) for function in self.functions.values()):
                known = sorted(
                    {name for f in self.functions.values() for name in f.parameters} - set(RESERVED)
                )
                raise OffbeatError(
                    f"task.options.{key}: none of the functions of task '{self.name}' takes it",
                    f"known there: {', '.join(known)}" if known else "this task has no options",
                )
