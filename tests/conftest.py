"""Makes `tests/support` importable: helpers that several tests share. And a fleet of real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from support.fleet import Fleet


@pytest.fixture(scope="session")
def _fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The start of torch is paid once: all tests share one fleet."""
    from support.fleet import Fleet

    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(_fleet: Fleet) -> Fleet:
    """A hub, worker-1 to worker-3 and an evaluator attend, nobody else, and no run is active.

    Whatever the test before broke is put right.
    """
    _fleet.restore(workers=3)
    return _fleet
