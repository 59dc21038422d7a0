"""What ends a service, as a process: all three have one frame, so the quickest stands for them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 60.0


def _heed_hangups() -> None:
    """As under a terminal, also where the tests themselves run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _ignore_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _started(folder: Path, before: Callable[[], None] = _heed_hangups) -> subprocess.Popen[str]:
    ready = folder / "ready"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "offbeat_scheduler.main", "--listen=127.0.0.1:0", "--metrics-listen="),
            *(f"--folder={folder / 'runs'}", f"--ready-file={ready}"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP, signal.SIGHUP]])
def test_it_ends_in_order(tmp_path: Path, numbers: list[int]) -> None:
    process = _started(tmp_path)
    for number in numbers:
        process.send_signal(number)
    _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "stopping" in log
    assert "Traceback" not in log


def test_hangups_until_it_has_ended_do_not_end_it_sooner(tmp_path: Path) -> None:
    process = _started(tmp_path)
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        process.send_signal(signal.SIGHUP)
        time.sleep(0.001)
    assert process.returncode == 0
    process.communicate()


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path) -> None:
    process = _started(tmp_path, _ignore_hangups)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
