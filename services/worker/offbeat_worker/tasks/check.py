"""Try a task on one batch before training begins: its mistakes should show at once, not in an hour."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.results import as_number
from offbeat_worker.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CheckReport:
    """What one batch through the three functions gave."""

    name: str
    digest: str
    parameters: int  # trainable ones
    train_samples: int  # in the shard
    test_samples: int
    loss: float
    metrics: Mapping[str, float]


def check(
    task: Task,
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    shard: int = 0,
    shards: int = 1,
    partition: str = "iid",
    seed: int = 1,
    batch: int = 32,
) -> CheckReport:
    """Build the model, load both splits, and take a batch of each through loss_and_metric.

    Raises OffbeatError for whatever is wrong with the task's file or data.
    """
    import torch

    options = dict(options or {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.build_model(**options)
    train = task.load_data(shard, shards, "train", folder, seed, partition, **options)
    test = task.load_data(0, 1, "test", folder, seed, partition, **options)
    loss, metrics = check_batch(task, model, train, batch=batch, options=options)
    check_batch(task, model, test, batch=batch, options=options, training=False)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return CheckReport(task.name, task.digest, trainable, len(train), len(test), loss, metrics)


def check_batch(
    task: Task,
    model: nn.Module,
    dataset: Any,
    *,
    batch: int = 32,
    options: Mapping[str, Any] | None = None,
    training: bool = True,
) -> tuple[float, dict[str, float]]:
    """Take the first `batch` items through loss_and_metric, and in training back to the gradients.

    Works on a copy: the model's buffers and gradients, and torch's random state, stay as they were.

    Returns:
        loss and metrics of the batch.
    """
    import torch

    function = task.functions["loss_and_metric"]
    where = function.where
    trial = copy.deepcopy(model).train(training)
    device = next(trial.parameters()).device
    items = move(first_batch(task, dataset, batch), device)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.set_grad_enabled(training),
    ):
        loss, metrics = task.loss_and_metric(trial, items, **dict(options or {}))
        if training:
            _check_gradients(task, trial, loss)
    number = loss.item()
    if not math.isfinite(number):
        raise OffbeatError(
            f"{where}: loss_and_metric: the loss of the first batch is {number}",
            "look for NaN in the data, a logarithm of 0, or a division by 0",
        )
    values = {name: as_number(value) for name, value in metrics.items()}
    for name, value in values.items():
        if not math.isfinite(value):
            raise OffbeatError(
                f"{where}: loss_and_metric: the metric '{name}' of the first batch is {value}",
                "look for a division by 0",
            )
    return number, values


def first_batch(task: Task, dataset: Any, batch: int) -> Any:
    """The first items, put together as in training (torch's default_collate)."""
    from torch.utils.data import default_collate

    path = task.path
    try:
        items = [dataset[index] for index in range(min(batch, len(dataset)))]
    except Exception as error:
        raise explain(error, path, "an item of what load_data returned") from error
    try:
        return default_collate(items)
    except Exception as error:
        raise OffbeatError(
            f"{task.functions['load_data'].where}: load_data: items can't be put together into a batch: "
            f"{str(error).partition(chr(10))[0]}",
            "make all items alike: tensors of one shape and dtype, or numbers",
        ) from error


def move(batch: Any, device: Any) -> Any:
    """The batch with all its tensors on `device`."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


def _check_gradients(task: Task, model: nn.Module, loss: Any) -> None:
    import torch

    function = task.functions["loss_and_metric"]
    if not loss.requires_grad:
        raise OffbeatError(
            f"{function.where}: loss_and_metric: no gradient leads from the loss to the model",
            "compute the loss from model(...), without detach(), .data or no_grad()",
        )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    except Exception as error:
        raise explain(error, function.path, "backward from the loss") from error
    if all(gradient is None for gradient in gradients):
        raise OffbeatError(
            f"{function.where}: loss_and_metric: no gradient leads from the loss to the model",
            "compute the loss from the model that was passed in",
        )
