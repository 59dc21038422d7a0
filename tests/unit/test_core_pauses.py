"""A process that was not running itself must be able to tell."""

from offbeat_core.pauses import Pauses


def test_beats_that_come_in_time_or_a_little_late_show_no_pause():
    pauses = Pauses(1.0)
    assert pauses.due(10.0) == 11.0
    assert [pauses.beat(now) for now in (11.0, 11.5, 12.5, 14.4)] == [0, 0, 0, 0]


def test_a_pause_is_what_lies_between_the_beat_that_was_due_and_the_one_that_came():
    pauses = Pauses(1.0)
    pauses.due(10.0)
    assert pauses.beat(16.0) == 5.0
    assert pauses.beat(17.0) == 0.0


def test_the_time_before_the_first_beat_is_no_pause():
    assert Pauses(1.0).beat(1000.0) == 0.0
