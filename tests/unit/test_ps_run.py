"""A run's decisions as lists of events: no socket, no clock, no disk."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_ps.entrance import MAX_WORKERS, OFFENCES, Refused
from offbeat_ps.fold import FoldRule, Weight, When
from offbeat_ps.inspection import Finding
from offbeat_ps.instructions import Outcome, Refusal
from offbeat_ps.rules import Rules
from offbeat_ps.run import Run
from support.ps_world import World

BARRIER = Rules(generation=1, slack=0, fold=FoldRule(When.AT_GATE))


# ---- counting ------------------------------------------------------------------------


def test_a_commit_is_applied_and_answered_at_once() -> None:
    world = World()
    world.pull("a", "b")
    token = world.commit("a", 1, steps=3, samples=96, train_loss=0.5)
    ack, model = world.replies[token]
    assert (ack.outcome, ack.weight, ack.commits, model) == (Outcome.APPLIED, 0.5, 1, -0.5)
    entry = world.run.ledger.entries["a"]
    assert (entry.steps, entry.samples, entry.train_loss) == (3, 96, 0.5)


def test_m_counts_a_worker_for_the_window_after_its_lease() -> None:
    world = World(Rules(lease_s=10, membership_window_s=60))
    world.pull("a", "b")
    world.tick(69.0)
    assert world.ack(world.commit("a", 1)).weight == 0.5  # b's lease ended at 10, but the window holds
    world.tick(71.0)
    assert world.ack(world.commit("a", 2)).weight == 1.0


def test_a_newer_process_takes_over_and_ends_its_ghosts_held_call() -> None:
    world = World(BARRIER)
    world.pull("a", "b")
    token = world.commit("a", 1)
    world.pull("a", incarnation="second")
    assert world.refusals[token].refusal is Refusal.OLDER_INCARNATION
    assert world.refusals[world.commit("a", 2)].refusal is Refusal.OLDER_INCARNATION
    with pytest.raises(Refused, match="a newer process of this name took its place"):
        world.pull("a")
    world.commit("b", 1)
    again = world.commit("a", 1, incarnation="second")
    world.commit("b", 2)
    assert world.ack(again).commits == 2


def test_the_names_that_strangers_can_leave_behind_are_bounded() -> None:
    run = Run("r", Rules(), 0.0)
    for i in range(MAX_WORKERS):
        run.ledger.enter(f"w{i}", "first")
    with pytest.raises(Refused, match="10000 workers already"):
        run.pull("one-more", "first", 0.0)
    run.pull("w0", "second", 0.0)


class Sender:
    """A worker that retries as it likes, over a link that duplicates, delays and loses."""

    def __init__(self) -> None:
        self.incarnation, self.sequence = 0, 0
        self.old: list[tuple[int, int]] = []


link_events = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["new", "retry", "echo", "restart", "cut", "silence"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [
            Rules(),
            BARRIER,
            Rules(generation=1, slack=2),
            Rules(fold=FoldRule(When.EVERY_K, every_k=3)),
            Rules(generation=1, slack=0, deadline_s=5.0, fold=FoldRule(When.AT_GATE)),
            Rules(fold=FoldRule(weight=Weight.SAMPLES)),
        ]
    ),
    link_events,
)
def test_each_update_counts_exactly_once_whatever_the_link_does(
    rules: Rules, events: list[tuple[str, str, int]]
) -> None:
    world = World(rules)
    senders = {name: Sender() for name in "abc"}
    merged: list[tuple[str, int, int]] = []
    made: set[tuple[str, int, int]] = set()

    def send(name: str, incarnation: int, sequence: int) -> None:
        before = world.run.counters.commits
        world.commit(name, sequence, incarnation=str(incarnation))
        if world.run.counters.commits > before:
            merged.append((name, incarnation, sequence))

    for name in "abc":
        world.pull(name, incarnation="0")
    for name, kind, pick in events:
        sender = senders[name]
        if kind == "new":
            sender.sequence += 1
            sender.old.append((sender.incarnation, sender.sequence))
            made.add((name, sender.incarnation, sender.sequence))
            send(name, sender.incarnation, sender.sequence)
        elif kind == "retry" and sender.sequence:
            send(name, sender.incarnation, sender.sequence)
        elif kind == "echo" and sender.old:
            send(name, *sender.old[pick % len(sender.old)])
        elif kind == "restart":
            sender.incarnation, sender.sequence = sender.incarnation + 1, 0
            world.pull(name, incarnation=str(sender.incarnation))
        elif kind == "cut":
            held = world.run.held.get(name)
            if held:
                world.run.abandon(held.token)
        elif kind == "silence":
            world.tick(world.now + 4.0 * pick)
    assert len(merged) == len(set(merged))
    assert set(merged) == made
    assert world.run.counters.commits == len(made)
    assert sum(e.commits for e in world.run.ledger.entries.values()) == len(made)
    unanswered = set(range(1, world.tokens + 1)) - world.replies.keys() - world.refusals.keys()
    assert {held.token for held in world.run.held.values()} <= unanswered


def test_what_a_refused_number_was_refused_for_is_said_again_to_its_retry() -> None:
    world = World()
    world.pull("a")
    bad = Finding("tensor 'weight' has NaN in it", float("inf"))
    first = world.commit("a", 1, finding=bad)
    again = world.commit("a", 1, finding=bad)
    for token in (first, again):
        assert world.ack(token).outcome is Outcome.REFUSED
        assert "NaN" in world.ack(token).reason
    assert world.run.counters.refused == 1  # a retry is no second offence


# ---- gates ---------------------------------------------------------------------------


def test_a_barrier_folds_the_mean_of_those_that_arrived() -> None:
    world = World(BARRIER)
    world.pull("a", "b", "c")
    first, second = world.commit("a", 1, 3.0), world.commit("b", 1, 6.0)
    assert world.replies == {}
    world.commit("c", 1, 9.0)
    assert world.model == -6.0
    assert world.ack(first).weight == world.ack(second).weight == pytest.approx(1 / 3)
    assert world.run.version == 1


def test_a_retry_of_a_held_commit_learns_the_weight_that_the_fold_gave_it() -> None:
    world = World(BARRIER)
    world.pull("a", "b")
    first = world.commit("a", 1)
    again = world.commit("a", 1)
    assert world.refusals[first].refusal is Refusal.SUPERSEDED
    world.commit("b", 1)
    assert world.ack(again).outcome is Outcome.DUPLICATE
    assert world.ack(again).weight == 0.5
    assert world.ack(world.commit("b", 1)).weight == 0.5


def test_the_gate_is_released_when_a_lease_ends() -> None:
    world = World(BARRIER)
    world.pull("a", "dead")
    world.tick(8.0)
    token = world.commit("a", 1)
    world.tick(9.9)
    assert token not in world.replies
    world.tick(10.0)
    assert world.ack(token).weight == 1.0
    assert world.run.counters.leases_ended == 1


def test_time_in_which_the_server_itself_did_not_run_counts_in_no_lease() -> None:
    world = World(BARRIER)
    world.pull("a", "dead")
    world.tick(2.0)
    token = world.commit("a", 1)
    world.tick(40.0, lost_s=37.0)
    assert token not in world.replies
    world.tick(46.9)
    assert token not in world.replies
    world.tick(47.0)
    assert world.ack(token).weight == 1.0
    assert world.run.counters.leases_ended == 1


def test_what_the_dead_had_committed_is_in_the_next_fold_of_the_living() -> None:
    world = World(BARRIER)
    world.pull("a", "b")
    world.commit("a", 1, 2.0)
    world.now = 5.0
    world.carry_out(world.run.renew("b", "first", world.now)[1])
    world.tick(10.0)
    world.commit("b", 1, 4.0)
    assert world.model == -3.0


def test_when_all_are_gone_what_waits_is_folded() -> None:
    world = World(BARRIER)
    world.pull("a", "b")
    world.commit("a", 1, 2.0)
    world.tick(100.0)
    assert world.model == -2.0


def test_a_late_commit_is_in_the_next_fold_and_said_to_be_late() -> None:
    world = World(Rules(generation=1, slack=0, deadline_s=5.0, fold=FoldRule(When.AT_GATE)))
    world.pull("a", "slow")
    world.commit("a", 1, 4.0)
    world.tick(5.0)
    assert world.model == -4.0
    late = world.commit("slow", 1, 8.0)
    assert world.ack(late).outcome is Outcome.LATE
    assert world.ack(late).weight == 0.0  # its fold is to come
    world.commit("a", 2, 4.0)
    world.tick(10.0)
    assert world.model == -4.0 - 6.0


def test_at_a_gate_of_time_alone_nobody_waits_and_nobody_is_late() -> None:
    world = World(Rules(generation=1, deadline_s=5.0, fold=FoldRule(When.AT_GATE)))
    world.pull("a", "b")
    tokens = [world.commit("a", 1, 2.0), world.commit("b", 1, 4.0)]
    assert [world.ack(token).outcome for token in tokens] == [Outcome.APPLIED] * 2
    assert (world.model, world.run.counters.late) == (0.0, 0)
    world.tick(5.0)
    assert (world.model, world.run.closed) == (-3.0, 1)


def test_a_slack_with_folds_at_once_applies_before_it_holds() -> None:
    world = World(Rules(generation=1, slack=1))
    world.pull("a", "b")
    world.commit("a", 1)
    held = world.commit("a", 2)
    assert world.model == -1.0
    assert held not in world.replies
    world.commit("b", 1)
    assert world.replies[held][1] == -1.5  # the model as it is when the reply leaves


def test_a_change_of_model_folds_what_waits_and_releases_everybody() -> None:
    world = World(BARRIER)
    world.pull("a", "b")
    token = world.commit("a", 1, 2.0)
    world.carry_out(world.run.configure(Rules(generation=2), world.now))
    assert world.replies[token][1] == -2.0


def test_a_gates_fold_without_a_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="AT_GATE needs a gate"):
        Rules(fold=FoldRule(When.AT_GATE))


def test_a_buffer_of_k_folds_when_it_is_full_and_at_a_deadline() -> None:
    world = World(Rules(generation=1, deadline_s=30.0, fold=FoldRule(When.EVERY_K, every_k=2)))
    world.pull("a", "b", "c")
    first = world.commit("a", 1)
    assert (world.model, world.ack(first).weight) == (0.0, pytest.approx(1 / 3))
    world.commit("b", 1)
    assert world.model == pytest.approx(-2 / 3)
    world.commit("c", 1)
    world.now = 29.0
    for name in "abc":
        world.carry_out(world.run.renew(name, "first", world.now)[1])
    world.tick(30.0)
    assert world.model == pytest.approx(-1.0)


def test_a_worker_without_samples_is_refused_without_offence_and_holds_nobody_up() -> None:
    world = World(Rules(generation=1, slack=0, fold=FoldRule(weight=Weight.SAMPLES)))
    world.pull("a", "b")
    for sequence in range(1, OFFENCES + 3):
        held = world.commit("a", sequence, samples=10)
        empty = world.commit("b", sequence, samples=0)
        assert world.ack(empty).outcome is Outcome.REFUSED
        assert held in world.replies


# ---- offences -------------------------------------------------------------------------


def test_repeated_offences_quarantine_a_worker_and_the_gate_waits_for_it_no_longer() -> None:
    world = World(BARRIER)
    world.pull("a", "bad")
    held = world.commit("a", 1)
    for sequence in range(1, OFFENCES + 1):
        assert held not in world.replies
        world.commit("bad", sequence, finding=Finding("tensor 'weight' has NaN in it", float("inf")))
    assert held in world.replies
    assert world.run.membership.active(world.now) == {"a"}
    refused = world.refusals[world.commit("bad", OFFENCES + 1)]
    assert refused.refusal is Refusal.QUARANTINED
    assert "tensor 'weight' has NaN" in refused.details
    assert world.run.renew("bad", "first", world.now) == (False, [])


def test_the_bound_on_norms_is_learnt_from_what_was_accepted() -> None:
    world = World()
    world.pull("a")
    for sequence in range(1, 10):
        world.commit("a", sequence, finding=Finding("", 0.1))
    fine = world.commit("a", 10, finding=Finding("", 9.0))
    assert world.ack(fine).outcome is Outcome.APPLIED
    more_steps = world.commit("a", 11, finding=Finding("", 90.0), steps=10)
    assert world.ack(more_steps).outcome is Outcome.APPLIED
    exploded = world.commit("a", 12, finding=Finding("", 11.0))
    assert "norm 11 is above the bound 10" in world.ack(exploded).reason
    large_model = world.commit("a", 13, finding=Finding("", 11.0), model_norm=20.0)
    assert world.ack(large_model).outcome is Outcome.APPLIED


# ---- checkpoints ------------------------------------------------------------------------


def test_each_acknowledgement_names_the_checkpoint_that_will_contain_its_update() -> None:
    world = World(Rules(checkpoint_every_s=30.0))
    world.pull("a")
    promised: dict[int, int] = {}
    contained: dict[int, float] = {1: 0.0}
    for sequence in range(1, 8):
        world.tick(world.now + 9.0)
        promised[sequence] = world.ack(world.commit("a", sequence)).checkpoint_epoch
    world.carry_out(world.run.capture(world.now))
    contained |= {capture.epoch: model for capture, model in world.captures}
    for sequence, epoch in promised.items():
        assert contained[epoch] <= -sequence < contained[epoch - 1]


def test_a_checkpoint_is_due_only_if_something_changed_or_the_last_failed() -> None:
    world = World(Rules(checkpoint_every_s=30.0))
    world.tick(100.0)
    assert len(world.captures) == 1  # version 0
    world.pull("a")
    world.commit("a", 1)
    world.tick(100.0)
    assert len(world.captures) == 2
    world.tick(1000.0)
    assert len(world.captures) == 2
    world.run.failed_capture()
    world.tick(1001.0)
    assert len(world.captures) == 3


def test_an_update_that_waits_for_its_fold_makes_a_checkpoint_due() -> None:
    """It was acknowledged: the checkpoint carries it beside the model."""
    world = World(Rules(fold=FoldRule(When.EVERY_K, every_k=10)))
    world.pull("a")
    world.commit("a", 1)
    world.tick(31.0)
    capture, _ = world.captures[-1]
    assert json.loads(capture.accounts)["a"] == {
        "incarnation": "first",
        "sequence": 1,
        "commits": 1,
        "steps": 1,
        "samples": 1,
    }
    assert len(world.captures) == 2


def test_a_finished_run_folds_what_waits_and_takes_no_more() -> None:
    world = World(Rules(fold=FoldRule(When.EVERY_K, every_k=10)))
    world.pull("a")
    world.commit("a", 1)
    world.carry_out(world.run.finish(world.now))
    capture, model = world.captures[-1]
    assert (model, capture.version) == (pytest.approx(-0.1), 1)
    assert world.refusals[world.commit("a", 2)].details == "run 'r' is over"
    world.tick(1000.0)
    assert world.captures[-1][0] is capture


def test_a_run_says_when_it_has_something_to_do() -> None:
    world = World(Rules(lease_s=10.0, checkpoint_every_s=30.0))
    assert world.run.wake_at() is None
    world.pull("a")
    assert world.run.wake_at() == 10.0
    world.commit("a", 1)
    world.tick(10.0)
    assert world.run.wake_at() == 30.0
