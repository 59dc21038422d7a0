"""One hub with three workers and an evaluator for all tests of faults; each puts right what the last one broke."""

from collections.abc import Iterator

import pytest
from support.fleet import Fleet

WORKERS = 3


@pytest.fixture(scope="session")
def _fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def fleet(_fleet: Fleet) -> Fleet:
    """Everybody runs and no run is active."""
    _fleet.start_hub()
    _fleet.start_workers(WORKERS)
    _fleet.start_evaluator()
    _fleet.stop_run()
    names = {f"worker-{number + 1}" for number in range(WORKERS)}
    _fleet.until(
        lambda s: (
            s.evaluator_attached
            and s.parameter_server_attached
            and {w.name for w in s.workers if w.attached} == names
        ),
        "everybody attends",
    )
    return _fleet
