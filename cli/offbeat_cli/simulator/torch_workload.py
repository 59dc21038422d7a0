"""Real gradients of a real task, through the worker's own code, for any number of virtual devices.

One module serves all devices: before a local update the device's vector is copied into it, after
it out again. What a device keeps of its own is its order of samples, its momentum and its
chance (dropout, augmentation). Held-out data are evaluated as the evaluator does it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from offbeat_cli.simulator.devices import Directive
from offbeat_cli.simulator.shards import Shards
from offbeat_cli.simulator.workloads import LocalUpdate, Noise, Workload
from offbeat_core.config import RunSettings
from offbeat_worker import tasks
from offbeat_worker.batches import Order, fetcher
from offbeat_worker.flat import FlatModel
from offbeat_worker.noise import GradientNoise, backward
from offbeat_worker.sgd import FlatSGD

EVALUATED_AT_A_TIME = 500
"""Samples: the fastest on a processor's caches for small models."""


class TorchWorkload(Workload):
    """A task's model and data.

    Args:
        run: task, options, partition, learning rate, seed.
        devices: for each device the classes that its data holds; empty: all.
        data: folder with data sets.
        paths: the user's own task files.

    Raises OffbeatError for whatever is wrong with the task or its data.
    """

    def __init__(
        self, run: RunSettings, devices: Sequence[tuple[int, ...]], data: Path, paths: Sequence[Path] = ()
    ) -> None:
        self._training = run.training
        self._task = tasks.load(run.task.name, paths)
        self._options = dict(run.task.options)
        seed = run.training.seed
        _seed(seed)
        module = self._task.build_model(**self._options)
        self._shards = Shards(self._task, run.task, data, seed, devices)
        held_out = self._task.load_data(0, 1, "test", data, seed, run.task.partition, **self._options)
        tasks.check_batch(
            self._task, module, self._shards.first, batch=run.training.batch, options=self._options
        )
        tasks.check_batch(
            self._task, module, held_out, batch=EVALUATED_AT_A_TIME, options=self._options, training=False
        )
        self._held_out = _HeldOut(held_out)
        self._flat = FlatModel(module)
        self.elements = self._flat.manifest.elements
        self._initial = self._flat.vector.numpy().copy()
        self._orders = [Order(size, seed, shard) for shard, size in enumerate(self._shards.sizes)]
        self._optimizers = [FlatSGD(self._flat) for _ in devices]
        self._noise = [GradientNoise() for _ in devices]
        self._measures = [False] * len(devices)
        self._rates = [run.training.learning_rate] * len(devices)
        self._made = [0] * len(devices)
        self._given: dict[int, np.ndarray] = {}  # where samples are dealt: indices into the whole data set
        self._chance: bool | None = None  # does a local update draw random numbers? The first one shows it
        self._training_mode = False

    @property
    def trainable(self) -> int:
        return self._flat.manifest.trainable_elements

    def initial(self) -> np.ndarray:
        return self._initial.copy()

    def shard_samples(self, device: int) -> int:
        return self._shards.sizes[device]

    def pass_samples(self, device: int) -> int:
        return self._orders[device].size

    def share(self, device: int, batch: int) -> float:
        return self._orders[device].share(batch)

    def allot(self, device: int, directive: Directive) -> None:
        self._rates[device] = directive.rate * self._training.learning_rate
        self._measures[device] = directive.gradient_noise
        self._orders[device].even = directive.even
        if not directive.dealt:
            self._orders[device].draw(directive.draw, directive.generation)

    def data_samples(self) -> int:
        return self._shards.whole.size

    @property
    def sample_bytes(self) -> int:
        items = self._shards.whole.fetch(np.zeros(1, np.int64)) if self._given else ()
        return sum(item.nbytes for item in items if isinstance(item, torch.Tensor))

    def give(self, device: int, indices: np.ndarray) -> None:
        self._given[device] = indices
        self._orders[device].renew(len(indices))

    def halves(self, device: int, batch: int) -> bool:
        noise = self._measuring(device)
        return noise is not None and noise.halves(self._orders[device].upcoming(batch))

    def _measuring(self, device: int) -> GradientNoise | None:
        return self._noise[device] if self._measures[device] else None

    def noise(self, device: int) -> Noise:
        found = self._noise[device]
        return Noise(found.square, found.variance, found.pairs)

    def forget(self, device: int) -> None:
        self._optimizers[device].forget()

    def step(self, device: int, values: np.ndarray, age_s: float, batch: int) -> LocalUpdate:
        flat, training, order = self._flat, self._training, self._orders[device]
        if not self._training_mode:
            flat.module.train()
            self._training_mode = True
        if self._chance is not False:
            self._draw(device)
        before = _states() if self._chance is None else None
        indices = order.next(batch)
        flat.load(torch.from_numpy(values))
        loss = backward(flat, lambda part: self._loss_of(device, part), indices, self._measuring(device))
        self._optimizers[device].step(self._rates[device], training.momentum, training.weight_decay)
        if flat.buffers.numel():
            flat.gather_buffers()
        torch.from_numpy(values).copy_(flat.vector)
        self._made[device] += 1
        if before is not None:
            self._chance = not _same(before, _states())
        return LocalUpdate(float(loss.item()), len(indices), order.passes)

    def _loss_of(self, device: int, indices: np.ndarray) -> torch.Tensor:
        given = self._given.get(device)
        items = (
            self._shards.fetch(device, indices) if given is None else self._shards.whole.fetch(given[indices])
        )
        loss, _ = self._task.loss_and_metric(self._flat.module, items, **self._options)
        return loss

    def evaluate(self, values: np.ndarray) -> tuple[float, float]:
        """Loss and the first metric over all held-out samples; (nan, nan) if the model is not finite."""
        self._flat.load(torch.from_numpy(values.copy()))
        module = self._flat.module.eval()
        self._training_mode = False
        losses = metrics = 0.0
        states = _states() if self._chance else None
        with torch.inference_mode():
            for count, items in self._held_out.batches():
                loss, found = self._task.loss_and_metric(module, items, **self._options)
                losses += float(loss) * count
                metrics += tasks.as_number(next(iter(found.values()))) * count
        if states is not None:
            _restore(states)
        metric = metrics / self._held_out.samples
        # As the evaluator: digits beyond float32's are noise.
        return losses / self._held_out.samples, float(f"{metric:.7g}") if math.isfinite(metric) else metric

    def _draw(self, device: int) -> None:
        """Chance of a device's next local update: by device and number, whatever others did meanwhile."""
        number = np.random.SeedSequence((self._training.seed, device, self._made[device]))
        _seed(int(number.generate_state(1)[0]))


class _HeldOut:
    """The held-out data in batches; tensors are cut into views, which cost nothing."""

    def __init__(self, dataset: Any) -> None:
        self.samples = len(dataset)
        self._tensors = dataset.tensors if type(dataset) is TensorDataset else None
        self._fetch = fetcher(dataset)

    def batches(self) -> Iterator[tuple[int, Any]]:
        """(samples in it, batch), in order."""
        for start in range(0, self.samples, EVALUATED_AT_A_TIME):
            end = min(start + EVALUATED_AT_A_TIME, self.samples)
            if self._tensors is not None:
                yield end - start, [tensor[start:end] for tensor in self._tensors]
            else:
                yield end - start, self._fetch(np.arange(start, end))


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _states() -> tuple[Any, ...]:
    return torch.random.get_rng_state(), np.random.get_state(), random.getstate()


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    numpy_same = all(np.array_equal(x, y) for x, y in zip(a[1], b[1], strict=True))
    return torch.equal(a[0], b[0]) and numpy_same and a[2] == b[2]


def _restore(states: tuple[Any, ...]) -> None:
    torch.random.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
