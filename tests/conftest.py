"""Makes `tests/support` importable: helpers that several tests share. And a fleet of real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import hypothesis  # noqa: F401 - in the summary, where its plugin would import it, a collected server ends pytest
import pytest

sys.path.insert(0, str(Path(__file__).parent))

# grpc.aio ends its polling thread when its last object is collected, and waits for that thread. The
# tests make and drop loops and channels, so this would happen in whatever test the collector runs,
# where the thread may never end. One more user, who never leaves, keeps it for the whole session.
grpc.aio.init_grpc_aio()

if TYPE_CHECKING:
    from support.fleet import Fleet


@pytest.fixture(scope="session")
def _fleets() -> Iterator[list[Fleet]]:
    """The start of torch is paid once: all tests share one fleet, the last one here."""
    fleets: list[Fleet] = []
    yield fleets
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def fleet(_fleets: list[Fleet], tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A hub, worker-1 to worker-3 and an evaluator attend, nobody else, and no run is active.

    Whatever the test before broke is put right; where that can't be done, by another fleet.
    """
    from support.fleet import Broken, Fleet

    if _fleets:
        try:
            _fleets[-1].restore(workers=3)
        except Broken:
            _fleets.pop().close()
        else:
            return _fleets[-1]
    _fleets.append(Fleet(tmp_path_factory.mktemp("fleet")))
    _fleets[-1].restore(workers=3)
    return _fleets[-1]
