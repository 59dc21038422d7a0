"""Devices that compute wrongly, or another model: they are named, and the others train on."""

from __future__ import annotations

import pytest

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_worker_whose_model_differs_is_named_and_the_others_reach_the_target(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"HIDDEN": "24"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(task="uneven", workers=3, target={"loss": 0.6}, training={"learning_rate": 0.3})
    status = fleet.until(lambda s: s.reached, "the others reach the target")
    worker = of(status, "worker-9")
    assert "0.weight" in worker.error
    assert "[24, 2]" in worker.error
    assert "[16, 2]" in worker.error
    assert worker.commits == 0
    assert any("worker-9 failed" in warning for warning in status.warnings)
    assert fleet.runs("worker-9"), "it stays for the next run"


def test_updates_with_nan_are_refused_by_tensor_and_their_worker_is_quarantined(fleet: Fleet) -> None:
    fleet.start_worker("worker-9", shard=1, shards=4, environment={"SICK_AFTER": "40"})
    fleet.until(lambda s: of(s, "worker-9").attached, "it attends")
    fleet.submit(
        task="sick",
        workers=4,
        target={"accuracy": 0.85},
        training={"learning_rate": 0.1},
        sync={"adsp": {"rate": 8}},
        check_period_s=2,
    )
    status = fleet.until(
        lambda s: of(s, "worker-9").report.phase == pb.WorkerReport.FAILED, "it is quarantined"
    )
    worker = of(status, "worker-9")
    assert "quarantined" in worker.error
    assert "'0.weight'" in worker.error
    assert "NaN" in worker.error
    assert worker.commits >= 1, "its good updates count"
    metrics = fleet.metrics("parameter-server")
    assert metrics['offbeat_ps_refused_commits_total{worker="worker-9"}'] == 3
    assert metrics['offbeat_ps_quarantined{worker="worker-9"}'] == 1
    assert metrics['offbeat_ps_refused_commits_total{worker="worker-1"}'] == 0
    status = fleet.until(lambda s: s.reached, "the others reach the target")
    assert of(status, "worker-9").commits == worker.commits
    assert all(of(status, f"worker-{n}").commits > worker.commits for n in (1, 2, 3))
