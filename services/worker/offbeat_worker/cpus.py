"""How many processors this process may use: its affinity and its container's quota.

torch counts the machine's cores. In a container that may use a quarter of one, as many
threads as cores would only fight for that quarter.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def allowed(root: Path = Path("/")) -> int:
    """Whole processors that this process may use, at least 1. `root` is for tests."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = quota(root)
    # Rounded down: what is left over serves the thread that talks to the network.
    return affinity if limit >= affinity else max(1, math.floor(limit))


def quota(root: Path = Path("/")) -> float:
    """Processors that the control groups allow (0.25: a quarter of one); infinity where nothing limits."""
    return min(_quotas(root), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    """The quota of this process's group and of each group above it, versions 1 and 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2, alone or beside version 1
            for base in (mounts, mounts / "unified"):
                yield from filter(None, (_version_2(folder) for folder in _upwards(base, path)))
        elif "cpu" in controllers.split(","):
            for base in (mounts / controllers, mounts / "cpu"):
                yield from filter(None, (_version_1(folder) for folder in _upwards(base, path)))


def _upwards(base: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above. In a container the path may be the host's: then `base` is ours."""
    folder = base / path.lstrip("/")
    while folder != base and base in folder.parents:
        yield folder
        folder = folder.parent
    yield base


def _version_2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _version_1(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit / period if limit > 0 and period > 0 else None
