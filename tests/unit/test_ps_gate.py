"""The gate: nobody exceeds the slack, and nobody waits for ever, whatever comes and goes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_ps.gate import Gate, Passage


def make(slack: int | None, *names: str, deadline_s: float | None = None, cohort: Iterable[str] = ()) -> Gate:
    gate = Gate(now=0.0)
    gate.configure(1, slack, deadline_s, cohort, now=0.0)
    for name in names:
        gate.arrive(name, now=0.0)
    return gate


def commit(gate: Gate, name: str, generation: int = 1, now: float = 0.0) -> Passage:
    return gate.commit(name, generation, now)


def test_a_barrier_holds_until_the_last_of_the_cohort_came() -> None:
    gate = make(0, "a", "b", "c")
    cycles = gate.cycles
    commit(gate, "a")
    commit(gate, "b")
    assert gate.holds("a")
    assert gate.holds("b")
    assert gate.cycles == cycles
    commit(gate, "c")
    assert not any(gate.holds(name) for name in "abc")
    assert gate.cycles == cycles + 1


def test_with_slack_a_worker_may_be_that_far_ahead() -> None:
    gate = make(2, "a", "b")
    commit(gate, "a")
    commit(gate, "a")
    assert not gate.holds("a")
    commit(gate, "a")
    assert gate.holds("a")
    commit(gate, "b")
    assert not gate.holds("a")


def test_without_slack_nobody_waits() -> None:
    gate = make(None, "a", "b")
    for _ in range(10):
        assert commit(gate, "a") is Passage.ON_TIME
        assert not gate.holds("a")


def test_who_is_not_in_the_cohort_neither_waits_nor_is_waited_for() -> None:
    gate = make(0, "a", "b", "rests", cohort=["a", "b"])
    assert commit(gate, "rests") is Passage.OUTSIDE
    assert not gate.holds("rests")
    commit(gate, "a")
    commit(gate, "b")
    assert not gate.holds("a")


def test_a_member_whose_lease_ended_is_not_waited_for() -> None:
    gate = make(0, "a", "dead")
    commit(gate, "a")
    gate.leave("dead", now=1.0)
    assert not gate.holds("a")


def test_a_joiner_starts_at_the_cohorts_minimum() -> None:
    gate = make(0, "a", "b")
    for _ in range(5):
        commit(gate, "a")
        commit(gate, "b")
    commit(gate, "a")
    gate.arrive("late", now=1.0)
    commit(gate, "b")
    assert gate.holds("a")  # the joiner is at the minimum: one commit and the cycle closes
    commit(gate, "late")
    assert not any(gate.holds(name) for name in ("a", "b", "late"))


def test_one_that_comes_back_is_where_it_was_and_gains_no_lead() -> None:
    gate = make(0, "a", "b")
    commit(gate, "a")
    for _ in range(5):
        gate.leave("a", now=1.0)
        gate.arrive("a", now=2.0)
        assert gate.holds("a")
    commit(gate, "b")
    assert not gate.holds("a")


def test_a_new_generation_releases_everybody_and_restarts_the_clocks() -> None:
    gate = make(1, "a", "b")
    commit(gate, "a")
    commit(gate, "a")
    assert gate.holds("a")
    cycles, restarts = gate.cycles, gate.restarts
    gate.configure(2, 1, None, (), now=1.0)
    assert not gate.holds("a")
    assert (gate.cycles, gate.restarts) == (cycles, restarts + 1)
    commit(gate, "a", generation=2)
    assert not gate.holds("a")


def test_a_commit_that_was_under_way_when_the_generation_began_moves_no_clock() -> None:
    gate = make(0, "a", "b")
    commit(gate, "a")  # held, and released by the new generation
    gate.configure(2, 0, None, (), now=1.0)
    assert commit(gate, "b", generation=1) is Passage.LATE
    assert not gate.holds("b")
    commit(gate, "a", generation=2)
    assert gate.holds("a")
    commit(gate, "b", generation=2)
    assert not gate.holds("a")


def test_a_worker_that_never_hears_of_the_new_generation_stalls_nobody() -> None:
    gate = make(0, "a", "deaf")
    gate.configure(2, 0, None, (), now=1.0)
    assert commit(gate, "deaf", generation=1) is Passage.LATE
    commit(gate, "a", generation=2)
    assert commit(gate, "deaf", generation=1) is Passage.ON_TIME
    assert not gate.holds("a")


def test_another_slack_in_the_same_generation_restarts_the_clocks_too() -> None:
    gate = make(None, "fast", "slow")
    for _ in range(500):
        commit(gate, "fast")
    gate.configure(1, 0, None, (), now=1.0)
    commit(gate, "slow")
    commit(gate, "fast")
    commit(gate, "slow")
    commit(gate, "fast")
    assert not (gate.holds("fast") and gate.holds("slow"))


def test_a_deadline_closes_the_cycle_without_those_that_are_missing() -> None:
    gate = make(0, "a", "slow", deadline_s=10.0)
    assert gate.deadline_at() is None  # nobody has arrived
    commit(gate, "a", now=3.0)
    assert gate.deadline_at() == 10.0
    gate.tick(now=9.9)
    assert gate.holds("a")
    gate.tick(now=10.0)
    assert not gate.holds("a")
    assert commit(gate, "slow", now=12.0) is Passage.LATE
    assert not gate.holds("slow")
    assert commit(gate, "slow", now=15.0) is Passage.ON_TIME
    assert gate.holds("slow")
    commit(gate, "a", now=16.0)
    assert not gate.holds("slow")


def test_a_deadline_that_nobody_met_closes_with_the_first_who_comes() -> None:
    gate = make(0, "a", "b", deadline_s=10.0)
    gate.tick(now=50.0)
    assert commit(gate, "a", now=60.0) is Passage.ON_TIME
    assert not gate.holds("a")


def test_without_slack_a_deadline_closes_cycles_by_time() -> None:
    gate = make(None, "a", deadline_s=5.0)
    cycles = gate.cycles
    gate.tick(now=6.0)
    assert gate.cycles == cycles  # nothing to close
    commit(gate, "a", now=7.0)
    assert gate.cycles == cycles + 1


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_last_to_leave_leaves_nobody_held(order: str) -> None:
    gate = make(0, "a", "b")
    commit(gate, "a")
    for name in order:
        gate.leave(name, now=1.0)
    assert gate.deserted
    gate.arrive("a", now=2.0)
    commit(gate, "a")
    assert not gate.holds("a")


# ---- whatever happens ---------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]
events = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(NAMES)),
        st.tuples(st.just("leave"), st.sampled_from(NAMES)),
        st.tuples(st.just("arrive"), st.sampled_from(NAMES)),
        st.tuples(st.just("generation"), st.sampled_from([None, 0, 1, 3])),
        st.tuples(st.just("cohort"), st.sets(st.sampled_from(NAMES))),
        st.tuples(st.just("time"), st.floats(0, 20)),
    ),
    max_size=80,
)


class World:
    """Workers that behave: each works, commits when it may, and waits while it is held."""

    def __init__(self, slack: int | None, deadline_s: float | None) -> None:
        self.gate = Gate(0.0)
        self.now = 0.0
        self.generation, self.slack, self.deadline_s = 1, slack, deadline_s
        self.cohort: set[str] = set()
        self.present: set[str] = set()
        self.made = dict.fromkeys(NAMES, 1)  # the generation under which each works
        self.held: set[str] = set()
        self.configure()

    def configure(self) -> None:
        self.gate.configure(self.generation, self.slack, self.deadline_s, self.cohort, self.now)

    def release(self) -> None:
        for name in [name for name in self.held if not self.gate.holds(name)]:
            self.held.discard(name)
            self.made[name] = self.generation

    def commit(self, name: str) -> None:
        if name not in self.present:
            self.arrive(name)
        self.gate.commit(name, self.made[name], self.now)
        self.held.add(name)

    def arrive(self, name: str) -> None:
        if name not in self.present:
            self.present.add(name)
            self.gate.arrive(name, self.now)

    def members(self) -> set[str]:
        return self.present & self.cohort if self.cohort else set(self.present)

    def lead(self) -> dict[str, int]:
        """How far each member is ahead of the slowest."""
        clocks = {name: self.gate._clocks[name] for name in self.members()}
        return {name: clock - min(clocks.values()) for name, clock in clocks.items()}

    def play(self, kind: str, value: object) -> None:
        if kind == "commit" and value not in self.held:
            self.commit(str(value))
        elif kind == "leave":
            self.present.discard(str(value))
            self.held.discard(str(value))
            self.gate.leave(str(value), self.now)
        elif kind == "arrive":
            self.arrive(str(value))
        elif kind == "generation":
            self.generation += 1
            self.slack = value  # type: ignore[assignment]
            self.configure()
        elif kind == "cohort":
            self.cohort = set(value)  # type: ignore[call-overload]
            self.configure()
        elif kind == "time":
            self.now += float(value)  # type: ignore[arg-type]
            self.gate.tick(self.now)
        self.release()


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([None, 0, 1, 3]), st.sampled_from([None, 5.0]), events)
def test_a_member_goes_on_exactly_when_it_is_within_the_slack(
    slack: int | None, deadline_s: float | None, played: list[tuple[str, object]]
) -> None:
    """Neither beyond it, nor held without need. (One that left the cohort is free, whatever its lead.)"""
    world = World(slack, deadline_s)
    for kind, value in played:
        before = set(world.held)
        world.play(kind, value)
        lead = world.lead()
        if world.slack is None:
            assert not world.held
            continue
        for name in world.held:
            assert lead[name] > world.slack
        released = before - world.held
        if kind == "commit":
            released.add(str(value))
        for name in (released - world.held) & lead.keys():
            assert lead[name] <= world.slack


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([None, 0, 1, 3]), st.sampled_from([None, 5.0]), events)
def test_the_gate_never_deadlocks(
    slack: int | None, deadline_s: float | None, played: list[tuple[str, object]]
) -> None:
    """After any history: if those who may go on do, everybody who is there goes on again and again."""
    world = World(slack, deadline_s)
    for kind, value in played:
        world.play(kind, value)
    rounds = dict.fromkeys(world.present, 0)
    for _ in range(40):
        free = [name for name in sorted(world.present) if name not in world.held]
        assert free or not world.present, "everybody waits for somebody"
        for name in free:
            world.commit(name)
            world.release()
            rounds[name] += 1
    assert all(count >= 5 for count in rounds.values()), rounds
