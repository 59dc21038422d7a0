"""A task's file that is edited while the worker runs: the next run uses it, and the scheduler hears of it.

The digests that a worker names are compared with the run's; with those of its start, an
edited file would be refused on every device until each was restarted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from offbeat_core.errors import OffbeatError
from offbeat_worker.tasks.files import available

log = logging.getLogger(__name__)


class TaskWatch:
    """Looks after the user's task files.

    Args:
        paths: as configured.
        known: name -> digest, as they were last told.
    """

    def __init__(self, paths: Sequence[Path], known: Mapping[str, str]) -> None:
        self._paths = [Path(path) for path in paths]
        self._known = dict(known)
        self._marks = self._look()

    def poll(self) -> dict[str, str] | None:
        """Name -> digest of all tasks if one has changed; else None.

        A file that can't be used, or is half written, is said once per change; what was told stays.
        """
        marks = self._look()
        if marks == self._marks:
            return None
        self._marks = marks
        try:
            known = available(self._paths)
        except OffbeatError as error:
            log.warning("a task's file changed and can't be used: %s", error.problem)
            return None
        if known == self._known:
            return None
        changed = sorted(name for name in known if known[name] != self._known.get(name))
        log.info("changed: task %s; the next run uses it as it is now", ", ".join(changed))
        self._known = known
        return known

    def _look(self) -> list[tuple[int, int] | None]:
        marks: list[tuple[int, int] | None] = []
        for path in self._paths:
            try:
                status = path.stat()
                marks.append((status.st_mtime_ns, status.st_size))
            except OSError:
                marks.append(None)
        return marks
