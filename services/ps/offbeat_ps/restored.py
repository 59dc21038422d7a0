"""A run as its last checkpoint holds it, for a server that was restarted in the middle of it.

What is in the checkpoint is there again: the model, who committed what, and what waited for its fold
at the one gate or for a buffer of K, which is folded at once. Lost are the commits made since then, and
what waited at the gates of groups.

The versions of the run go on above all that were handed out before, so that whoever compares two
of them finds the newer model. How many that were after the last report is not known: `AHEAD` leaves room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest, TensorSpec
from offbeat_ps import tensorfile
from offbeat_ps.best import Best
from offbeat_ps.checkpoint import TRAINABLE, WAITING, Waiting
from offbeat_ps.fold import Sums
from offbeat_ps.initial import initial_values
from offbeat_ps.ledger import Entry
from offbeat_ps.model import Model
from offbeat_ps.run import Run
from offbeat_ps.tensorfile import Tensor

AHEAD = 1000
FIELD = "checkpoint"


@dataclass(frozen=True)
class Restored:
    """What was found.

    Args:
        values: the model, float32 of shape (manifest.elements,).
        entries: accounts by worker.
        waiting: for its fold, where there is one gate or none.
        best: with the path of its file; None if there is none that can be read.
    """

    manifest: Manifest
    values: np.ndarray
    version: int
    epoch: int
    entries: Mapping[str, Entry]
    waiting: Waiting | None
    best: tuple[Best, str] | None


def read(folder: Path, run_id: str) -> Restored:
    """The run's last checkpoint in its folder. Raises OffbeatError where none can be used."""
    path = folder / "checkpoint.safetensors"
    if not path.is_file():
        raise OffbeatError(
            f"{FIELD}: there is none of run '{run_id}' in {folder}", "keep the server's folder"
        )
    tensors, facts = tensorfile.read(path, FIELD)
    if facts.get("run_id") != run_id:
        raise OffbeatError(f"{FIELD}: {path} is of run '{facts.get('run_id', '')}', not of '{run_id}'")
    waiting = tensors.get(WAITING)
    try:
        manifest = _manifest(tensors, int(facts[TRAINABLE]))
        version, epoch = int(facts["version"]), int(facts["epoch"])
        entries = {name: Entry(**_account(facts)) for name, facts in json.loads(facts["counts"]).items()}
        weight = float(facts["waiting_weight"]) if waiting else 0.0
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffbeatError(
            f"{FIELD}: {path} holds no run: {type(error).__name__}: {error}", "use it as initial_model"
        ) from error
    if manifest.digest != facts.get("manifest"):
        raise OffbeatError(f"{FIELD}: {path} is damaged: its tensors are not those of its manifest")
    values = initial_values(tensors, manifest, path)
    usable = waiting is not None and waiting.values.size == manifest.elements and weight > 0
    kept = Waiting(waiting.values.copy(), weight) if waiting is not None and usable else None
    return Restored(manifest, values, version, epoch, entries, kept, _best(folder))


def take_up(found: Restored, run: Run, version: int, trainers: Iterable[str], now: float) -> Model:
    """Let a run that has no model yet go on from what was found; returns its model.

    Args:
        version: the newest one of the run that is known of.
        trainers: who train: they hold leases as if they had pulled, so that the first commit to come
            does not weigh as if its worker were alone.
    """
    model = Model(found.manifest, found.values)
    if found.waiting is not None:
        weight = found.waiting.weight
        scale, share = run.fold.factors(weight, weight, 1.0)
        model.store.fold(Sums(found.waiting.values, weight), scale, share)
    model.store.version = run.version = max(found.version, version) + AHEAD
    run.open_epoch, run.durable_epoch = found.epoch + 1, found.epoch
    run.ledger.entries.update(found.entries)
    run.counters.commits = sum(entry.commits for entry in found.entries.values())
    for name in trainers:
        run.membership.keep(name, now)
        run.groups.arrive(name, now)
    return model


def _manifest(tensors: Mapping[str, Tensor], trainable: int) -> Manifest:
    specs = tuple(
        TensorSpec(name, tensor.shape, tensor.dtype)
        for name, tensor in tensors.items()
        if not name.startswith(WAITING)
    )
    return Manifest(specs[:trainable], specs[trainable:])


def _account(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "incarnation": str(facts["incarnation"]),
        **{name: int(facts[name]) for name in ("sequence", "commits", "steps", "samples")},
    }


def _best(folder: Path) -> tuple[Best, str] | None:
    path = folder / "best.safetensors"
    try:
        facts = tensorfile.read(path, "best")[1]
        best = Best(int(facts["version"]), float(facts["loss"]), float(facts["metric"]))
    except (OffbeatError, KeyError, TypeError, ValueError):
        return None
    return best, str(path.resolve())
