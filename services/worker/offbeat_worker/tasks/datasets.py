"""A device's part of a data set, where the task leaves the division to Offbeat."""

from __future__ import annotations

from typing import Any

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks import partition as division
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.functions import TaskFunction


def divide(function: TaskFunction, dataset: Any, shard: int, shards: int, seed: int, partition: str) -> Any:
    from torch.utils.data import Subset, TensorDataset

    kind, _, alpha = partition.partition(":")
    if kind == "dirichlet":
        parts = division.dirichlet(labels_of(function, dataset, partition), shards, seed, float(alpha))
    else:
        parts = division.iid(len(dataset), shards, seed)
    indices = parts[shard]
    if len(indices) == 0:
        raise OffbeatError(
            f"shard: {shard} of {shards} is empty: task '{function.path.stem}' has {len(dataset)} samples",
            "configure fewer shards",
        )
    if type(dataset) is TensorDataset:  # copied, so that the other shards' memory is freed
        import torch

        chosen = torch.from_numpy(indices)
        return TensorDataset(*(tensor[chosen] for tensor in dataset.tensors))
    return Subset(dataset, indices.tolist())


def labels_of(function: TaskFunction, dataset: Any, partition: str) -> Any:
    """The class of each sample: `targets` or `labels`, a TensorDataset's last tensor, or each item's end."""
    import numpy as np

    for attribute in ("targets", "labels"):
        if hasattr(dataset, attribute):
            values = getattr(dataset, attribute)
            break
    else:
        if hasattr(dataset, "tensors"):
            values = dataset.tensors[-1]
        else:
            try:
                values = [dataset[index][-1] for index in range(len(dataset))]
            except Exception as error:
                raise explain(error, function.path, f"labels for partition {partition}") from error
    labels = np.asarray(values)
    whole = labels.dtype.kind in "iubUS" or (labels.dtype.kind == "f" and (labels == np.floor(labels)).all())
    if labels.shape != (len(dataset),) or not whole:
        raise OffbeatError(
            f"{function.where}: partition: '{partition}' needs one class per sample, but the items' last "
            f"entries make {labels.dtype} of shape {list(labels.shape)}",
            "use partition iid, or give the data set an attribute `labels`",
        )
    return labels
