"""What is trained in a simulation: a workload turns steps into losses.

`PowerLaw` is analytic: no gradients, one number of progress. `Quadratic` and `Perceptron` are
trained by real gradients. All of them are deterministic for a seed and the same order of calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import NamedTuple

import numpy as np

from offbeat_cli.simulator.devices import Directive


class LocalUpdate(NamedTuple):
    """What a local update was."""

    loss: float  # of its batch
    samples: int
    passes: int = 0  # over the device's data, finished since the beginning


class Noise(NamedTuple):
    """What a device measured of its gradients: |G|^2, tr(Sigma) of one sample, measurements behind both."""

    square: float = 0.0
    variance: float = 0.0
    pairs: int = 0


class Workload(ABC):
    """A model as one flat float32 vector of shape (elements,), and what a local update does to it."""

    elements: int

    @property
    def trainable(self) -> int:
        """How many of the elements, the first ones, are trained; the rest are floating buffers."""
        return self.elements

    @abstractmethod
    def initial(self) -> np.ndarray:
        """The first model, shape (elements,)."""

    @abstractmethod
    def step(self, device: int, values: np.ndarray, age_s: float, batch: int) -> LocalUpdate:
        """One local update of `values` in place.

        Args:
            device: index of the device, whose data it is.
            values: shape (elements,).
            age_s: since the server's model that this one is based on. Only an analytic
                workload needs it; real gradients feel it by themselves.
            batch: samples asked for.
        """

    @abstractmethod
    def evaluate(self, values: np.ndarray) -> tuple[float, float]:
        """Held-out loss and metric (accuracy, where there is one) of a model."""

    def shard_samples(self, device: int) -> int:
        """How many samples a device holds; where there are no data, all hold the same."""
        return 1

    def pass_samples(self, device: int) -> int:
        """How many of them it trains on now."""
        return self.shard_samples(device)

    def share(self, device: int, batch: int) -> float:
        """The samples of its next local update over a usual one's: less than 1 at a pass's end."""
        return 1.0

    def allot(self, device: int, directive: Directive) -> None:  # noqa: B027 - an analytic workload has neither
        """From its next local update on a device trains at the directive's learning rate, on its samples."""

    def halves(self, device: int, batch: int) -> bool:
        """Will its next local update go through its batch in two halves, to measure gradients' noise?"""
        return False

    def noise(self, device: int) -> Noise:
        """What a device measured, where its directive asks for it."""
        return Noise()

    def data_samples(self) -> int:
        """In the data set that the parameter server holds, where samples are dealt; 0: it holds none."""
        return 0

    @property
    def sample_bytes(self) -> int:
        """Of a sample that travels."""
        return 0

    def give(self, device: int, indices: np.ndarray) -> None:  # noqa: B027 - most hold no such data set
        """From its next local update on a device trains on these samples of it, shape (d_k,)."""

    def forget(self, device: int) -> None:  # noqa: B027 - most keep nothing
        """A device's update was refused: drop its momentum."""


class PowerLaw(Workload):
    """Loss a + b (s + s0)^(-beta) + noise; s: effective steps of the mean device.

    A step on a model of age t counts 1/(1 + kappa t)^2, so that an interval of I seconds
    counts I/(1 + kappa I) in all: what `docs/adsp.md` found of progress per step. Nothing else
    of the search's own model is in here: progress enters by commits, with their weights.

    Args:
        kappa: 1/s.
        noise: standard deviation of an evaluation.
        samples: that each device holds; if more than 1, passes over them are counted.
        data: samples that the parameter server holds.
    """

    elements = 1

    def __init__(
        self,
        kappa: float,
        *,
        a: float = 0.3,
        b: float = 20.0,
        s0: float = 60.0,
        beta: float = 0.6,
        noise: float = 0.0,
        samples: int = 1,
        data: int = 0,
        seed: int = 0,
    ) -> None:
        self.samples = samples
        self._data = data
        self._counts = samples > 1 or data > 0  # passes
        self._pass: dict[int, int] = {}  # samples of a pass, by device, where they are not all
        self._done: dict[int, int] = {}  # of the pass under way
        self._passes: Counter[int] = Counter()
        self.kappa, self.a, self.b, self.s0, self.beta = kappa, a, b, s0, beta
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def initial(self) -> np.ndarray:
        return np.zeros(1, dtype=np.float32)

    def step(self, device: int, values: np.ndarray, age_s: float, batch: int) -> LocalUpdate:
        values[0] += 1.0 / (1.0 + self.kappa * age_s) ** 2
        size = self.pass_samples(device)
        if not self._counts:
            return LocalUpdate(self.loss(float(values[0])), batch)
        used = round(self.share(device, batch) * min(batch, size))
        done = self._done.get(device, 0) + used
        self._passes[device] += done >= size
        self._done[device] = 0 if done >= size else done
        return LocalUpdate(self.loss(float(values[0])), used, self._passes[device])

    def share(self, device: int, batch: int) -> float:
        size = self.pass_samples(device)
        return min(1.0, (size - self._done.get(device, 0)) / min(batch, size)) if self._counts else 1.0

    def shard_samples(self, device: int) -> int:
        return self.samples

    def pass_samples(self, device: int) -> int:
        return self._pass.get(device, self.samples)

    def allot(self, device: int, directive: Directive) -> None:
        if not directive.dealt:
            self._pass[device] = min(directive.draw, self.samples) or self.samples
            self._done[device] = 0

    def data_samples(self) -> int:
        return self._data

    def give(self, device: int, indices: np.ndarray) -> None:
        self._pass[device] = len(indices)
        self._done[device] = 0

    def evaluate(self, values: np.ndarray) -> tuple[float, float]:
        loss = self.loss(float(values[0])) + self._noise * float(self._random.standard_normal())
        return loss, 0.0

    def loss(self, progress: float) -> float:
        return self.a + self.b * (max(0.0, progress) + self.s0) ** -self.beta


class Quadratic(Workload):
    """SGD on 0.5 sum_j h_j (x_j - x*_j)^2 with noisy gradients; each device has its own optimum x*.

    Args:
        elements: dimensions; their curvatures h are spread from 0.01 to 1.
        devices: how many optima.
        unlike: how far apart the optima are (0: all devices have the same data).
        noise: of a gradient's component.
    """

    def __init__(
        self,
        *,
        elements: int = 32,
        devices: int = 3,
        learning_rate: float = 0.1,
        unlike: float = 0.0,
        noise: float = 0.3,
        seed: int = 0,
    ) -> None:
        self.elements = elements
        self._random = np.random.default_rng(seed)
        self._curvature = np.geomspace(0.01, 1.0, elements)
        optima = 1.0 + unlike * self._random.standard_normal((devices, elements))
        self._optima = optima
        self._optimum = optima.mean(axis=0)
        self._rate, self._noise = learning_rate, noise

    def initial(self) -> np.ndarray:
        return np.zeros(self.elements, dtype=np.float32)

    def step(self, device: int, values: np.ndarray, age_s: float, batch: int) -> LocalUpdate:
        away = values - self._optima[device]
        gradient = self._curvature * away + self._noise * self._random.standard_normal(self.elements)
        values -= (self._rate * gradient).astype(np.float32)
        return LocalUpdate(float(0.5 * self._curvature @ away**2), batch)

    def evaluate(self, values: np.ndarray) -> tuple[float, float]:
        return float(0.5 * self._curvature @ (values - self._optimum) ** 2), 0.0


class Perceptron(Workload):
    """A multi-layer perceptron with one hidden layer (ReLU) and softmax, trained by SGD in numpy.

    Args:
        data: features, shape (n, features).
        labels: whole numbers from 0, shape (n,).
        shards: indices of each device's samples.
        held_out: indices of the samples to evaluate on.
    """

    def __init__(
        self,
        data: np.ndarray,
        labels: np.ndarray,
        shards: list[np.ndarray],
        held_out: np.ndarray,
        *,
        hidden: int = 32,
        batch: int = 32,
        learning_rate: float = 0.05,
        seed: int = 0,
    ) -> None:
        self._data = data.astype(np.float32)
        self._labels = labels
        self._shards, self._held_out = shards, held_out
        self._batch, self._rate = batch, np.float32(learning_rate)
        self._random = np.random.default_rng(seed)
        features, classes = data.shape[1], int(labels.max()) + 1
        self._shapes = [(features, hidden), (hidden,), (hidden, classes), (classes,)]
        self.elements = sum(int(np.prod(shape)) for shape in self._shapes)

    def initial(self) -> np.ndarray:
        parts = [
            self._random.standard_normal(shape) * np.sqrt(2.0 / shape[0])
            if len(shape) == 2
            else np.zeros(shape)
            for shape in self._shapes
        ]
        return np.concatenate([part.ravel() for part in parts]).astype(np.float32)

    def step(self, device: int, values: np.ndarray, age_s: float, batch: int) -> LocalUpdate:
        chosen = self._random.choice(self._shards[device], self._batch)
        x, y = self._data[chosen], self._labels[chosen]
        w1, b1, w2, b2 = self._views(values)
        hidden = np.maximum(x @ w1 + b1, 0.0)
        chance = _softmax(hidden @ w2 + b2)
        loss = float(-np.log(np.maximum(chance[np.arange(y.size), y], 1e-12)).mean())
        chance[np.arange(y.size), y] -= 1.0
        chance /= y.size
        back = (chance @ w2.T) * (hidden > 0)
        for part, gradient in (
            (w1, x.T @ back),
            (b1, back.sum(axis=0)),
            (w2, hidden.T @ chance),
            (b2, chance.sum(axis=0)),
        ):
            part -= self._rate * gradient
        return LocalUpdate(loss, self._batch)

    def evaluate(self, values: np.ndarray) -> tuple[float, float]:
        x, y = self._data[self._held_out], self._labels[self._held_out]
        w1, b1, w2, b2 = self._views(values)
        chance = _softmax(np.maximum(x @ w1 + b1, 0.0) @ w2 + b2)
        loss = float(-np.log(np.maximum(chance[np.arange(y.size), y], 1e-12)).mean())
        return loss, float((chance.argmax(axis=1) == y).mean())

    def _views(self, values: np.ndarray) -> list[np.ndarray]:
        views, offset = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape))
            views.append(values[offset : offset + size].reshape(shape))
            offset += size
        return views


def _softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
