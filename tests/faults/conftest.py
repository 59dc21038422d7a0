"""What the tests of broken links share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fleet import Fleet
from support.link import Link


@pytest.fixture
def links(fleet: Fleet) -> Iterator[tuple[Link, Link]]:
    """To the scheduler and to the parameter server."""
    with Link(fleet.scheduler) as control, Link(fleet.server, delay_s=0.03) as bulk:
        yield control, bulk
