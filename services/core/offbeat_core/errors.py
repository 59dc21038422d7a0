"""Errors that a person can act on, and the exit codes that carry them.

`OffbeatError` names the field, the value and the remedy in one or two lines.
`guard` wraps a command's main function: it prints such an error without a
traceback (with one under `--debug`) and turns it into the right exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command of Offbeat ends with."""

    DONE = 0
    FAILED = 1  # a bad value, or it went wrong
    USAGE = 2  # unknown option, missing argument
    LIMIT = 3  # a limit came before the target
    INFEASIBLE = 4
    INTERRUPTED = 130


class OffbeatError(Exception):
    """Something the user gave or the world refused, said so that it can be mended.

    Args:
        problem: what is wrong, naming field and value: "training.batch: -3 is not positive".
        remedy: what to do about it: "give a whole number of 1 or more".
        code: the exit code of a command that ends with it.
    """

    def __init__(self, problem: str, remedy: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(f"{problem}\n{remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        self.code = code


def guard(command: Callable[[], int | None], *, debug: bool = False) -> int:
    """Run `command` and return its exit code; errors become a line or two on stderr."""
    debug = debug or "--debug" in sys.argv or os.environ.get("OFFBEAT_DEBUG", "") not in ("", "0")
    try:
        return int(command() or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except OffbeatError as error:
        if debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except Exception as error:  # noqa: BLE001 - the last line of defence: say it in one line
        if debug:
            traceback.print_exc()
        else:
            print(
                f"error: {type(error).__name__}: {error}\n"
                "This was not expected; --debug shows where it happened.",
                file=sys.stderr,
            )
        return ExitCode.FAILED
