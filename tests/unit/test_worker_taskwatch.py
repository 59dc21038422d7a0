"""Task files that change while the worker runs."""

import logging

import pytest

from offbeat_worker.tasks import available
from offbeat_worker.taskwatch import TaskWatch


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("a = 1\n")
    return path


def test_only_a_changed_file_is_told(file):
    known = available([file])
    watch = TaskWatch([file], known)
    assert watch.poll() is None
    file.write_text("a = 22\n")
    told = watch.poll()
    assert told == available([file])
    assert told["mine"] != known["mine"]
    assert told["digits"] == known["digits"]
    assert watch.poll() is None


def test_a_file_that_was_only_touched_is_not_told(file):
    watch = TaskWatch([file], available([file]))
    file.write_text("b = 22\n")
    file.unlink()
    file.write_text("a = 1\n")
    assert watch.poll() is None


@pytest.mark.parametrize("half", ["def build_model(:\n", None])
def test_a_file_that_is_half_written_or_away_is_said_once_and_told_when_it_is_whole(file, half, caplog):
    watch = TaskWatch([file], available([file]))
    if half is None:
        file.unlink()
    else:
        file.write_text(half)
    with caplog.at_level(logging.WARNING):
        assert [watch.poll(), watch.poll()] == [None, None]
    assert len(caplog.records) == 1
    assert "mine.py" in caplog.text
    file.write_text("a = 333\n")
    assert watch.poll() == available([file])
