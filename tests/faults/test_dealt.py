"""Learners that hold no data, while whoever deals to them, or they themselves, die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli.simulator.replaying import replayed
from support.data_sets import handed
from support.fleet import Fleet, Phase, of, training
from support.narrow import NarrowLink

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SAMPLES, FEATURES = 600, 500
SAMPLE_BYTES = 4 * FEATURES + 8
CYCLE_S = 2.0
BATCH = 8
DEALT = {"mel-async": {"mode": "parallelized", "cycle_s": CYCLE_S}}


@pytest.fixture
def dealing(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The hub holds a data set."""
    path = handed(tmp_path_factory.mktemp("data"), SAMPLES, FEATURES)
    fleet.end("parameter-server")
    fleet.start_server(samples=path)
    fleet.samples = path  # type: ignore[attr-defined]
    fleet.until(lambda s: s.parameter_server_attached, "it attends")
    yield fleet
    fleet.stop_run()


def submit(fleet: Fleet, workers: int = 3) -> str:
    return fleet.submit(workers=workers, task="handed", sync=DEALT, training={"batch": BATCH})


def rounds(fleet: Fleet, more: int) -> pb.Status:
    version = fleet.status().version
    return fleet.until(lambda s: s.version >= version + more, f"{more} more cycles")


def test_a_learner_that_is_killed_while_its_samples_come_stalls_nobody_and_comes_back(dealing: Fleet) -> None:
    fleet = dealing
    fleet.end("worker-3")
    # 64 samples take 2.6 s of the first cycle, which closes after 2.2 s: half of it is transfer.
    with NarrowLink(fleet.server, 25 * SAMPLE_BYTES) as link:
        fleet.start_worker("worker-3", parameter_server=link.address, shard=2, shards=3)
        run = submit(fleet)
        fleet.until(lambda s: of(s, "worker-3").report.fetched_samples > 2, "samples come", 120)
        fleet.kill("worker-3")
        rounds(fleet, 2)
        fleet.start_worker("worker-3", parameter_server=link.address, shard=2, shards=3)
        status = fleet.until(lambda s: of(s, "worker-3").commits >= 2, "it takes part", 120)
    assert status.phase == Phase.TRAINING
    near, far = of(status, "worker-1"), of(status, "worker-3")
    assert far.allotted_samples < near.allotted_samples, "what its samples take was measured"
    fleet.stop_run()
    events, differing = replayed(fleet.folder / "scheduler" / run)
    assert events > 10
    assert differing == 0
    for name in ("worker-1", "parameter-server", "scheduler"):
        assert fleet.log(name).count("Traceback") == 0


def test_a_hub_that_is_killed_in_a_cycle_deals_on_when_it_is_back(dealing: Fleet) -> None:
    fleet = dealing
    run = submit(fleet)
    names = training(fleet.until_trains(3))
    for _ in range(2):
        rounds(fleet, 2)
        fleet.kill("parameter-server")
        before = fleet.until(lambda s: any("parameter server" in w for w in s.warnings), "it is said")
        fleet.start_server(samples=fleet.samples)  # type: ignore[attr-defined]
        fleet.until(lambda s: s.parameter_server_attached and not s.warnings, "it is back")
        after = fleet.until_commits(2, *names)
        assert after.phase == Phase.TRAINING
        assert after.version > before.version
    status = fleet.status()
    assert sum(of(status, name).allotted_samples for name in names) == SAMPLES
    fleet.stop_run()
    assert replayed(fleet.folder / "scheduler" / run)[1] == 0
    for name in names:
        assert fleet.log(name).count("Traceback") == 0


def test_a_hub_that_comes_back_without_its_data_ends_the_run_with_the_remedy(dealing: Fleet) -> None:
    fleet = dealing
    submit(fleet)
    fleet.until_trains(3)
    fleet.kill("parameter-server")
    fleet.start_server()
    status = fleet.until(lambda s: s.phase == Phase.IDLE, "the run ends")
    assert status.outcome == pb.Status.FAILED
    assert "start it with samples: FILE" in status.message
    assert all(fleet.runs(f"worker-{number}") for number in (1, 2, 3))
    with pytest.raises(Exception, match="holds no data set to deal"):
        submit(fleet)
