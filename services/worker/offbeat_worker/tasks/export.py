"""A task's training data as the file that a parameter server deals samples from (`offbeat samples`).

safetensors: one tensor per field of a sample, its first dimension the sample; the metadata
`fields` names them in the order in which batches hold them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat_core.errors import OffbeatError
from offbeat_core.samples import Field, Layout
from offbeat_worker.tasks.check import check_batch
from offbeat_worker.tasks.explain import explain
from offbeat_worker.tasks.task import Task

if TYPE_CHECKING:
    import torch

AT_A_TIME = 1024
"""Items of a data set that is no TensorDataset, put together into a batch."""

SHAPE = "return a TensorDataset, or a data set whose items are tuples of tensors and numbers"


@dataclass(frozen=True)
class Exported:
    """What was written."""

    samples: int
    fields: tuple[Field, ...]
    size: int  # of the file, bytes


def export(
    task: Task, folder: Path, out: Path, *, options: Mapping[str, Any] | None = None, seed: int = 1
) -> Exported:
    """Write all training data of `task` to `out`, whole or not at all.

    Whatever a data set draws by chance (augmentation) is drawn once, here.

    Raises OffbeatError: wrong data or task; a data set that is not made of tensors; a file that can't be
    written.
    """
    import torch
    from torch.utils.data import TensorDataset

    options = dict(options or {})
    dataset = task.load_data(0, 1, "train", folder, seed, "iid", **options)
    tensors = _tensors(task, dataset)
    fields = _fields(task, tensors)
    torch.manual_seed(seed)
    check_batch(task, task.build_model(**options), TensorDataset(*tensors), options=options)
    _write(out, dict(zip((field.name for field in fields), tensors, strict=True)))
    return Exported(len(tensors[0]), fields, out.stat().st_size)


def _tensors(task: Task, dataset: Any) -> list[torch.Tensor]:
    """Each field of all samples, on the CPU, shape (samples, ...)."""
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    from offbeat_worker.batches import fetcher

    if type(dataset) is TensorDataset:
        return [tensor.detach().cpu() for tensor in dataset.tensors]
    function = task.functions["load_data"]
    fetch = fetcher(dataset)
    batches = []
    for start in range(0, len(dataset), AT_A_TIME):
        indices = np.arange(start, min(start + AT_A_TIME, len(dataset)))
        try:
            batch = fetch(indices)
        except Exception as error:
            raise explain(error, function.path, "the items of what load_data returned") from error
        if type(batch) not in (list, tuple) or not all(isinstance(item, torch.Tensor) for item in batch):
            kind = type(dataset[0]).__name__
            raise OffbeatError(
                f"{function.where}: load_data: its items ({kind}) are not made of tensors", SHAPE
            )
        batches.append(batch)
    try:
        return [torch.cat(list(column)).detach().cpu() for column in zip(*batches, strict=True)]
    except (RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise OffbeatError(f"{function.where}: load_data: its items are not alike: {said}", SHAPE) from error


def _fields(task: Task, tensors: list[torch.Tensor]) -> tuple[Field, ...]:
    try:
        fields = tuple(
            Field(str(number), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
            for number, tensor in enumerate(tensors)
        )
        Layout(fields, 0)
    except ValueError as error:
        where = task.functions["load_data"].where
        raise OffbeatError(f"{where}: load_data: its items can't travel: {error}", "convert them") from error
    return fields


def _write(out: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    apart: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        # Tensors that share memory are refused by the library.
        shared = any(whole.data_ptr() == other.data_ptr() for other in apart.values())
        apart[name] = whole.clone() if shared else whole
    temporary = out.with_name(out.name + ".tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode  # as any new file; the library's is for its owner alone
        save_file(apart, temporary, metadata={"fields": json.dumps(list(tensors))})
        os.chmod(temporary, mode)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, out)
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise OffbeatError(
            f"--out: cannot write {out}: {said}", "name a file in a folder that this user may write"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
