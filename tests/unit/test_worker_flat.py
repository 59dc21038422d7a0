"""A module's tensors as views into one flat vector."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from offbeat_core.errors import OffbeatError
from offbeat_worker.flat import FlatModel
from offbeat_worker.sgd import FlatSGD

# Tiny tensors: several threads would only fight for the processors with whatever else runs here.
torch.set_num_threads(1)


class Everything(nn.Module):
    """0-d, empty, non-contiguous, frozen and tied tensors, buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.randn(3, 4).t())
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.norm = nn.BatchNorm1d(3)
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("cache", torch.ones(2), persistent=False)
        self.register_buffer("mean", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x @ self.turned) * self.scale
        return self.second(self.first(hidden)).square().mean()


def test_manifest_names_what_travels_once_and_leaves_the_rest_at_home() -> None:
    flat = FlatModel(Everything())
    assert [(t.name, t.shape) for t in flat.manifest.trainable] == [
        ("scale", ()),
        ("nothing", (0, 3)),
        ("turned", (4, 3)),
        ("norm.weight", (3,)),
        ("norm.bias", (3,)),
        ("first.weight", (3, 3)),
        ("first.bias", (3,)),
        ("second.bias", (3,)),
    ]
    assert sorted(t.name for t in flat.manifest.buffers) == ["mean", "norm.running_mean", "norm.running_var"]
    assert flat.vector.shape == (flat.manifest.elements,)


def test_flattening_changes_no_value_and_the_vector_is_the_parameters() -> None:
    module = Everything()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flat = FlatModel(module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for name, where in flat.manifest.slices.items():
        expected = dict(module.named_parameters()) | dict(module.named_buffers())
        assert torch.equal(flat.vector[where], expected[name].flatten()), name
    with torch.no_grad():
        flat.parameters.fill_(7.0)
    assert module.scale.item() == 7.0
    assert (module.first.weight == 7.0).all()
    assert (module.second.weight == 7.0).all()
    assert torch.equal(module.frozen, before["frozen"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_torchs_own_sgd(momentum: float, weight_decay: float) -> None:
    ours = Everything()
    theirs = copy.deepcopy(ours)
    flat = FlatModel(ours)
    sgd = FlatSGD(flat)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=momentum, weight_decay=weight_decay)
    for i in range(20):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(i))
        ours(x).backward()
        sgd.step(0.05, momentum, weight_decay)
        optimizer.zero_grad()
        theirs(x).backward()
        optimizer.step()
    assert theirs.scale.item() != 2.0
    for name, tensor in theirs.state_dict().items():
        # Not to the last bit: a tensor that was not contiguous now is, and is multiplied in another order.
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_parameters_over_the_same_memory_stay_tied_and_travel_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Parameter(torch.randn(4, 3))
            self.head = nn.Parameter(self.embed.data.t())
            self.row = nn.Parameter(self.embed.data[1], requires_grad=False)

    module = Tied()
    row = module.embed[1].clone()
    flat = FlatModel(module)
    assert [t.name for t in flat.manifest.trainable] == ["embed"]
    assert torch.equal(module.row, row)
    (module.embed.sum() + (2 * module.head).sum()).backward()
    FlatSGD(flat).step(1.0)
    assert torch.allclose(module.row, row - 3.0)
    assert torch.equal(module.head, module.embed.t())


def test_parameters_that_share_a_part_of_their_memory_are_refused() -> None:
    memory = torch.randn(6)
    module = nn.ParameterList([nn.Parameter(memory[:4]), nn.Parameter(memory[2:])])
    with pytest.raises(OffbeatError, match="'0' and '1' share a part"):
        FlatModel(module)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_follow_a_float32_master_copy(dtype: torch.dtype) -> None:
    module = nn.Linear(8, 1, bias=False).to(dtype)
    flat = FlatModel(module)
    assert flat.manifest.trainable[0].dtype == str(dtype).removeprefix("torch.")
    start = flat.parameters.clone()
    sgd = FlatSGD(flat)
    for _ in range(100):
        module(torch.ones(1, 8, dtype=dtype)).sum().backward()
        sgd.step(1e-5)
    # Each step alone would be lost to bfloat16's rounding.
    assert torch.allclose(flat.parameters, start - 1e-3, atol=1e-6)
    assert torch.equal(module.weight.flatten(), flat.parameters.to(dtype))
    assert module.weight.dtype == dtype
    flat.load(torch.full((8,), 0.25))
    assert (module.weight == 0.25).all()


def test_gradients_that_the_user_replaced_are_not_lost() -> None:
    module = nn.Linear(2, 1, bias=False)
    flat = FlatModel(module)
    module.weight.grad = None
    module(torch.ones(1, 2)).sum().backward()
    before = flat.parameters.clone()
    FlatSGD(flat).step(1.0)
    assert torch.equal(flat.parameters, before - 1.0)


def test_buffers_that_were_assigned_anew_travel_all_the_same() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.register_buffer("seen", torch.zeros(2))

    module = Counting()
    flat = FlatModel(module)
    module.seen = module.seen + 3
    flat.gather_buffers()
    assert flat.buffers.tolist() == [3.0, 3.0]
    flat.load(torch.tensor([0.0, 5.0, 6.0]))
    assert module.seen.tolist() == [5.0, 6.0]


def test_a_parameter_that_left_the_vector_is_an_error_that_names_it() -> None:
    module = nn.Linear(2, 1)
    flat = FlatModel(module)
    module.bias.data = torch.zeros(1)
    with pytest.raises(OffbeatError, match="'bias' was given another tensor"):
        flat.gather_buffers()


def _complex() -> nn.Module:
    return nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})


@pytest.mark.parametrize(
    ("build", "message"),
    [(_complex, "'phase' is complex64"), (lambda: nn.LazyLinear(2), "'weight' has no shape yet")],
)
def test_tensors_that_cannot_travel_are_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(OffbeatError, match=message):
        FlatModel(build())


def test_recurrent_layers_keep_their_weights_in_the_vector() -> None:
    module = nn.LSTM(2, 3, batch_first=True)
    flat = FlatModel(module)
    module.flatten_parameters()
    module(torch.randn(1, 4, 2))[0].sum().backward()
    FlatSGD(flat).step(0.1)
    flat.gather_buffers()
    assert torch.equal(torch.cat([p.flatten() for p in module.parameters()]), flat.parameters)


def test_convolutions_in_channels_last_work() -> None:
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 8, 8)
    expected = module(x)
    flat = FlatModel(module)
    assert torch.allclose(module(x), expected, atol=1e-6)
    module(x).sum().backward()
    assert flat.gradient.abs().sum() > 0
