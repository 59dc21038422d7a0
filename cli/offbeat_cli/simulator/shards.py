"""Each device's part of the training data, as indices into one copy of it.

The same division as on real devices (`offbeat_worker.tasks`): a run of the same seed gives device
i of n the very samples that a worker with `shard: i, shards: n` would hold. Where groups of
devices hold some classes only, each class is divided among those that may hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offbeat_core.config import TaskSpec
from offbeat_core.errors import OffbeatError
from offbeat_worker import tasks
from offbeat_worker.batches import fetcher
from offbeat_worker.tasks import partition as division
from offbeat_worker.tasks.datasets import labels_of


class Whole(NamedTuple):
    """All training data, as the parameter server would hold them."""

    size: int
    fetch: Callable[[np.ndarray], Any]


class Shards:
    """What each device trains on.

    Args:
        labels: for each device the classes that its data holds; empty: all.

    Raises OffbeatError where the data can't be loaded, or not be divided like that.
    """

    def __init__(
        self, task: tasks.Task, spec: TaskSpec, folder: Path, seed: int, labels: Sequence[tuple[int, ...]]
    ) -> None:
        self._task, self._spec, self._folder, self._seed = task, spec, folder, seed
        self._divides = task.functions["load_data"].takes("shard")
        count = len(labels)
        self._fetches: list[tuple[Callable[[np.ndarray], Any], np.ndarray | None]] = []
        self.sizes: list[int] = []
        if self._divides:
            if any(labels):
                raise OffbeatError(
                    f"devices.labels: task '{task.name}' divides its data itself",
                    "leave labels out, or shard and shards out of the task's load_data",
                )
            self.first = _load(task, spec, folder, seed, 0, count)
            for shard in range(count):
                dataset = self.first if shard == 0 else _load(task, spec, folder, seed, shard, count)
                self._fetches.append((fetcher(dataset), None))
                self.sizes.append(len(dataset))
            return
        self.first = _load(task, spec, folder, seed, 0, 1)
        fetch = fetcher(self.first)
        for shard, indices in enumerate(_divide(task, self.first, spec.partition, seed, labels)):
            if not len(indices):
                raise OffbeatError(
                    f"devices: device {shard + 1} of {count} would hold no data: task '{task.name}' has "
                    f"{len(self.first)} samples",
                    "give fewer devices, a larger alpha, or other labels",
                )
            self._fetches.append((fetch, indices))
            self.sizes.append(len(indices))

    @cached_property
    def whole(self) -> Whole:
        """In the order in which `offbeat samples` writes them."""
        dataset = (
            _load(self._task, self._spec, self._folder, self._seed, 0, 1) if self._divides else self.first
        )
        return Whole(len(dataset), fetcher(dataset))

    def fetch(self, device: int, positions: np.ndarray) -> Any:
        """A batch of a device's samples; `positions` of shape (n,), each below its size."""
        fetch, indices = self._fetches[device]
        return fetch(positions if indices is None else indices[positions])


def _load(task: tasks.Task, spec: TaskSpec, folder: Path, seed: int, shard: int, shards: int) -> Any:
    divides = task.functions["load_data"].takes("shard")
    partition = spec.partition if divides else "iid"
    return task.load_data(shard, shards, "train", folder, seed, partition, **spec.options)


def _divide(
    task: tasks.Task, dataset: Any, partition: str, seed: int, labels: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    count = len(labels)
    kind, _, alpha = partition.partition(":")
    if kind == "iid" and not any(labels):
        return division.iid(len(dataset), count, seed)
    of = labels_of(task.functions["load_data"], dataset, partition)
    if not any(labels):
        return division.dirichlet(of, count, seed, float(alpha))
    classes = np.unique(of)
    for held in labels:
        if unknown := sorted(set(held) - set(classes.tolist())):
            raise OffbeatError(
                f"devices.labels: {unknown[0]} is not a class of task '{task.name}'",
                f"its classes are {', '.join(str(value) for value in classes[:20])}",
            )
    parts: list[list[np.ndarray]] = [[] for _ in range(count)]
    for number, label in enumerate(classes.tolist()):
        holders = [device for device, held in enumerate(labels) if not held or label in held]
        members = np.flatnonzero(of == label)
        if not holders:
            continue
        # A seed for each class: else each would be divided by the same proportions.
        own = seed * len(classes) + number
        if kind == "iid":
            pieces = division.iid(len(members), len(holders), own)
        else:
            pieces = division.dirichlet(np.zeros(len(members)), len(holders), own, float(alpha))
        for device, piece in zip(holders, pieces, strict=True):
            parts[device].append(members[piece])
    return [np.sort(np.concatenate(pieces)) if pieces else np.zeros(0, np.int64) for pieces in parts]
