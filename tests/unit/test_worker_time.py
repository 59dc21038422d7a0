"""Stopwatch, pace, and the speed of a device."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat_worker.pacing import Pace, PaceFile
from offbeat_worker.speed import StepTime
from offbeat_worker.stopwatch import Share, Stopwatch


@given(st.lists(st.tuples(st.sampled_from(list(Share)), st.integers(0, 10**12)), max_size=50))
def test_shares_sum_exactly_to_the_time_since_the_first_switch(moves: list[tuple[Share, int]]) -> None:
    now = 17
    watch = Stopwatch(lambda: now)
    now += 1000  # before the first directive: nobody's time
    expected = dict.fromkeys(Share, 0)
    for share, duration in moves:
        assert watch.switch(share) == now
        now += duration
        expected[share] += duration
    assert watch.nanoseconds() == expected
    watch.stop()
    now += 5000
    assert watch.nanoseconds() == expected
    assert sum(watch.nanoseconds().values()) == sum(duration for _, duration in moves)


def test_stopwatch_speaks_seconds() -> None:
    now = 0
    watch = Stopwatch(lambda: now)
    watch.switch(Share.PACED)
    now = 2_500_000_000
    assert watch.to_proto().paced_s == pytest.approx(2.5)
    assert watch.running
    watch.stop()
    assert not watch.running


def test_pace_is_a_least_time_and_not_an_added_one() -> None:
    pace = Pace(0.5)
    assert pace.rest(0.2) == pytest.approx(0.3)
    assert pace.rest(0.7) == 0.0
    pace.step_seconds = 0.0
    assert pace.rest(0.0) == 0.0


def test_pace_file_is_followed_and_nonsense_in_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pace"
    pace = Pace(1.0)
    file = PaceFile(path, pace)
    assert not file.poll()
    stamps = iter(range(1, 10))

    def write(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(0, next(stamps)))

    write("0.25\n")
    assert file.poll()
    assert pace.step_seconds == 0.25
    assert not file.poll()
    with caplog.at_level(logging.WARNING):
        for text in ("slow", "-1", "nan", "inf"):
            caplog.clear()
            write(text)
            assert not file.poll()
            assert not file.poll()
            assert len(caplog.records) == 1
            assert str(path) in caplog.text
    assert pace.step_seconds == 0.25
    write("0")
    assert file.poll()
    assert pace.step_seconds == 0.0


def test_speed_forgets_the_first_update_and_follows_a_change() -> None:
    speed = StepTime()
    assert speed.value == 0.0
    speed.add(5.0)
    assert speed.value == 5.0
    speed.add(0.001)
    assert speed.value == pytest.approx(0.001)
    for _ in range(50):
        speed.add(1.0)
    assert speed.value == pytest.approx(1.0, rel=0.01)


def test_speed_of_short_updates_is_steadier_than_the_updates() -> None:
    speed = StepTime()
    seen = []
    for i in range(20_000):
        speed.add(0.0001 if i % 10 else 0.0011)
        seen.append(speed.value)
    assert max(seen[10_000:]) - min(seen[10_000:]) < 0.0001
    assert seen[-1] == pytest.approx(0.0002, rel=0.1)


def test_pace_goes_with_the_size_of_the_update() -> None:
    pace = Pace(0.5)
    assert pace.rest(0.1, 0.5) == pytest.approx(0.15)
    assert pace.rest(0.1, 2.0) == pytest.approx(0.9)


def test_step_time_of_another_batch_is_guessed_until_it_was_measured() -> None:
    speed = StepTime()
    speed.resize(2.0)
    assert speed.value == 0, "nothing is known yet"
    for _ in range(10):
        speed.add(1.0)
    speed.resize(0.25)
    assert speed.value == pytest.approx(0.25)
    speed.add(0.4)
    assert speed.value == pytest.approx(0.4), "measured: nothing of the guess is left"


def test_the_fixed_part_of_the_pace_does_not_grow_with_the_update() -> None:
    pace = Pace(0.5, 0.4)
    assert pace.rest(0.0) == pytest.approx(0.5)
    assert pace.rest(0.1, 4.0) == pytest.approx(0.4 + 4 * 0.1 - 0.1)
    assert pace.rest(0.0, 0.5) == pytest.approx(0.45)
    assert pace.rest(0.0, 4.0, halved=True) == pytest.approx(2 * 0.4 + 4 * 0.1)
    pace.step_seconds = 0.2  # as a file may say: all of it is fixed
    assert pace.rest(0.0, 4.0) == pytest.approx(0.2)
