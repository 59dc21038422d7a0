"""Is the worker alive? A file says so, and reading it imports neither torch nor gRPC.

The I/O thread writes the machine's monotonic time into the health file every
`WRITE_S`; setting the wall clock changes nothing. Put the file on a memory file system
(/dev/shm, /run): a device's card should not be written every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from offbeat_core.errors import OffbeatError

log = logging.getLogger("offbeat-worker")

WRITE_S = 3.0
STALE_S = 20.0


async def keep(path: Path) -> None:
    """Write the file until cancelled; take it away then. What fails is said once and tried again."""
    said = False
    try:
        while True:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path, time.monotonic())
                said = False
            except OSError as error:
                if not said:
                    log.error("health_file: cannot write %s: %s", path, error.strerror or error)
                said = True
            await asyncio.sleep(WRITE_S)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def write(path: Path, now_s: float) -> None:
    path.write_text(f"{now_s:.1f}\n", encoding="ascii")


def check(path: Path | None, now_s: float) -> None:
    """Raises OffbeatError if the worker that writes `path` is not alive."""
    if path is None:
        raise OffbeatError("health_file: is not set", "give the worker and this check the same health_file")
    try:
        age = now_s - float(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise OffbeatError(f"health_file: {path} is not there", "is the worker running?") from None
    except (OSError, ValueError) as error:
        raise OffbeatError(f"health_file: {path}: {error}", "is this the worker's health file?") from None
    # A negative age is a file from before the machine started anew (or the rounding of what was written).
    if not -1 <= age <= STALE_S:
        raise OffbeatError(
            f"health_file: {path} was last written {age:.0f} s ago"
            if age > 0
            else f"health_file: {path} is old",
            "the worker hangs or was killed; see its log",
        )


def main(argv: Sequence[str], command: str, description: str) -> int:
    """`offbeat-worker --health`."""
    from offbeat_core.config import WorkerSettings, load_service_settings, service_parser
    from offbeat_core.errors import guard

    parser = service_parser(WorkerSettings, command, description)
    parser.add_argument("--health", action="store_true")
    arguments = parser.parse_args(argv)

    def body() -> int:
        check(load_service_settings(WorkerSettings, arguments).health_file, time.monotonic())
        return 0

    return guard(body, debug=arguments.debug)
