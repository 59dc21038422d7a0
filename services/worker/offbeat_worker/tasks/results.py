"""What a task's functions may return. Each check raises OffbeatError naming the function's line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.functions import TaskFunction

if TYPE_CHECKING:  # torch takes seconds to import, and `available` must be cheap
    import torch

METRIC_REMEDY = 'return (loss, number), (loss, ("accuracy", number)) or (loss, {"accuracy": number, ...})'


def check_model(function: TaskFunction, model: Any) -> None:
    from torch import nn
    from torch.nn.parameter import is_lazy

    if not isinstance(model, nn.Module):
        raise OffbeatError(
            f"{function.where}: build_model returned {_kind(model)}, not a torch.nn.Module",
            "end it with: return model",
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise OffbeatError(
                f"{function.where}: build_model: '{name}' has no shape yet (a lazy layer)",
                "run the model on one example inside build_model, or give the layer its sizes",
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OffbeatError(
            f"{function.where}: build_model: the model has no parameter to train",
            "leave requires_grad on for some",
        )


def check_dataset(function: TaskFunction, dataset: Any, which: str) -> None:
    if dataset is None or isinstance(dataset, (tuple, dict)) or not _is_indexable(dataset):
        raise OffbeatError(
            f"{function.where}: load_data returned {_kind(dataset)} for {which}, not a data set",
            "return what has a length and an index, such as torch.utils.data.TensorDataset(x, y), "
            "without batches",
        )
    try:
        samples = len(dataset)
    except Exception as error:
        raise explain(error, function.path, "len() of what load_data returned") from error
    if samples == 0:
        raise OffbeatError(
            f"{function.where}: load_data returned nothing for {which}",
            "look at the data folder and at how the file chooses a split and a shard",
        )


def _is_indexable(dataset: Any) -> bool:
    from torch.utils.data import Dataset, IterableDataset

    # Every torch Dataset inherits a __getitem__ that only raises.
    own_getitem = getattr(type(dataset), "__getitem__", None) is not Dataset.__getitem__
    return (
        hasattr(dataset, "__len__")
        and hasattr(dataset, "__getitem__")
        and own_getitem
        and not isinstance(dataset, IterableDataset)
    )


def loss_and_metrics(function: TaskFunction, result: Any) -> tuple[torch.Tensor, dict[str, SupportsFloat]]:
    """The loss, and the metrics by name, from what loss_and_metric returned."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise OffbeatError(
            f"{function.where}: loss_and_metric returned {_kind(result)}, not (loss, metric)",
            "end it with: return loss, metric",
        )
    loss, metric = result
    if not _is_tensor(loss) or loss.ndim != 0 or not loss.is_floating_point():
        raise OffbeatError(
            f"{function.where}: loss_and_metric: the loss is {_kind(loss)}, not a floating-point tensor "
            "of one number",
            "return the batch's mean loss as a tensor: loss.mean(), without .item()",
        )
    return loss, _metrics(function, metric)


def _metrics(function: TaskFunction, metric: Any) -> dict[str, SupportsFloat]:
    if isinstance(metric, (tuple, list)) and len(metric) == 2 and isinstance(metric[0], str):
        metric = {metric[0]: metric[1]}
    elif not isinstance(metric, Mapping):
        metric = {"metric": metric}
    if not metric:
        raise OffbeatError(f"{function.where}: loss_and_metric: the metric is empty", METRIC_REMEDY)
    for name, value in metric.items():
        one_number = value.numel() == 1 if _is_tensor(value) else isinstance(value, SupportsFloat)
        if not isinstance(name, str) or not one_number:
            raise OffbeatError(
                f"{function.where}: loss_and_metric: the metric {name!r} is {_kind(value)}, not a number",
                METRIC_REMEDY,
            )
    return dict(metric)


def as_number(metric: SupportsFloat) -> float:
    """A metric's value; of a tensor on a GPU this waits for the GPU."""
    return float(metric.detach() if _is_tensor(metric) else metric)  # type: ignore[attr-defined]


def _kind(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of shape {list(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    return "None" if value is None else f"a {type(value).__name__}"


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
