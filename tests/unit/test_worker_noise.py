"""The gradient noise scale: what is estimated, and that measuring it changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from offbeat_worker.flat import FlatModel
from offbeat_worker.noise import EVERY, GradientNoise, descend
from offbeat_worker.sgd import FlatSGD

SIZE = 40


def model() -> FlatModel:
    module = nn.Linear(SIZE, 1, bias=False)
    with torch.no_grad():
        module.weight.zero_()
    return FlatModel(module)


def give(flat: FlatModel, gradient: torch.Tensor) -> None:
    """As a backward pass would."""
    flat.gradient.copy_(gradient)


@pytest.mark.parametrize("batches", [(32, 32), (8, 64)])
def test_mean_and_variance_are_found_within_a_few_percent(batches: tuple[int, int]) -> None:
    chance = np.random.default_rng(1)
    mean, spread = chance.normal(size=SIZE) * 0.3, 2.0
    noise = GradientNoise()
    squares, variances = [], []
    for _ in range(4000):
        one, other = (torch.tensor(mean + chance.normal(size=SIZE) * spread / np.sqrt(b)) for b in batches)
        noise.keep(batches[0])
        noise.take(one, other, batches[1])
        squares.append(noise.square)
        variances.append(noise.variance)
    assert np.mean(squares[500:]) == pytest.approx(float(mean @ mean), rel=0.1)
    assert np.mean(variances[500:]) == pytest.approx(SIZE * spread**2, rel=0.05)
    assert noise.pairs == 4000


def test_a_gradient_that_is_no_number_is_left_out() -> None:
    noise = GradientNoise()
    noise.keep(4)
    noise.take(torch.ones(3), torch.full((3,), torch.nan), 4)
    assert (noise.pairs, noise.square, noise.variance) == (0, 0.0, 0.0)


def test_both_gradients_of_a_pair_are_of_the_same_model_and_both_are_applied() -> None:
    flat = model()
    sgd, noise = FlatSGD(flat), GradientNoise()
    seen = []
    for number in range(1, EVERY + 3):
        seen.append(flat.parameters.clone())
        give(flat, torch.full((SIZE,), float(number)))
        descend(sgd, noise, 8, (0.5, 0.0, 0.0))
    first = EVERY - 1  # the tenth local update begins a pair
    assert torch.equal(seen[first], seen[first + 1])
    assert noise.pairs == 1
    assert noise.square == pytest.approx(SIZE * EVERY * (EVERY + 1))
    applied = sum(range(1, EVERY + 3))
    assert torch.allclose(flat.parameters, torch.full((SIZE,), -0.5 * applied))


@pytest.mark.parametrize("every", [3, 5, 10])
def test_a_pair_that_a_commit_came_between_is_tried_again(every: int) -> None:
    flat = model()
    sgd, noise = FlatSGD(flat), GradientNoise()
    for number in range(1, 201):
        give(flat, torch.ones(SIZE))
        descend(sgd, noise, 8, (0.5, 0.0, 0.0))
        if number % every == 0:
            sgd.flush()  # as a commit does
    assert 200 // (EVERY + every) <= noise.pairs <= 200 // EVERY
    sgd.flush()
    assert torch.equal(flat.parameters, torch.full((SIZE,), -100.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_where_gradients_do_not_depend_on_the_model_measuring_changes_nothing(
    momentum: float, decay: float
) -> None:
    plain, measured = model(), model()
    noise = GradientNoise()
    optimizers = FlatSGD(plain), FlatSGD(measured)
    chance = torch.Generator().manual_seed(3)
    for _ in range(3 * EVERY + 5):
        gradient = torch.randn(SIZE, generator=chance)
        give(plain, gradient)
        optimizers[0].step(0.1, momentum, decay)
        give(measured, gradient)
        descend(optimizers[1], noise, 4, (0.1, momentum, decay))
    optimizers[1].flush()
    assert noise.pairs == 3
    assert torch.allclose(plain.parameters, measured.parameters, atol=1e-6)


def test_a_gradient_that_is_kept_back_is_not_lost_when_the_model_is_read() -> None:
    flat = model()
    sgd = FlatSGD(flat)
    give(flat, torch.ones(SIZE))
    sgd.keep(0.5)
    assert not flat.parameters.any()
    assert not flat.gradient.any()
    assert sgd.flush()
    assert not sgd.flush()
    assert torch.equal(flat.parameters, torch.full((SIZE,), -0.5))


def test_a_refused_update_drops_what_was_kept_back() -> None:
    flat = model()
    sgd = FlatSGD(flat)
    give(flat, torch.full((SIZE,), torch.nan))
    sgd.keep(0.5)
    sgd.forget()
    assert not sgd.flush()
    assert sgd.kept is None
    assert not flat.parameters.any()
