"""Leases, incarnations, and names that two devices share."""

from hypothesis import given
from hypothesis import strategies as st

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_scheduler.membership import Arrival, Membership

LEASE_S = 10.0


def hello(name="w1", incarnation="one", role=common.ROLE_WORKER):
    return pb.Hello(name=name, incarnation=incarnation, role=role)


def test_a_lease_ends_exactly_after_its_length_without_a_report():
    members = Membership(LEASE_S)
    members.join(hello(), 0.0)
    members.seen("w1", "one", 5.0)
    assert members.expire(14.999999) == []
    (gone,) = members.expire(15.0)
    assert gone.name == "w1"
    assert members.get("w1") is None


def test_time_in_which_the_scheduler_itself_did_not_run_counts_in_no_lease():
    members = Membership(LEASE_S)
    members.join(hello("w1"), 0.0)
    members.join(hello("w2"), 0.0)
    members.seen("w2", "one", 40.0)  # the first thing that was read afterwards
    members.excuse(37.0, 40.0)
    assert members.expire(46.9) == []
    assert [agent.name for agent in members.expire(47.0)] == ["w1"]
    assert [agent.name for agent in members.expire(50.0)] == ["w2"]


def test_a_cut_stream_keeps_its_lease_and_a_goodbye_does_not():
    members = Membership(LEASE_S)
    members.join(hello("w1"), 0.0)
    members.join(hello("w2"), 0.0)
    assert members.leave("w1", "one", goodbye=False) is None
    assert not members.get("w1").attached
    assert members.leave("w2", "one", goodbye=True).name == "w2"
    assert members.get("w2") is None


def test_the_same_process_returns_to_its_own_place():
    members = Membership(LEASE_S)
    members.join(hello(), 0.0)
    members.leave("w1", "one", goodbye=False)
    assert members.join(hello(), 5.0).arrival is Arrival.RETURNED
    assert members.get("w1").attached
    assert members.expire(14.0) == []


def test_the_newer_process_wins_and_the_older_one_may_not_come_back_while_it_attends():
    members = Membership(LEASE_S)
    members.join(hello(incarnation="one"), 0.0)
    taken = members.join(hello(incarnation="two"), 1.0)
    assert (taken.arrival, taken.closes) == (Arrival.REPLACED, "one")
    back = members.join(hello(incarnation="one"), 2.0)
    assert (back.arrival, back.closes) == (Arrival.REFUSED, "one")
    assert "two devices" in back.fight
    assert members.get("w1").incarnation == "two"


def test_an_older_process_may_come_back_when_the_newer_one_has_left():
    members = Membership(LEASE_S)
    members.join(hello(incarnation="one"), 0.0)
    members.join(hello(incarnation="two"), 1.0)
    members.leave("w1", "two", goodbye=True)
    assert members.join(hello(incarnation="one"), 2.0).arrival is Arrival.NEW


def test_a_stream_that_had_ended_needs_no_closing_when_the_process_is_replaced():
    members = Membership(LEASE_S)
    members.join(hello(incarnation="one"), 0.0)
    members.leave("w1", "one", goodbye=False)
    taken = members.join(hello(incarnation="two"), 1.0)
    assert (taken.arrival, taken.closes, taken.fight) == (Arrival.REPLACED, "", "")


def test_reports_of_a_process_that_is_no_member_renew_nothing():
    members = Membership(LEASE_S)
    members.join(hello(incarnation="one"), 0.0)
    members.join(hello(incarnation="two"), 1.0)
    assert members.seen("w1", "one", 9.0) is None
    assert members.seen("w2", "one", 9.0) is None
    assert len(members.expire(11.0)) == 1


def test_members_stand_in_the_order_in_which_they_joined():
    members = Membership(LEASE_S)
    for name in ("c", "a", "b"):
        members.join(hello(name), 0.0)
    members.join(hello("c", "two"), 1.0)
    assert [agent.name for agent in members] == ["a", "b", "c"]


happenings = st.lists(
    st.tuples(
        st.sampled_from(["join", "report", "cut", "goodbye", "expire"]),
        st.sampled_from(["w1", "w2"]),
        st.sampled_from(["one", "two", "three"]),
        st.floats(0.0, 6.0),
    ),
    max_size=60,
)


@given(happenings)
def test_a_member_is_always_somebody_heard_within_the_lease_and_nobody_else(happenings):
    members = Membership(LEASE_S)
    heard = {}  # name -> (incarnation, time): the rule written down once more, without leases' bookkeeping
    now = 0.0
    for what, name, incarnation, pause in happenings:
        now = round(now + pause, 6)
        if what == "join":
            outcome = members.join(hello(name, incarnation), now)
            if outcome.arrival is not Arrival.REFUSED:
                heard[name] = (incarnation, now)
        elif what == "report":
            if members.seen(name, incarnation, now):
                assert heard[name][0] == incarnation
                heard[name] = (incarnation, now)
        elif what in ("cut", "goodbye"):
            gone = members.leave(name, incarnation, goodbye=what == "goodbye")
            if gone:
                assert heard.pop(name)[0] == incarnation
        else:
            silent = {n for n, (_, at) in heard.items() if round(now - at, 6) >= LEASE_S}
            assert {agent.name for agent in members.expire(now)} == silent
            for n in silent:
                del heard[n]
            assert all(members.next_expiry <= at + LEASE_S + 1e-9 for _, at in heard.values())
        assert {agent.name: agent.incarnation for agent in members} == {
            n: incarnation for n, (incarnation, _) in heard.items()
        }
