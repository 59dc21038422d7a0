"""What a run leaves on the disk, in one folder per run.

- checkpoint.safetensors: the model, every `checkpoint_every_s` and at the end, with what
  waits for its fold (tensor `offbeat.waiting` and its summed weight `waiting_weight`; of group
  number N `offbeat.waiting.N`, `waiting_weight.N`; only where something does) and the accounts.
- model.safetensors: the final model.
- best.safetensors: the model that the evaluator found best.

All three load with `model.load_state_dict(safetensors.torch.load_file(path), strict=False)`:
each tensor has the dtype that it has on the device. (Not strict, because integer buffers
and frozen tensors never travelled.) A file that cannot be written leaves the older one
whole, and training goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offbeat_core.manifest import Manifest
from offbeat_ps import tensorfile
from offbeat_ps.store import Snapshot
from offbeat_ps.tensorfile import Tensor

log = logging.getLogger("offbeat_ps")

WAITING = "offbeat.waiting"
TRAINABLE = "trainable"
"""Metadata: so many of the tensors, the first ones, train; the others are buffers."""


@dataclass(frozen=True)
class Waiting:
    """Σ w·U and Σ w of the updates of one lot."""

    values: np.ndarray
    weight: float


@dataclass(frozen=True)
class Captured:
    """One consistent state of a run. `waiting`: by lot."""

    epoch: int
    snapshot: Snapshot
    accounts: str  # JSON
    waiting: Mapping[int, Waiting] = field(default_factory=dict)


class Folder:
    """Writes the files of one run. Calls may come from any one thread at a time.

    Attributes:
        failing: the last write failed.
        failures: how many did.
        written_epoch: of the newest checkpoint on disk; 0: none.
    """

    def __init__(self, folder: Path, run_id: str, manifest: Manifest) -> None:
        self.folder = folder / run_id
        self.run_id = run_id
        self.manifest = manifest
        self.failing = False
        self.failures = 0
        self.written_epoch = 0

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    def write_checkpoint(self, captured: Captured) -> bool:
        """True if it is on disk now."""
        extra: dict[str, Tensor] = {}
        facts = {"epoch": str(captured.epoch), "counts": captured.accounts}
        for lot, waiting in captured.waiting.items():
            suffix = f".{lot}" if lot else ""
            extra[WAITING + suffix] = Tensor(waiting.values, waiting.values.shape)
            facts["waiting_weight" + suffix] = repr(waiting.weight)
        if self._write(self.checkpoint, captured.snapshot, facts, extra):
            self.written_epoch = captured.epoch
            return True
        return False

    def write_model(self, captured: Captured) -> bool:
        return self._write(
            self.model,
            captured.snapshot,
            {"epoch": str(captured.epoch), "counts": captured.accounts},
        )

    def write_best(self, snapshot: Snapshot, loss: float, metric: float) -> bool:
        return self._write(self.best, snapshot, {"loss": repr(loss), "metric": repr(metric)})

    def _write(
        self,
        path: Path,
        snapshot: Snapshot,
        facts: Mapping[str, str],
        extra: Mapping[str, Tensor] | None = None,
    ) -> bool:
        tensors = {
            spec.name: Tensor(snapshot.values[self.manifest.slices[spec.name]], spec.shape, spec.dtype)
            for spec in (*self.manifest.trainable, *self.manifest.buffers)
        }
        metadata = {
            "format": "pt",
            "run_id": self.run_id,
            "version": str(snapshot.version),
            "manifest": self.manifest.digest,
            TRAINABLE: str(len(self.manifest.trainable)),
            **facts,
        }
        try:
            tensorfile.write(path, {**tensors, **(extra or {})}, metadata)
        except OSError as error:
            self.failures += 1
            if not self.failing:
                log.error(
                    "cannot write %s: %s. Training goes on; the older file stays. "
                    "offbeat_ps_checkpoint_failing is 1 until it works again",
                    path,
                    error.strerror or error,
                )
            self.failing = True
            return False
        if self.failing:
            log.info("%s is written again", path)
        self.failing = False
        return True


def check_dtypes(manifest: Manifest) -> str:
    """What is wrong with the manifest's dtypes; empty if nothing is."""
    for spec in (*manifest.trainable, *manifest.buffers):
        if spec.dtype not in tensorfile.FORMATS:
            return (
                f"manifest: tensor '{spec.name}' has dtype '{spec.dtype}'; "
                f"known here: {', '.join(tensorfile.FORMATS)}"
            )
    return ""
