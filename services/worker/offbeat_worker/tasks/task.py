"""A loaded task: its three functions, called with what they take, their mistakes explained.

Whatever goes wrong in the file is an OffbeatError that names the file, the user's own
line and the remedy; our own frames are of no use to whoever wrote the task.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsFloat

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks.files import TaskFile, find
from offbeat_worker.tasks.options import converted

if TYPE_CHECKING:  # torch takes seconds to import, and `available` must be cheap
    import torch
    from torch import nn

RESERVED = ("shard", "shards", "split", "folder", "seed", "partition", "model", "batch")
"""What the run itself passes; an option can't be called so."""

SIGNATURES = {
    "build_model": "build_model()",
    "load_data": "load_data(shard, shards, split, folder, seed)",
    "loss_and_metric": "loss_and_metric(model, batch)",
}


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
    code = file.compile()
    module = ModuleType(f"offbeat_task_{file.name.replace('-', '_')}")
    module.__file__ = str(file.path)
    sys.modules[module.__name__] = module  # dataclasses and pickling look their module up there
    try:
        exec(code, module.__dict__)
    except ModuleNotFoundError as error:
        raise OffbeatError(
            f"{place(error, file.path) or file.path}: the task imports '{error.name}', "
            "which is not installed here",
            f"install it on this device: {sys.executable} -m pip install {(error.name or '').split('.')[0]} "
            "(a task is one file: modules beside it are not found)",
        ) from error
    except (Exception, SystemExit) as error:
        raise explain(error, file.path, "the task's file") from error
    return module


# ---- the three functions ---------------------------------------------------------


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


def place(error: BaseException, path: Path) -> str:
    """'file:line' of the innermost line of the task's file that led to the error, or ''."""
    lines = [
        f"{path}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    return lines[-1] if lines else ""


def explain(error: BaseException, path: Path, doing: str) -> OffbeatError:
    """What a task's own code raised, in a line or two. Of its message the second line is the remedy."""
    if isinstance(error, OffbeatError):
        return error
    message, _, remedy = str(error).strip().partition("\n")
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return OffbeatError(
        f"{place(error, path) or path}: {doing}: {said}",
        remedy.strip().partition("\n")[0] or "correct the task's file; --debug shows the whole way there",
    )


# ---- the task --------------------------------------------------------------------


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
        _check_model(function, model)
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
        returns is divided here, the same way on each device (partition.py).

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
        _check_dataset(function, dataset, f"split '{split}', shard {shard} of {shards}")
        if divides or split != "train" or shards == 1:
            return dataset
        return _divide(function, dataset, shard, shards, seed, partition)

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


# ---- what the functions return ---------------------------------------------------------


def _kind(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of shape {list(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    return "None" if value is None else f"a {type(value).__name__}"


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _check_model(function: TaskFunction, model: Any) -> None:
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


def _check_dataset(function: TaskFunction, dataset: Any, which: str) -> None:
    if dataset is None or isinstance(dataset, (tuple, dict)) or not _is_indexable(dataset):
        raise OffbeatError(
            f"{function.where}: load_data returned {_kind(dataset)} for {which}, not a data set",
            "return what has a length and is indexed by number, such as torch.utils.data.TensorDataset(x, y), "
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


def _divide(function: TaskFunction, dataset: Any, shard: int, shards: int, seed: int, partition: str) -> Any:
    from torch.utils.data import Subset, TensorDataset

    from offbeat_worker.tasks import partition as division

    kind, _, alpha = partition.partition(":")
    if kind == "dirichlet":
        parts = division.dirichlet(_labels(function, dataset, partition), shards, seed, float(alpha))
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


def _labels(function: TaskFunction, dataset: Any, partition: str) -> Any:
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


METRIC_REMEDY = 'return (loss, number), (loss, ("accuracy", number)) or (loss, {"accuracy": number, ...})'
