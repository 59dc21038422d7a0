"""Several gates, and rounds: nobody exceeds its gate, and nobody waits for ever, whatever changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat_ps.entrance import OFFENCES
from offbeat_ps.fold import FoldRule, Weight, When
from offbeat_ps.inspection import Finding
from offbeat_ps.instructions import Outcome
from offbeat_ps.rules import GroupRule, Rules
from support.ps_world import World

AT_GATE = FoldRule(When.AT_GATE)
BAD = Finding("tensor 'weight' has NaN in it", float("inf"))


def group(members: str, slack: int | None = 0, deadline_s: float | None = None) -> GroupRule:
    return GroupRule(frozenset(members), slack, deadline_s)


def grouped(*groups: GroupRule, **fields: Any) -> Rules:
    return Rules(**{"generation": 1, "groups": groups, "fold": AT_GATE, **fields})


def configure(world: World, **fields: Any) -> None:
    """New rules, one generation later unless told otherwise."""
    rules = world.run.rules
    fields = {"generation": rules.generation + 1, **fields}
    world.carry_out(world.run.configure(replace(rules, **fields), world.now))


# ---- groups --------------------------------------------------------------------------


def test_a_group_waits_for_its_own_slowest_only() -> None:
    world = World(grouped(group("ab"), group("cd")))
    world.pull(*"abcd")
    c = world.commit("c", 1)
    a, b = world.commit("a", 1), world.commit("b", 1)
    assert {a, b} <= world.replies.keys()
    assert c not in world.replies
    assert world.run.closed == 1
    world.commit("d", 1)
    assert c in world.replies
    assert world.run.closed == 2
    configure(world)
    assert world.run.closed == 0  # in this generation


def test_a_groups_mean_enters_by_its_share_of_the_fleet() -> None:
    world = World(grouped(group("a"), group("bcd")))
    world.pull(*"abcd")
    first = world.commit("a", 1, 8.0)
    assert (world.model, world.ack(first).weight) == (-2.0, 0.25)
    for name in "bcd":
        token = world.commit(name, 1, 4.0)
    assert world.model == -5.0
    assert world.ack(token).weight == pytest.approx(0.25)


def test_a_groups_share_is_that_of_what_its_updates_are_weighed_by() -> None:
    world = World(grouped(group("a"), group("bc"), fold=FoldRule(When.AT_GATE, Weight.DATA)))
    world.pull(*"abc")
    for sequence in (1, 2):
        a = world.commit("a", sequence, shard_samples=100)
        b = world.commit("b", sequence, shard_samples=400)
        c = world.commit("c", sequence, shard_samples=500)
    assert [world.ack(t).weight for t in (a, b, c)] == pytest.approx([0.1, 0.4, 0.5])


def test_a_group_whose_deadline_passed_counts_whole_although_somebody_is_missing() -> None:
    world = World(grouped(group("ab", deadline_s=5.0), group("cd")))
    world.pull(*"abcd")
    world.commit("a", 1, 4.0)
    world.tick(5.0)
    assert world.model == -2.0
    late = world.commit("b", 1, 4.0)
    assert world.ack(late).outcome is Outcome.LATE
    assert world.model == -2.0
    world.commit("a", 2, 4.0)
    world.commit("b", 2, 4.0)
    assert world.model == -4.0  # the late one is in the same fold, and the group weighs no more for it


def test_a_group_that_stands_in_the_new_rules_goes_on_through_a_regrouping() -> None:
    world = World(grouped(group("ab"), group("cd")))
    world.pull(*"abcd")
    held = world.commit("a", 1, 4.0)
    configure(world, groups=(group("ab"), group("c"), group("d")))
    assert held not in world.replies
    assert world.run.closed == 0
    world.commit("b", 1, 4.0, generation=1)  # of the generation in which its clocks began
    assert world.model == -2.0
    assert world.ack(held).outcome is Outcome.APPLIED
    assert world.run.closed == 1


def test_a_group_that_ends_folds_what_waits_and_frees_its_members() -> None:
    world = World(grouped(group("ab"), group("cd")))
    world.pull(*"abcd")
    held = world.commit("c", 1, 4.0)
    configure(world, groups=(group("ab"), group("acd"[1:]), group("e")))
    assert held not in world.replies  # the same members: the group goes on
    configure(world, groups=(group("abc"), group("d")))
    assert world.replies[held][1] == -2.0
    late = world.commit("d", 1, generation=1)
    assert world.ack(late).outcome is Outcome.LATE  # made for a group that is no more
    assert world.ack(world.commit("d", 2)).outcome is Outcome.APPLIED


def test_another_way_of_folding_folds_what_waits_by_the_old_one() -> None:
    world = World(grouped(group("ab", deadline_s=5.0), group("cd", deadline_s=50.0)))
    world.pull(*"abcd")
    world.commit("a", 1)
    held = world.commit("c", 1, 4.0)
    world.tick(5.0)
    late = world.commit("b", 1, 8.0)  # waits for the next cycle
    model = world.model
    configure(world, fold=FoldRule(When.AT_GATE, Weight.SAMPLES))
    assert world.model == model - 4.0 - 2.0
    assert held not in world.replies  # its group goes on
    assert late in world.replies
    configure(world, groups=(), slack=None, fold=FoldRule(When.EVERY_K, every_k=9))
    world.commit("a", 2, 9.0)
    model = world.model
    configure(world, fold=FoldRule())
    assert world.model == pytest.approx(model - 1.0)


def test_what_a_quarantined_member_had_committed_before_still_counts() -> None:
    world = World(grouped(group("a", slack=None, deadline_s=5.0), group("bcd")))
    world.pull(*"abcd")
    world.commit("a", 1, 8.0)
    for sequence in range(2, 2 + OFFENCES):
        world.commit("a", sequence, finding=BAD)
    world.tick(5.0)
    assert world.model == -2.0


def test_another_server_rate_lets_no_share_be_taken_twice() -> None:
    world = World(Rules(generation=1, fold=FoldRule(weight=Weight.PER_STEP)))
    world.pull("a", "b")
    for sequence in range(1, 20):
        world.commit("a", sequence, steps=1)
        world.commit("b", sequence, steps=9)
    a = world.ack(world.commit("a", 20, steps=1)).weight
    configure(world, fold=FoldRule(weight=Weight.PER_STEP, server_rate=0.999))
    b = world.ack(world.commit("b", 20, steps=1)).weight
    assert a + b <= 1.0


def test_from_one_gate_to_several_and_back_nobody_is_left_waiting() -> None:
    world = World(Rules(generation=1, slack=0, fold=AT_GATE))
    world.pull(*"abc")
    held = world.commit("a", 1, 3.0)
    configure(world, slack=None, groups=(group("ab"), group("c")))
    assert world.replies[held][1] == -3.0
    held = world.commit("a", 2, 3.0)
    configure(world, slack=0, groups=())
    assert world.replies[held][1] == pytest.approx(-5.0)
    tokens = [world.commit(name, 3) for name in "abc"]
    assert set(tokens) <= world.replies.keys()


def test_who_is_in_no_group_waits_for_nobody_and_enters_at_once_by_its_own_share() -> None:
    world = World(grouped(group("ab")))
    world.pull(*"abc", "new")
    token = world.commit("new", 1, 8.0)
    assert (world.ack(token).outcome, world.model) == (Outcome.APPLIED, -2.0)
    held = world.commit("a", 1)
    world.commit("new", 2)
    assert held not in world.replies


def test_a_buffer_of_k_is_the_fleets_whatever_the_groups() -> None:
    world = World(grouped(group("a"), group("b"), fold=FoldRule(When.EVERY_K, every_k=2)))
    world.pull("a", "b")
    world.commit("a", 1, 2.0)
    configure(world, groups=(group("ab"),))
    assert world.model == 0.0
    world.commit("b", 1, 4.0)
    assert world.model == -3.0


# ---- rounds --------------------------------------------------------------------------


def in_round(**fields: Any) -> Rules:
    return Rules(**{"generation": 1, "slack": 0, "once": True, "fold": AT_GATE, **fields})


@pytest.mark.parametrize("slack", [None, 0, 2])
@pytest.mark.parametrize("when", [When.AT_ONCE, When.AT_GATE])
def test_a_round_is_over_when_each_of_the_cohort_has_committed_once(slack: int | None, when: When) -> None:
    world = World(in_round(slack=slack, cohort=("a", "b"), fold=FoldRule(when)))
    world.pull("a", "b", "rests")
    world.commit("a", 1)
    world.commit("a", 2)  # more than it was asked for: closes nothing
    assert world.run.closed == 0
    world.commit("b", 1)
    assert world.run.closed == 1
    assert world.replies.keys() == {1, 2, 3} - world.refusals.keys()
    world.commit("a", 3)
    world.commit("b", 2)
    assert world.run.closed == 1


def test_a_commit_of_an_older_round_is_late_and_never_ends_a_newer_one() -> None:
    world = World(in_round())
    world.pull("a", "b")
    configure(world)
    for sequence in (1, 2):
        late = world.commit("b", sequence, 6.0, generation=1)
        assert world.ack(late).outcome is Outcome.LATE
    held = world.commit("a", 1, 6.0)
    assert (world.run.closed, world.model) == (0, 0.0)
    world.commit("b", 3, 6.0)
    assert (world.run.closed, world.model) == (1, -6.0)
    assert world.ack(held).weight == 0.25  # the late ones are in this fold


def test_a_late_update_waits_for_the_next_rounds_mean_and_is_none_by_itself() -> None:
    world = World(in_round(deadline_s=5.0))
    world.pull("a", "b")
    world.commit("a", 1, 4.0)
    world.tick(5.0)
    assert (world.run.closed, world.model) == (1, -4.0)
    world.commit("b", 1, 10.0)
    configure(world)
    assert world.model == -4.0
    world.commit("a", 2, 1.0)
    world.commit("b", 2, 1.0)
    assert world.model == -4.0 - 4.0


def test_a_commit_of_a_round_that_the_server_has_not_heard_of_is_not_asked_for_again() -> None:
    world = World(in_round(cohort=("a", "b")))
    world.pull("a", "b")
    world.commit("a", 1)
    world.commit("b", 1)
    early = world.commit("a", 2, 5.0, generation=2)
    model = world.model
    configure(world)
    assert world.run.closed == 0
    world.commit("b", 2, 7.0)
    assert world.run.closed == 1
    assert world.model == model - 6.0  # it is in the mean of the round that it was made for
    assert early in world.replies


def test_a_round_that_all_were_early_for_is_over_when_the_server_hears_of_it() -> None:
    world = World(Rules(generation=1))
    world.pull("a", "b")
    world.commit("a", 1, generation=2)
    world.commit("b", 1, generation=2)
    configure(world, slack=0, once=True)
    assert world.run.closed == 1


def test_an_early_commit_from_under_a_barrier_is_held_until_its_own_round_is_over() -> None:
    world = World(Rules(generation=1, slack=0, fold=AT_GATE))
    world.pull("a", "b")
    early = world.commit("a", 1, 2.0, generation=2)
    configure(world, once=True)
    assert early not in world.replies
    world.commit("b", 1, 4.0)
    assert world.replies[early][1] == -3.0


def test_a_refused_update_was_its_workers_commit_of_the_round_all_the_same() -> None:
    world = World(in_round())
    world.pull("a", "b")
    held = world.commit("a", 1, 2.0)
    refused = world.commit("b", 1, finding=BAD)
    assert world.run.closed == 1
    assert world.ack(refused).outcome is Outcome.REFUSED
    assert world.replies[held][1] == -2.0


def test_a_round_whose_updates_were_all_refused_is_over_and_changes_nothing() -> None:
    world = World(in_round())
    world.pull("a", "b")
    for name in "ab":
        world.commit(name, 1, finding=BAD)
    assert (world.run.closed, world.model) == (1, 0.0)


def test_a_round_whose_trainers_left_is_over_if_somebody_had_committed() -> None:
    world = World(in_round(cohort=("a", "b")))
    world.pull("a", "b")
    assert world.run.closed == 0
    world.tick(1.0)
    world.commit("a", 1, 2.0)
    world.tick(20.0)
    assert (world.run.closed, world.model) == (1, -2.0)
    configure(world)
    assert world.run.closed == 0  # nobody is there yet: nothing was done in it
    world.pull("a")
    world.commit("a", 2, 2.0)
    assert world.run.closed == 1


def test_who_joins_after_a_round_is_waited_for_in_the_next_one_only() -> None:
    world = World(in_round())
    world.pull("a")
    world.commit("a", 1)
    world.pull("new")
    assert world.run.closed == 1
    configure(world)
    held = world.commit("a", 2)
    assert held not in world.replies
    world.commit("new", 1)
    assert held in world.replies


def test_who_enters_the_cohort_within_a_round_is_waited_for_unless_it_has_committed() -> None:
    world = World(in_round(cohort=("a", "b")))
    world.pull(*"abcd")
    held = world.commit("a", 1)
    world.commit("c", 1)
    configure(world, generation=1, cohort=("a", "c", "d"))  # b left, c and d came
    assert held not in world.replies
    world.commit("d", 1)
    assert world.run.closed == 1
    assert held in world.replies


def test_a_cohort_that_shrinks_to_those_that_have_committed_ends_its_round() -> None:
    world = World(in_round(cohort=("a", "b")))
    world.pull("a", "b")
    world.commit("a", 1)
    configure(world, generation=1, cohort=("a",))
    assert world.run.closed == 1


def test_a_round_of_groups_is_over_when_each_gate_closed() -> None:
    world = World(grouped(group("ab"), group("c"), once=True))
    world.pull(*"abc")
    world.commit("c", 1)
    assert world.run.closed == 0
    world.commit("a", 1)
    world.commit("b", 1)
    assert world.run.closed == 1


def test_a_group_of_which_nobody_is_there_keeps_no_round_open() -> None:
    world = World(grouped(group("ab"), group("gone"), once=True))
    world.pull("a", "b")
    assert world.run.closed == 0
    world.commit("a", 1)
    world.commit("b", 1)
    assert world.run.closed == 1


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), (True, True)])
def test_into_out_of_and_between_rounds_a_group_begins_anew(before: bool, after: bool) -> None:
    world = World(grouped(group("ab"), once=before))
    world.pull("a", "b")
    free = world.commit("a", 1, 2.0)
    configure(world, once=after)
    assert world.replies[free][1] == -2.0
    late = world.commit("b", 1, generation=1)
    assert world.ack(late).outcome is Outcome.LATE
    held = world.commit("a", 2)
    assert held not in world.replies
    world.commit("b", 2)
    assert (held in world.replies, world.run.closed) == (True, 1)


def test_the_same_rules_told_again_begin_no_new_round() -> None:
    world = World(in_round())
    world.pull("a", "b")
    held = world.commit("a", 1)
    configure(world, generation=1)
    assert held not in world.replies
    world.commit("b", 1)
    assert world.run.closed == 1
    configure(world, generation=1, lease_s=20.0)
    assert world.run.closed == 1


# ---- whatever happens ------------------------------------------------------------------

NAMES = "abcde"
slacks = st.sampled_from([0, 0, 1, 3])
folds = st.builds(
    FoldRule,
    st.sampled_from(list(When)),
    st.sampled_from(list(Weight)),
    st.integers(1, 6),
    st.floats(0.1, 3),
    st.sampled_from([0.0, 0.5, 2.0]),
)


@st.composite
def rulesets(draw: Callable[[Any], Any]) -> Rules:
    """Any fold, over no gate, one gate or several; members of any kind. The generation is set later."""
    fold, once = draw(folds), draw(st.booleans())
    deadlines = st.sampled_from([None, None, 7.0])
    gated = fold.when is When.AT_GATE and not once
    slack = slacks if gated else st.one_of(st.none(), slacks)
    if draw(st.booleans()):
        cohort = tuple(sorted(draw(st.sets(st.sampled_from(NAMES)))))
        return Rules(slack=draw(slack), deadline_s=draw(deadlines), cohort=cohort, once=once, fold=fold)
    places = draw(st.lists(st.integers(0, 3), min_size=len(NAMES), max_size=len(NAMES)))
    groups = tuple(
        GroupRule(
            frozenset(n for n, place in zip(NAMES, places, strict=True) if place == g),
            draw(slack),
            draw(deadlines),
        )
        for g in sorted(set(places) - {3})
    )
    return (
        Rules(groups=groups, once=once, fold=fold) if groups else Rules(fold=replace(fold, when=When.AT_ONCE))
    )


@dataclass
class Worker:
    """A worker that behaves: it trains under what it was told, commits, and waits for the answer."""

    told: Rules = field(default_factory=Rules)
    present: bool = False
    incarnation: int = 0
    sequence: int = 0
    call: int | None = None
    unanswered: bool = False  # its last number must be sent again
    made: Rules = field(default_factory=Rules)  # under what its last number was made
    answers: int = 0

    @property
    def rests(self) -> bool:
        """Did it make its one commit of the round that it was told of?"""
        return self.told.once and self.sequence > 0 and self.made.generation == self.told.generation


class Fleet:
    """Workers, a scheduler that plans, and links on which its word is slow, to some slower than to others."""

    def __init__(self, first: Rules) -> None:
        self.plan = replace(first, generation=1)
        self.world = World(self.plan)
        self.workers = {name: Worker(self.plan) for name in NAMES}
        for name in NAMES:
            self.back(name)

    def plan_anew(self, rules: Rules) -> None:
        self.plan = replace(rules, generation=self.plan.generation + 1)

    def serve(self) -> None:
        """The server hears of the newest plan."""
        if self.plan != self.world.run.rules:
            self.world.carry_out(self.world.run.configure(self.plan, self.world.now))
        self.hear()

    def tell(self, name: str) -> None:
        self.workers[name].told = self.plan

    def hear(self) -> None:
        """Answers arrive, each with the plan that the server knows."""
        for worker in self.workers.values():
            if worker.call in self.world.replies:
                worker.call, worker.unanswered = None, False
                worker.answers += 1
                if self.world.run.rules.generation > worker.told.generation:
                    worker.told = self.world.run.rules
            elif worker.call in self.world.refusals:
                worker.call, worker.present = None, False

    def work(self, name: str, *, bad: bool = False, samples: int = 1, stale: int = 0) -> None:
        worker = self.workers[name]
        if not worker.present or worker.call is not None:
            return
        if not worker.unanswered:
            if worker.rests:
                return
            worker.sequence += 1
            worker.made = worker.told
        worker.unanswered = True
        worker.call = self.world.commit(
            name,
            worker.sequence,
            incarnation=str(worker.incarnation),
            generation=worker.made.generation,
            samples=samples,
            shard_samples=samples,
            steps=samples,
            base_version=max(0, self.world.run.version - stale),
            finding=BAD if bad else Finding(),
        )
        self.hear()

    def cut(self, name: str) -> None:
        """The link breaks while an answer is awaited; the worker will ask again."""
        worker = self.workers[name]
        if worker.call is not None:
            self.world.run.abandon(worker.call)
            worker.call = None

    def away(self, name: str) -> None:
        """The process ends without a word."""
        self.cut(name)
        self.workers[name].present = False

    def back(self, name: str) -> None:
        """A new process, which is told the plan."""
        worker = self.workers[name]
        if not worker.present:
            self.workers[name] = Worker(self.plan, True, worker.incarnation + 1)
            self.world.pull(name, incarnation=str(worker.incarnation + 1))
        self.hear()

    def wait(self, seconds: float) -> None:
        """Who is there keeps its lease meanwhile."""
        for name, worker in self.workers.items():
            if worker.present:
                known, out = self.world.run.renew(name, str(worker.incarnation), self.world.now)
                self.world.carry_out(out)
                if not known:
                    worker.present = False
        self.world.tick(self.world.now + seconds)
        self.hear()

    def play(self, kind: str, value: Any) -> None:
        match kind:
            case "plan":
                self.plan_anew(value)
            case "same plan":
                self.plan_anew(self.plan)
            case "cohort" if self.plan.once and not self.plan.groups:
                self.plan = replace(self.plan, cohort=tuple(sorted(value)))  # in the same round
            case "cohort":
                pass
            case "serve":
                self.serve()
            case "bad":
                self.work(value, bad=True)
            case "wait":
                self.wait(value)
            case _:
                getattr(self, kind)(value)

    def come_to_rest(self) -> None:
        """Every word arrives; the leases of those that are away end."""
        self.serve()
        for name in NAMES:
            self.tell(name)
        for _ in range(3):
            self.wait(6.0)

    def members(self) -> set[str]:
        """Of the gates, those that are there."""
        present = {name for name, worker in self.workers.items() if worker.present}
        if self.plan.groups:
            return {name for name in present if any(name in g.members for g in self.plan.groups)}
        return present & set(self.plan.cohort) if self.plan.cohort else present


events = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.sampled_from(NAMES)),
        st.tuples(st.just("work"), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(["tell", "cut", "away", "back", "bad"]), st.sampled_from(NAMES)),
        st.tuples(st.just("plan"), rulesets()),
        st.tuples(st.sampled_from(["serve", "same plan"]), st.none()),
        st.tuples(st.just("cohort"), st.sets(st.sampled_from(NAMES))),
        st.tuples(st.just("wait"), st.floats(0.1, 9)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(rulesets(), events)
def test_no_gate_deadlocks_whatever_comes_goes_and_changes(
    first: Rules, played: list[tuple[str, Any]]
) -> None:
    """After any history: every round ends, and without rounds everybody goes on again and again."""
    fleet = Fleet(first)
    for kind, value in played:
        fleet.play(kind, value)
        for name, worker in fleet.workers.items():
            if worker.call is not None:
                assert fleet.world.run.groups.holds(name), "an answer is kept that need not wait"
    fleet.come_to_rest()
    if fleet.plan.once:
        for _ in range(4):
            for name in NAMES * 3:  # one may first have to send its last number again
                fleet.work(name)
            assert all(worker.call is None for worker in fleet.workers.values())
            assert all(worker.rests for worker in fleet.workers.values() if worker.present)
            if fleet.members():
                assert fleet.world.run.closed == 1
            fleet.plan_anew(fleet.plan)
            fleet.come_to_rest()
        return
    before = {name: worker.answers for name, worker in fleet.workers.items() if worker.present}
    for _ in range(40):
        for name in NAMES:
            fleet.work(name)
    assert all(fleet.workers[name].answers - n >= 5 for name, n in before.items())


@settings(max_examples=200, deadline=None)
@given(
    rulesets().filter(lambda rules: not rules.once),
    st.lists(st.sampled_from(NAMES), max_size=80),
)
def test_no_worker_exceeds_its_gate(rules: Rules, turns: list[str]) -> None:
    """While nobody comes or goes: counted by what was sent, not by the gate's own clocks."""
    fleet = Fleet(rules)
    for name in turns:
        fleet.work(name)
        for _, gate in fleet.plan.gates():
            members = gate.members or frozenset(NAMES)
            slowest = min(fleet.workers[member].sequence for member in members)
            for member in members:
                worker = fleet.workers[member]
                lead = worker.sequence - slowest
                if gate.slack is None:
                    assert worker.call is None
                else:
                    assert lead <= gate.slack + 1
                    assert (worker.call is not None) == (lead > gate.slack)


@settings(max_examples=300, deadline=None)
@given(
    rulesets(),
    st.lists(
        st.tuples(
            st.sampled_from(["work", "work", "work", "cut", "wait"]),
            st.sampled_from(NAMES),
            st.integers(0, 500),
            st.integers(0, 9),
        ),
        max_size=80,
    ),
)
def test_the_weights_of_a_fleet_that_stays_sum_to_at_most_one(
    rules: Rules, played: list[tuple[str, str, int, int]]
) -> None:
    """Over the last update of each worker that enters alone, and the last fold of each group."""
    fleet = Fleet(rules)
    world = fleet.world
    last: dict[str, float] = {}
    for kind, name, samples, stale in played:
        if kind == "wait":
            fleet.wait(1.0)
        elif kind == "cut":
            fleet.cut(name)
        else:
            if fleet.plan.once and world.run.closed:
                fleet.plan_anew(fleet.plan)
                fleet.serve()
            fleet.work(name, samples=samples, stale=stale)
        for source, weight in world.entered:
            assert 0.0 <= weight <= 1.0 + 1e-9
            if weight > 0:
                last[source] = weight
            assert sum(last.values()) <= 1.0 + 1e-9, (kind, name, last)
        world.entered.clear()
