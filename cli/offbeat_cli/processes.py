"""Child processes that are never left behind.

Each child holds the read end of a pipe whose write end only this process has
(`offbeat_core.lifeline`): however this process ends, also by kill -9, its children see
the pipe close and end. An orderly end is SIGTERM to all, and SIGKILL to those that are
still there after a grace. Children have sessions of their own, so Ctrl-C in a terminal
reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat_core import lifeline
from offbeat_core.config import PREFIX
from offbeat_core.errors import OffbeatError

GRACE_S = 10.0
LOG_LINES = 8


@dataclass
class Child:
    """One child process.

    Args:
        name: in messages; also the name of its log file.
        process: the running process.
        log: file that takes its stdout and stderr.
        ready_file: which it writes (JSON) once it is ready; None where it has none.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path | None = None
    may_end: bool = field(default=False)  # its end is no failure

    @property
    def pid(self) -> int:
        return self.process.pid

    def raise_if_ended(self) -> None:
        """Raises OffbeatError with the child's own error, or the end of its log."""
        code = self.process.poll()
        if code is None or self.may_end:
            return
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        said = self.last_words()
        raise OffbeatError(f"{self.name} {how}" + (f": {said}" if said else ""), f"its whole log: {self.log}")

    def last_words(self) -> str:
        """The error that it ended with, as the child put it; else the last lines of its log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        for index in range(len(lines) - 1, -1, -1):
            if lines[index].startswith("error: "):
                return "\n".join([lines[index].removeprefix("error: "), *lines[index + 1 :][:2]])
        return (
            "\n".join(["the last of its log:", *("  " + line for line in lines[-LOG_LINES:])])
            if lines
            else ""
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Children:
    """The child processes of one command; a context manager that ends them all.

    Args:
        logs: folder for their logs, one file each.
        grace_s: how long they may take to end after SIGTERM.
    """

    def __init__(self, logs: Path, grace_s: float = GRACE_S) -> None:
        self._logs = logs
        self._grace_s = grace_s
        self._children: list[Child] = []
        self._lifeline, self._hold = os.pipe()  # (read end for the children, our write end)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        ready_file: Path | None = None,
    ) -> Child:
        """Start `command` with the lifeline in its environment. Raises OffbeatError if it can't start.

        Its options configure it wholly: OFFBEAT_ variables, meant for services of the
        user's own, are not handed on.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
        values = {**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})}
        values[lifeline.VARIABLE] = str(self._lifeline)
        with log.open("ab") as output:
            try:
                process = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=values,
                    pass_fds=(self._lifeline,),
                    start_new_session=True,
                )
            except OSError as error:
                raise OffbeatError(f"{name}: cannot start {command[0]}: {error.strerror}") from error
        child = Child(name, process, log, ready_file)
        self._children.append(child)
        return child

    def start_module(self, name: str, module: str, options: Mapping[str, object], **more: Any) -> Child:
        """Start `python -m module --key value ...` with a ready file beside its log.

        Options are given with _ for -; None is left out, a list is given item by item,
        True and False become --key and --no-key.
        """
        ready = self._logs / f".{name}.ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", module, *option_words({**options, "ready_file": ready})]
        return self.start(name, command, ready_file=ready, **more)

    def wait_ready(self, child: Child, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait for the child's ready file and return its content. Raises OffbeatError if any child ends."""
        assert child.ready_file is not None
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(FileNotFoundError):
                content = json.loads(child.ready_file.read_text(encoding="utf-8"))
                child.ready_file.unlink()
                return dict(content)
            self.check()
            if time.monotonic() > deadline:
                raise OffbeatError(
                    f"{child.name} was not ready within {timeout_s:g} s", f"its log: {child.log}"
                )
            time.sleep(0.02)

    def check(self) -> None:
        """Raises OffbeatError for the first child that has ended."""
        for child in self._children:
            child.raise_if_ended()

    def first_error(self) -> str:
        """The first line that a living child logged as an error; empty if none did."""
        for child in self._children:
            for line in child.log.read_text(encoding="utf-8", errors="replace").splitlines():
                if " ERROR " in line:
                    return f"{child.name} says: {line}"
        return ""

    def stop(self) -> None:
        """End all children: SIGTERM, then SIGKILL after the grace (or at a second Ctrl-C)."""
        try:
            for child in self._children:
                if child.process.poll() is None:
                    child.process.terminate()
            deadline = time.monotonic() + self._grace_s
            for child in self._children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for child in self._children:
                if child.process.poll() is None:
                    child.process.kill()
                    child.process.wait()
                if child.ready_file:
                    child.ready_file.unlink(missing_ok=True)
            for end in (self._lifeline, self._hold):
                with contextlib.suppress(OSError):
                    os.close(end)
            self._lifeline = self._hold = -1


def option_words(options: Mapping[str, object]) -> list[str]:
    """{'step_seconds': 0.3, 'tasks': ['a.py']} -> ['--step-seconds=0.3', '--tasks=a.py']."""
    words: list[str] = []
    for key, value in options.items():
        name = "--" + key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(name if value else "--no-" + name[2:])
        elif isinstance(value, (list, tuple)):
            words += [f"{name}={item}" for item in value]
        else:
            words.append(f"{name}={value}")
    return words
