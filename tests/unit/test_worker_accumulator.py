"""Each step is in one update and in one only, however steps, cuts and fresh models interleave."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from offbeat_worker.accumulator import Accumulator
from offbeat_worker.flat import FlatModel

N = 5


def _flat(values: torch.Tensor | None = None) -> FlatModel:
    module = nn.ParameterList([nn.Parameter(torch.zeros(N) if values is None else values.clone())])
    return FlatModel(module)


def _step(flat: FlatModel, accumulator: Accumulator, change: torch.Tensor) -> None:
    with torch.no_grad():
        flat.parameters.add_(change)
    accumulator.stepped(samples=3, loss=1.0)


@settings(deadline=None, max_examples=200)
@given(
    plan=st.lists(st.sampled_from(["step", "cut", "merge", "pull"]), max_size=60),
    seed=st.integers(0, 2**16),
)
def test_committed_updates_and_what_is_pending_sum_to_all_steps(plan: list[str], seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    flat = _flat()
    accumulator = Accumulator(flat)
    changes = torch.zeros(N)
    sent = torch.zeros(N)
    base = flat.parameters.clone()
    steps = sent_steps = 0
    for move in plan:
        fresh = torch.randn(N, generator=chance)
        if move == "step":
            change = torch.randn(N, generator=chance) * 0.1
            _step(flat, accumulator, change)
            changes += change
            steps += 1
        elif move == "cut" and accumulator.in_flight is None:
            sent += accumulator.cut()[:N]
            assert accumulator.in_flight is not None
            sent_steps += accumulator.in_flight.steps
        elif (move == "merge" and accumulator.in_flight) or (move == "pull" and not accumulator.in_flight):
            accumulator.merge(fresh.clone())
            base = fresh
            torch.testing.assert_close(
                flat.parameters,
                fresh + sent + changes,
                rtol=0,
                atol=1e-4,
                msg="fresh model plus what is unsent",
            )
    if accumulator.in_flight is None:
        pending = accumulator.pending
        assert sent_steps + pending.steps == steps
        assert pending.samples == 3 * pending.steps
        torch.testing.assert_close(base - flat.parameters + sent, -changes, rtol=0, atol=1e-4)


def test_without_steps_in_flight_local_becomes_the_fresh_model_to_the_last_bit() -> None:
    flat = _flat(torch.full((N,), 1e8))
    accumulator = Accumulator(flat)
    _step(flat, accumulator, torch.ones(N))
    accumulator.cut()
    fresh = torch.tensor([0.1, 1e-8, -3.0, 1e30, 0.0])
    accumulator.merge(fresh)
    assert torch.equal(flat.parameters, fresh)


def test_the_update_is_base_minus_local_and_the_steps_in_flight_are_in_the_next_one() -> None:
    flat = _flat()
    accumulator = Accumulator(flat)
    _step(flat, accumulator, torch.full((N,), -1.0))
    first = accumulator.cut().clone()
    _step(flat, accumulator, torch.full((N,), -0.25))
    accumulator.merge(torch.full((N,), 10.0))
    assert first.tolist() == [1.0] * N
    assert flat.parameters.tolist() == [9.75] * N
    assert accumulator.steps_since_pull == 1
    assert accumulator.cut().tolist() == [0.25] * N


def test_the_sent_vector_stays_as_it_is_while_training_goes_on() -> None:
    flat = _flat()
    accumulator = Accumulator(flat)
    _step(flat, accumulator, torch.ones(N))
    wire = accumulator.cut()
    kept = wire.clone()
    _step(flat, accumulator, torch.ones(N))
    assert torch.equal(wire, kept)
    with pytest.raises(RuntimeError, match="in flight"):
        accumulator.cut()


def test_a_refused_update_is_dropped_with_the_steps_made_on_top_of_it() -> None:
    flat = _flat()
    accumulator = Accumulator(flat)
    _step(flat, accumulator, torch.full((N,), torch.nan))
    accumulator.cut()
    _step(flat, accumulator, torch.ones(N))
    assert accumulator.replace(torch.full((N,), 4.0)) == 2
    assert flat.parameters.tolist() == [4.0] * N
    assert accumulator.in_flight is None
    assert accumulator.pending.steps == 0
    _step(flat, accumulator, torch.full((N,), -1.0))
    assert accumulator.cut().tolist() == [1.0] * N


def test_buffers_go_out_as_they_are_and_are_taken_over_as_they_come() -> None:
    module = nn.BatchNorm1d(2)
    flat = FlatModel(module)
    accumulator = Accumulator(flat)
    with torch.no_grad():
        assert module.running_mean is not None
        module.running_mean.copy_(torch.tensor([3.0, 4.0]))
    accumulator.stepped(1, 0.0)
    assert accumulator.cut()[4:].tolist() == [3.0, 4.0, 1.0, 1.0]
    accumulator.merge(torch.tensor([1.0, 1.0, 0.0, 0.0, 7.0, 8.0, 2.0, 2.0]))
    assert module.running_mean.tolist() == [7.0, 8.0]
    assert module.running_var is not None
    assert module.running_var.tolist() == [2.0, 2.0]


def test_lone_steps_beyond_the_bound_keep_their_direction_and_not_their_length() -> None:
    flat = _flat()
    accumulator = Accumulator(flat, max_lone_steps=4)
    for _ in range(2):
        _step(flat, accumulator, torch.full((N,), -1.0))
    accumulator.cut()
    for _ in range(16):  # while the server can't be reached
        _step(flat, accumulator, torch.full((N,), -1.0))
    accumulator.merge(torch.zeros(N))
    assert flat.parameters.tolist() == [-4.0] * N
    assert accumulator.shrunk == 1
    # Counted once: without further steps the next update is not scaled again.
    assert accumulator.cut().tolist() == [4.0] * N
    assert accumulator.shrunk == 1
    assert accumulator.in_flight is not None
    assert accumulator.in_flight.steps == 16


def test_mean_loss_leaves_out_what_was_not_finite() -> None:
    flat = _flat()
    accumulator = Accumulator(flat)
    accumulator.stepped(1, 2.0)
    accumulator.stepped(1, float("nan"), finite=False)
    accumulator.stepped(1, 4.0)
    assert accumulator.pending.mean_loss == 3.0
