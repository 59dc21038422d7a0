"""The demo's own folder, and what it says before anything is started."""

import importlib.util
import os
import signal

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import demo
from offbeat_core.errors import OffbeatError


def test_a_new_folder_is_made_and_what_served_the_run_is_taken_away(tmp_path):
    with demo._own_folder(tmp_path / "deep" / "out", "digits") as folder:
        (folder / demo.WORK).mkdir()
        (folder / "report.html").write_text("")
    assert [path.name for path in folder.iterdir()] == ["report.html"]


def test_two_demos_never_share_a_folder(tmp_path):
    with demo._own_folder(tmp_path, "digits"), pytest.raises(OffbeatError, match="another demo is running"):  # noqa: SIM117
        with demo._own_folder(tmp_path, "digits"):
            pass


def test_default_folders_are_new_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with demo._own_folder(None, "digits") as one, demo._own_folder(None, "digits") as two:
        assert one != two
        assert one.parent == two.parent == tmp_path / "offbeat-out"


def test_what_a_failed_attempt_left_is_no_hindrance(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").write_text("error: old")
    with demo._own_folder(tmp_path, "digits") as folder:
        assert not (folder / "logs").exists()


def test_results_are_never_written_over(tmp_path):
    (tmp_path / "report.html").write_text("precious")
    with pytest.raises(OffbeatError, match="is not empty"), demo._own_folder(tmp_path, "digits"):
        pass
    assert (tmp_path / "report.html").read_text() == "precious"


def test_missing_libraries_are_named_with_the_command_that_installs_them(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        demo.importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    with pytest.raises(OffbeatError, match="torch not installed") as caught:
        demo._check_installed()
    assert "pip install" in caught.value.remedy


def test_a_worker_that_cannot_take_part_fails_the_demo_before_training_and_not_after():
    failed = pb.WorkerStatus(name="worker-2", error="task: mine.py:3: no such column")
    with pytest.raises(OffbeatError, match=r"worker-2: task: mine\.py:3: no such column"):
        demo._raise_failure(pb.Status(phase=pb.Status.WAITING, workers=[failed]))
    demo._raise_failure(pb.Status(phase=pb.Status.TRAINING, workers=[failed]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noticed_also_where_its_exception_is_lost(number):
    with demo._interrupted_by_signals() as told:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            demo._follow(None, None, None, told)


def test_a_demo_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with demo._interrupted_by_signals() as told:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not told.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
