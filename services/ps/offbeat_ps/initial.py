"""Starting a run from a file.

The file is read as soon as the scheduler names it, so that a missing one is reported at
once. What it must hold is known only with the manifest that a worker's Seed brings (which
tensors train, in what order); its numbers then replace the worker's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_ps import tensorfile
from offbeat_ps.tensorfile import Tensor


class InitialModel:
    """A safetensors file that is being read.

    Args:
        name: an absolute path, or one under the working directory or the folder of all runs.
        disk: the thread that reads it.
    """

    def __init__(self, name: str, folder: Path, disk: Executor) -> None:
        self.path = Path(name)
        if not self.path.is_absolute() and not self.path.exists():
            self.path = folder / self.path
        loop = asyncio.get_running_loop()
        self._tensors = loop.run_in_executor(disk, lambda: tensorfile.read(self.path, "initial_model")[0])

    async def problem(self) -> str:
        """What is wrong with the file itself; empty if nothing is."""
        try:
            await asyncio.shield(self._tensors)
        except OffbeatError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a file may hold anything; it must not end the server
            return f"initial_model: {self.path}: {type(error).__name__}: {error}"
        return ""

    async def values(self, manifest: Manifest) -> np.ndarray:
        """Its numbers as the flat vector of `manifest`. Raises OffbeatError where it does not fit."""
        return initial_values(await asyncio.shield(self._tensors), manifest, self.path)


def initial_values(tensors: Mapping[str, Tensor], manifest: Manifest, path: Path) -> np.ndarray:
    """A file's tensors as the flat vector of `manifest`, float32 of shape (manifest.elements,).

    Tensors of the file that do not travel (frozen ones) are left out.

    Raises:
        OffbeatError: a tensor is missing, has another shape, or is not finite.
    """
    values = np.empty(manifest.elements, "<f4")
    for spec in (*manifest.trainable, *manifest.buffers):
        tensor = tensors.get(spec.name)
        if tensor is None:
            raise OffbeatError(
                f"initial_model: {path} has no tensor '{spec.name}' {list(spec.shape)}",
                f"it has {_some(tensors)}; give a file of the model that the task builds",
            )
        if tensor.shape != spec.shape:
            raise OffbeatError(
                f"initial_model: {path}: tensor '{spec.name}' has shape {list(tensor.shape)}, "
                f"the task's model {list(spec.shape)}",
                "give a file of the model that the task builds",
            )
        if not np.isfinite(tensor.values).all():
            raise OffbeatError(
                f"initial_model: {path}: tensor '{spec.name}' has NaN or infinity in it", "use an older file"
            )
        values[manifest.slices[spec.name]] = tensor.values
    return values


def _some(tensors: Mapping[str, Tensor]) -> str:
    names = sorted(tensors)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"
