"""The gradient noise scale: what is estimated, and that measuring it changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from offbeat_worker.flat import FlatModel
from offbeat_worker.noise import EVERY, FIRST_PAIRS, LATER_EVERY, LEAST, GradientNoise, backward
from offbeat_worker.sgd import FlatSGD

SIZE = 40


class Model(nn.Module):
    """One tensor in float32, and one that only follows the flat vector."""

    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.rand(SIZE, generator=chance) + 1)
        self.coarse = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))


SAMPLES = torch.randn(200, SIZE, generator=torch.Generator().manual_seed(2))


class Bench:
    """A model, what is measured on it, and the batches that a gradient was taken of."""

    def __init__(self, noise: GradientNoise | None) -> None:
        self.model = Model()
        self.flat = FlatModel(self.model)
        self.sgd = FlatSGD(self.flat)
        self.noise = noise
        self.batches: list[int] = []

    def loss(self, indices: np.ndarray) -> torch.Tensor:
        self.batches.append(len(indices))
        x = SAMPLES[torch.from_numpy(indices)]
        fit = (self.model.weight - x).square().mean()
        return fit + self.model.coarse.float().square().sum() * x.square().mean()

    def backward(self, indices: np.ndarray) -> float:
        return float(backward(self.flat, self.loss, indices, self.noise).detach())

    def train(self, updates: int, batch: int, momentum: float = 0.0, decay: float = 0.0) -> None:
        chance = np.random.default_rng(3)
        for _ in range(updates):
            self.backward(chance.integers(len(SAMPLES), size=batch))
            self.sgd.step(0.1, momentum, decay)


def due(pairs: int = 0) -> GradientNoise:
    """One whose next local update is halved."""
    noise = GradientNoise()
    noise.pairs = pairs
    while not noise.halves(LEAST):
        noise.made()
    return noise


@pytest.mark.parametrize("sizes", [(32, 32), (8, 64)])
def test_mean_and_variance_are_found_within_a_few_percent(sizes: tuple[int, int]) -> None:
    chance = np.random.default_rng(1)
    mean, spread = chance.normal(size=SIZE) * 0.3, 2.0
    noise = GradientNoise()
    squares, variances = [], []
    for _ in range(4000):
        one, other = (torch.tensor(mean + chance.normal(size=SIZE) * spread / np.sqrt(b)) for b in sizes)
        noise.take((one, other), sizes)
        squares.append(noise.square)
        variances.append(noise.variance)
    assert np.mean(squares[500:]) == pytest.approx(float(mean @ mean), rel=0.1)
    assert np.mean(variances[500:]) == pytest.approx(SIZE * spread**2, rel=0.05)
    assert noise.pairs == 4000


def test_a_gradient_that_is_no_number_is_left_out() -> None:
    noise = due()
    noise.take((torch.ones(3), torch.full((3,), torch.nan)), (4, 4))
    assert (noise.pairs, noise.square, noise.variance) == (0, 0.0, 0.0)
    assert not noise.halves(8), "it is not tried again at once"


@pytest.mark.parametrize("batch", [LEAST, 7, 32])
def test_two_halves_give_the_gradient_and_the_loss_of_the_whole(batch: int) -> None:
    whole, halved = Bench(None), Bench(due())
    indices = np.arange(batch) + 5
    losses = whole.backward(indices), halved.backward(indices)
    whole.flat.gather_gradients()
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    # A bfloat16 gradient has eight bits; whole and halves are rounded apart.
    close = {"rtol": 1e-5, "atol": 1e-6}
    assert torch.allclose(whole.flat.gradient[:SIZE], halved.flat.gradient[:SIZE], **close)
    assert torch.allclose(whole.flat.gradient[SIZE:], halved.flat.gradient[SIZE:], rtol=2**-7)
    assert halved.batches == [batch // 2, batch - batch // 2]
    assert halved.noise is not None
    assert halved.noise.pairs == 1


def test_what_is_measured_is_what_the_two_halves_say() -> None:
    bench, indices = Bench(due()), np.arange(12)
    gradients = []
    for half in (indices[:6], indices[6:]):
        alone = Bench(None)
        alone.backward(half)
        alone.flat.gather_gradients()
        gradients.append(alone.flat.gradient.numpy().astype(float))
    bench.backward(indices)
    assert bench.noise is not None
    one, other = gradients
    assert bench.noise.square == pytest.approx(one @ other, rel=1e-4)
    assert bench.noise.variance == pytest.approx(3 * ((one - other) ** 2).sum(), rel=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_measuring_changes_nothing_about_training(momentum: float, decay: float) -> None:
    plain, measured = Bench(None), Bench(GradientNoise())
    for bench in (plain, measured):
        bench.train(3 * EVERY + 5, 16, momentum, decay)
    assert measured.noise is not None
    assert measured.noise.pairs == 3
    assert torch.allclose(plain.flat.parameters[:SIZE], measured.flat.parameters[:SIZE], atol=1e-4)


def test_pairs_are_rarer_once_there_are_some() -> None:
    bench = Bench(GradientNoise())
    assert bench.noise is not None
    bench.train(FIRST_PAIRS * EVERY, 16)
    assert bench.noise.pairs == FIRST_PAIRS
    bench.train(3 * LATER_EVERY, 16)
    assert bench.noise.pairs == FIRST_PAIRS + 3


def test_a_batch_too_small_for_two_halves_is_left_whole_and_a_larger_one_awaited() -> None:
    bench = Bench(due())
    for _ in range(3):
        bench.backward(np.arange(LEAST - 1))
    assert bench.batches == [LEAST - 1] * 3
    bench.backward(np.arange(LEAST))
    assert bench.batches[3:] == [LEAST // 2] * 2


class Normalised(Bench):
    """A model that does something to a batch as a whole."""

    def __init__(self, noise: GradientNoise | None) -> None:
        super().__init__(noise)
        torch.manual_seed(1)
        self.module = nn.Sequential(nn.BatchNorm1d(SIZE), nn.Linear(SIZE, 1))
        self.flat = FlatModel(self.module)

    def loss(self, indices: np.ndarray) -> torch.Tensor:
        made: torch.Tensor = self.module(SAMPLES[torch.from_numpy(indices)])
        return (made - 1).square().mean()


def test_a_model_with_batchnorm_is_measured_in_halves_of_two_or_more() -> None:
    bench = Normalised(due())
    for _ in range(2):
        bench.backward(np.arange(LEAST))
    assert bench.noise is not None
    assert bench.noise.pairs == 1
    assert torch.isfinite(bench.flat.gradient).all()
