"""Children are started, watched, and never left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from offbeat_cli.processes import Children, option_words
from offbeat_core.errors import OffbeatError

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
HOLDS_ON = "from offbeat_core import lifeline; lifeline.hold_on(); " + SLEEPER


def _python(children, name, source, **more):
    return children.start(name, [sys.executable, "-c", source], **more)


def _until(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _up(child):
    _until(lambda: "up" in child.log.read_text(), f"{child.name} did not start")


def test_leaving_ends_all_children(tmp_path):
    with Children(tmp_path) as children:
        first, second = _python(children, "a", SLEEPER), _python(children, "b", SLEEPER)
        _up(first)
        _up(second)
    assert first.process.returncode == second.process.returncode == -signal.SIGTERM


def test_a_child_that_ignores_the_request_is_killed_after_the_grace(tmp_path):
    with Children(tmp_path, grace_s=0.2) as children:
        child = _python(children, "stubborn", STUBBORN)
        _up(child)
    assert child.process.returncode == -signal.SIGKILL


def test_children_end_when_their_parent_is_killed(tmp_path):
    parent = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from offbeat_cli.processes import Children
        children = Children(Path({str(tmp_path)!r}))
        for name in ("a", "b"):
            child = children.start(name, [sys.executable, "-c", {HOLDS_ON!r}])
            print(child.pid, flush=True)
        time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    pids = [int(process.stdout.readline()) for _ in range(2)]
    for name in ("a", "b"):
        _until(lambda name=name: "up" in (tmp_path / f"{name}.log").read_text(), "a child did not start")
    process.kill()
    process.wait()
    process.stdout.close()
    _until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "a child outlived its parent")


def test_a_child_that_ended_is_reported_with_its_own_error(tmp_path):
    source = (
        "import sys; sys.stderr.write('noise\\nerror: tasks: my.py is empty\\nwrite a task\\n'); sys.exit(1)"
    )
    with Children(tmp_path) as children:
        child = _python(children, "worker-1", source)
        child.process.wait()
        with pytest.raises(OffbeatError) as caught:
            children.check()
    assert caught.value.problem == "worker-1 ended with exit code 1: tasks: my.py is empty\nwrite a task"
    assert str(child.log) in caught.value.remedy


def test_a_killed_child_is_reported_with_the_last_of_its_log(tmp_path):
    with Children(tmp_path) as children:
        child = _python(children, "worker-2", SLEEPER)
        _up(child)
        child.process.kill()
        child.process.wait()
        with pytest.raises(OffbeatError, match=r"worker-2 was ended by SIGKILL: the last of its log:\n  up"):
            children.check()


def test_an_error_that_a_living_child_logged_is_found(tmp_path):
    source = "print('07:00:00 ERROR   b: disk full', flush=True); " + SLEEPER
    with Children(tmp_path) as children:
        _up(_python(children, "a", SLEEPER))
        assert children.first_error() == ""
        _up(_python(children, "b", source))
        assert children.first_error() == "b says: 07:00:00 ERROR   b: disk full"


def test_a_child_that_may_end_is_no_failure(tmp_path):
    with Children(tmp_path) as children:
        child = _python(children, "a", "pass")
        child.may_end = True
        child.process.wait()
        children.check()


def test_the_ready_file_is_waited_for_and_read(tmp_path):
    ready = tmp_path / "ready"
    source = (
        "import time; from pathlib import Path; from offbeat_core.service import announce; time.sleep(0.2); "
        f"announce(Path({str(ready)!r}), port=7); time.sleep(600)"
    )
    with Children(tmp_path) as children:
        assert children.wait_ready(_python(children, "a", source, ready_file=ready))["port"] == 7


def test_a_child_that_ends_before_it_is_ready_is_an_error(tmp_path):
    with Children(tmp_path) as children:
        child = _python(children, "a", "print('error: listen: taken')", ready_file=tmp_path / "ready")
        with pytest.raises(OffbeatError, match="a ended with exit code 0: listen: taken"):
            children.wait_ready(child)


def test_variables_meant_for_other_services_are_not_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFBEAT_SCHEDULER", "10.0.0.1:1")
    with Children(tmp_path) as children:
        child = _python(children, "a", "import os; print(sorted(k for k in os.environ if 'OFFBEAT' in k))")
        child.process.wait()
    assert child.log.read_text().strip() == "['OFFBEAT_LIFELINE_FD']"


def test_no_descriptor_is_left(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with Children(tmp_path) as children:
        _python(children, "a", SLEEPER)
    assert len(os.listdir("/proc/self/fd")) == before


def test_options_become_words():
    assert option_words(
        {"step_seconds": 0.3, "data": None, "tasks": ["a.py", "b.py"], "grpc_proxy": False}
    ) == [
        "--step-seconds=0.3",
        "--tasks=a.py",
        "--tasks=b.py",
        "--no-grpc-proxy",
    ]
