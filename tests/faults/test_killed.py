"""kill -9, of anybody."""

import pytest
from support.fleet import Fleet, Phase, of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_barrier_lets_go_of_a_killed_worker_when_its_lease_ends_and_takes_it_back(fleet: Fleet) -> None:
    fleet.submit(workers=3, sync="bsp")
    fleet.until_trains(3)
    fleet.kill("worker-3")
    status = fleet.until(lambda s: s.active_trainers == 2, "M falls")
    fleet.until_commits(20, "worker-1", "worker-2")
    assert status.phase == Phase.TRAINING
    fleet.start_workers(3)
    back = fleet.until_commits(10, "worker-3")
    assert back.active_trainers == 3
    counts = [worker.commits for worker in fleet.stop_run().workers]
    assert counts[0] - counts[1] in (-1, 0, 1)
    assert counts[2] < counts[0]


def test_without_a_gate_a_killed_worker_only_leaves_m(fleet: Fleet) -> None:
    fleet.submit(workers=3, check_period_s=1)
    fleet.until_trains(3)
    fleet.kill("worker-3")
    fleet.until_commits(3, "worker-1", "worker-2")
    status = fleet.until(lambda s: s.active_trainers == 2, "M falls")
    assert status.phase == Phase.TRAINING
    assert not of(status, "worker-3").attached
