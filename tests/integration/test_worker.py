"""The worker against a scheduler and a parameter server made for the purpose, over real gRPC.

They do what the contract says and no more, and fail on demand; everything runs on
the test's event loop but for the training thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import ANOTHER_MODEL
from offbeat_worker import bulk
from offbeat_worker.evaluator import HeldOut
from offbeat_worker.localrun import Site
from support.worker_hub import LIVENESS_S, RUN, TASK, FakeServer, Hub


def test_worker_says_who_it_is_and_what_it_can_train(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.phase(sc.WorkerReport.IDLE)
        hello = hub.scheduler.hellos[0]
        assert (hello.role, hello.name, hello.shard, hello.shards) == (pb.ROLE_WORKER, "w", 1, 3)
        assert hello.tasks["tiny"] == hashlib.sha256(TASK.encode()).hexdigest()
        assert "digits" in hello.tasks
        assert hello.device.compute == "cpu"
        assert hello.device.threads == 1

    play(scenario, shard=1, shards=3)


def test_first_worker_seeds_and_is_ready(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        assert hub.server.seeds == 1
        assert hub.scheduler.worker.shard_samples == 64
        assert hub.server.manifest is not None
        assert [t.name for t in hub.server.manifest.buffers] == ["1.running_mean", "1.running_var"]

    play(scenario)


def test_worker_that_may_not_seed_waits_for_the_model_and_seeds_when_it_may(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare(may_seed=False)
        await hub.until(lambda: len(hub.server.pulls) >= 2, "it looks for a model again")
        assert hub.server.seeds == 0
        assert hub.scheduler.worker.phase == sc.WorkerReport.PREPARING
        hub.prepare(may_seed=True)
        await hub.phase(sc.WorkerReport.READY)
        assert hub.server.seeds == 1

    play(scenario)


def test_model_learns_and_figures_add_up(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(learning_rate=0.1, momentum=0.5, batch=32)
        await hub.until(lambda: len(hub.server.applied) >= 100, "100 commits")
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.until(lambda: any(r.worker.final for r in hub.scheduler.reports), "the last report")
        final = next(r.worker for r in hub.scheduler.reports if r.worker.final)
        applied = hub.server.applied
        assert final.run_id == RUN
        assert applied[-1].train_loss < 0.5 * applied[0].train_loss
        assert [h.sequence for h in applied] == list(range(1, len(applied) + 1))
        assert len(applied) - 1 <= final.commits <= len(applied)
        assert sum(h.steps for h in applied) <= final.steps
        assert final.samples == 32 * final.steps
        assert final.sent_bytes > 0
        assert final.step_s > 0
        await hub.until(lambda: hub.scheduler.worker.run_id == "", "idle reports name no run")

    play(scenario)


def test_commits_lose_and_repeat_no_step_whatever_breaks(play: Callable[..., None]) -> None:
    """With weight 1 the server's model is the start minus all updates; every step is in one of them."""
    faults = [
        "unavailable",
        "",
        "cut while sending",
        "lose the reply",
        "",
        "cut while replying",
        "unavailable",
        "unavailable",
        "",
    ]

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 8 and not hub.server.faults, "8 commits")
        server = hub.server
        assert [h.sequence for h in server.applied] == list(range(1, len(server.applied) + 1))
        assert len(server.received) > len(server.applied)
        assert server.at_start is not None
        assert server.model is not None
        assert server.manifest is not None
        n = server.manifest.trainable_elements
        expected = server.at_start[:n] - np.sum(server.updates, axis=0)
        np.testing.assert_allclose(server.model[:n], expected, atol=1e-5)
        await hub.until(lambda: hub.scheduler.worker.retries >= 5, "the retries are counted")

    play(scenario, FakeServer(faults=faults))


def test_a_server_that_stands_still_is_given_up_and_tried_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_S", 0.3)
    monkeypatch.setattr(bulk, "REPLY_S", 0.3)

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 2, "commits after the stall")
        assert hub.server.applied[0].sequence == 1
        await hub.until(lambda: hub.scheduler.worker.retries == 1, "one retry")

    play(scenario, FakeServer(faults=["stall"]))


def test_server_that_forgot_the_run_is_said_once_and_the_update_kept(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.commits, "a commit in the end")
        assert hub.server.applied[0].sequence == 1
        assert caplog.text.count("cannot be reached") == 1
        assert caplog.text.count("is back") == 1

    play(scenario, FakeServer(faults=["run forgotten"] * 4))


def test_worker_that_rests_takes_the_model_of_the_day_when_it_trains_again(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(grid=pb.Grid(interval_s=3600)))
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        steps = hub.scheduler.worker.steps
        await asyncio.sleep(0.3)
        assert hub.scheduler.worker.steps <= steps + 1, "it rests"
        pulls = len(hub.server.pulls)
        hub.server.version = 50
        hub.train(trigger=pb.Trigger(steps=1))
        await hub.until(lambda: hub.server.applied, "a commit")
        assert len(hub.server.pulls) == pulls + 1
        assert hub.server.applied[0].base_version == 50

    play(scenario)


def test_broken_streams_leave_no_descriptors_behind(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        counts = []
        for n in range(2, 10):
            hub.scheduler.hang_up()
            await hub.until(lambda n=n: hub.scheduler.streams == n, "another stream")
            await hub.until(lambda: hub.station.attached, "attended")
            counts.append(len(os.listdir("/proc/self/fd")))
        assert counts[-1] <= counts[0] + 2
        await hub.phase(sc.WorkerReport.TRAINING)

    play(scenario)


def test_training_goes_on_while_a_commit_travels(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        grid = pb.Trigger(grid=pb.Grid(interval_s=0.25))
        await hub.training(trigger=grid)
        await hub.until(lambda: hub.scheduler.worker.commits >= 3, "3 commits, 2 s each")
        report = hub.scheduler.worker
        total = sum(getattr(report.time, f"{share}_s") for share in ("compute", "paced", "commit", "wait"))
        assert report.commit_s >= 2.0
        assert report.time.wait_s <= 0.001 * total
        # Most of the steps were made in flight: an interval is an eighth of a flight.
        first, second = hub.server.applied[:2]
        assert second.steps > 2 * first.steps
        assert report.time.compute_s > 2 * report.commit_s

    play(scenario, FakeServer(delay_s=2.0))


def test_commit_that_must_not_overlap_waits(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=3), overlap=False)
        await hub.until(lambda: hub.scheduler.worker.commits >= 4, "4 commits")
        assert all(h.steps == 3 for h in hub.server.applied)
        report = hub.scheduler.worker
        total = sum(getattr(report.time, f"{share}_s") for share in ("compute", "paced", "commit", "wait"))
        assert report.time.wait_s > 0.5 * total

    play(scenario, FakeServer(delay_s=0.2))


def test_metrics_are_those_of_the_moment(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        def scrape() -> dict[str, float]:
            url = f"http://127.0.0.1:{hub.station.metrics_port}/metrics"
            with urllib.request.urlopen(url) as reply:  # of this test's own
                lines = reply.read().decode().splitlines()
            return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.commits > 3, "commits")
        figures = await asyncio.to_thread(scrape)
        assert figures['offbeat_worker_commits_total{worker="w"}'] > 3
        assert figures['offbeat_worker_training{worker="w"}'] == 1
        shares = [f'offbeat_worker_time_seconds_total{{share="{s}",worker="w"}}' for s in ("compute", "wait")]
        assert figures[shares[0]] > figures[shares[1]] == 0

    play(scenario, metrics_listen="127.0.0.1:0")


def test_paced_worker_is_paced_and_the_pace_changes_while_running(
    play: Callable[..., None], tmp_path: Path
) -> None:
    pace = tmp_path / "pace"
    pace.write_text("0.05")

    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: hub.scheduler.worker.steps >= 10, "10 steps")
        slow = hub.scheduler.worker
        assert slow.step_s >= 0.05
        assert slow.time.paced_s > 5 * slow.time.compute_s
        assert slow.time.wait_s == 0
        pace.write_text("0")
        await hub.until(lambda: hub.scheduler.worker.step_s < 0.01, "the new pace")

    play(scenario, step_seconds=1.0, step_seconds_file=pace)


def test_end_of_the_run_interrupts_a_slow_step(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        began = time.monotonic()
        await hub.until(lambda: any(r.worker.final for r in hub.scheduler.reports), "the last report")
        assert time.monotonic() - began < 60

    play(scenario, step_seconds=600.0)


def test_directive_in_a_commits_reply_holds_unless_it_is_older(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=5), generation=1)
        newer = hub.train(trigger=pb.Trigger(steps=7), generation=2)
        await hub.until(lambda: hub.scheduler.worker.revision == newer.revision, "the pushed directive")
        older = pb.WorkerDirective()
        older.CopyFrom(newer)
        older.revision, older.trigger.steps = newer.revision - 1, 3
        hub.server.next = older
        n = len(hub.server.applied)
        await hub.until(lambda: len(hub.server.applied) >= n + 4, "commits under it")
        assert all(h.steps >= 7 for h in hub.server.applied[n + 2 :])
        newest = pb.WorkerDirective()
        newest.CopyFrom(newer)
        newest.revision, newest.trigger.steps, newest.generation = newer.revision + 1, 2, 9
        hub.server.next = newest
        await hub.until(lambda: hub.server.applied[-1].generation == 9, "the reply's directive")

    play(scenario)


def test_refused_update_is_dropped_and_training_goes_on_from_the_fresh_model(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.until(lambda: len(hub.server.applied) >= 3, "commits after the refusal")
        assert [h.sequence for h in hub.server.received][:2] == [1, 2]
        assert hub.server.applied[0].sequence == 2
        assert hub.scheduler.worker.phase == sc.WorkerReport.TRAINING

    play(scenario, FakeServer(faults=["refuse"]))


def test_worker_goes_on_alone_without_scheduler_and_attends_the_next(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.scheduler.incarnation = "s2"
        hub.scheduler.revision = 0
        commits = len(hub.server.applied)
        hub.scheduler.hang_up()
        await hub.until(lambda: len(hub.server.applied) > commits + 2, "commits without a scheduler")
        await hub.until(lambda: hub.scheduler.streams == 2, "a second stream")
        await hub.phase(sc.WorkerReport.TRAINING)
        hub.train(trigger=pb.Trigger(steps=2), generation=5)  # revision 1: counted anew
        await hub.until(lambda: hub.server.applied[-1].generation == 5, "the new scheduler's directive")
        assert len({hello.incarnation for hello in hub.scheduler.hellos}) == 1

    play(scenario)


def test_lost_lease_is_taken_again_by_a_pull(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(grid=pb.Grid(interval_s=3600)))
        pulls = len(hub.server.pulls)
        hub.server.known = False
        await hub.until(lambda: len(hub.server.pulls) > pulls, "another pull")
        await hub.until(lambda: hub.server.renewals >= 3, "renewals go on")
        steps = hub.scheduler.worker.steps
        await hub.until(lambda: hub.scheduler.worker.steps > steps, "training goes on")

    play(scenario)


@pytest.mark.parametrize("by", ["scheduler", "parameter server"])
def test_older_of_two_with_one_name_ends_with_a_clear_error(play: Callable[..., None], by: str) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        if by == "scheduler":
            hub.scheduler.hang_up((grpc.StatusCode.ABORTED, "a newer incarnation attends"))
        else:
            hub.server.faults = ["superseded"]
        with pytest.raises(OffbeatError, match=f"called 'w' is known to the {by}"):
            await asyncio.wait_for(asyncio.shield(hub.running), LIVENESS_S)

    play(scenario)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": {"digest": "0" * 64}}, "digest"),
        ({"task": {"options": {"wide": "3"}}}, "wide"),
    ],
)
def test_worker_that_cannot_take_part_says_why(
    play: Callable[..., None], fields: dict[str, Any], message: str
) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare(**fields)
        await hub.phase(sc.WorkerReport.FAILED)
        assert message in hub.scheduler.worker.error
        hub.train()
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        assert hub.server.seeds == 0

    play(scenario)


def test_worker_with_another_model_says_what_differs(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        hub.prepare(task={"options": {"width": "9"}})
        await hub.phase(sc.WorkerReport.FAILED)
        assert hub.scheduler.worker.error.startswith(ANOTHER_MODEL)
        assert "0.weight" in hub.scheduler.worker.error
        assert "[9, 2]" in hub.scheduler.worker.error

    play(scenario)


@pytest.mark.parametrize("kind", ["KeyError", "SystemExit"])
def test_error_in_the_users_loss_fails_the_run_here_and_not_the_worker(
    play: Callable[..., None], kind: str
) -> None:
    broken = TASK.replace(
        "    x, y = batch\n", f"    x, y = batch\n    if len(x) == 7: raise {kind}('boom')\n"
    )

    async def scenario(hub: Hub) -> None:
        await hub.training()
        hub.train(batch=7)
        await hub.phase(sc.WorkerReport.FAILED)
        assert "boom" in hub.scheduler.worker.error
        hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
        await hub.phase(sc.WorkerReport.IDLE)
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)

    play(scenario, task=broken)


def test_a_mistake_that_ends_the_training_thread_ends_the_worker(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would keep its lease, and others would wait for it at a gate."""

    async def scenario(hub: Hub) -> None:
        await hub.training()

        def mistaken(self: Any) -> None:
            raise ValueError("a mistake of ours")

        monkeypatch.setattr("offbeat_worker.training.Trainer._guarded", mistaken)
        with pytest.raises(RuntimeError, match="the training thread ended"):
            await asyncio.wait_for(asyncio.shield(hub.running), LIVENESS_S)

    play(scenario)


def test_leaving_worker_says_goodbye(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await hub.station.leave("told to end", 10.0)
        assert hub.scheduler.goodbyes == ["told to end"]

    play(scenario)


@pytest.mark.parametrize("delay_s", [0.0, 0.5], ids=["nothing in flight", "a commit in flight"])
def test_leaving_worker_commits_what_it_has(play: Callable[..., None], delay_s: float) -> None:
    async def scenario(hub: Hub) -> None:
        first = 5 if delay_s else 10**9
        await hub.training(trigger=pb.Trigger(steps=first))
        await hub.until(lambda: hub.scheduler.worker.steps > 10, "steps")
        await hub.station.leave("told to end", 10.0)
        steps = sum(h.steps for h in hub.server.applied)
        assert steps >= 10
        assert steps == hub.station.report().worker.steps
        ((request, applied),) = hub.server.checkpoints
        assert (request.run_id, request.worker) == (RUN, "w")
        assert applied == len(hub.server.applied)  # after its last commit

    play(scenario, FakeServer(delay_s=delay_s))


def test_a_worker_that_may_not_overlap_leaves_with_a_checkpoint_of_what_it_committed(
    play: Callable[..., None],
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(overlap=False)
        await hub.until(lambda: hub.server.applied, "a commit")
        await hub.station.leave("told to end", 10.0)
        assert len(hub.server.checkpoints) == 1

    play(scenario)


def test_a_checkpoint_that_does_not_come_keeps_no_worker_from_leaving(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training()
        await asyncio.wait_for(hub.station.leave("told to end", 4.0), LIVENESS_S)
        assert hub.server.checkpoints
        assert hub.scheduler.goodbyes == ["told to end"]
        assert "not confirmed that the last update is in a checkpoint" in caplog.text

    play(scenario, FakeServer(disk_hangs=True))


def test_a_worker_that_does_not_train_asks_for_no_checkpoint(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(sc.WorkerReport.READY)
        await hub.station.leave("told to end", 10.0)
        assert not hub.server.checkpoints

    play(scenario)


def test_evaluator_reports_each_new_version_once_and_never_takes_a_lease(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        task = pb.RunTask(name="tiny")
        hub.scheduler.tell_evaluator(run_id=RUN, task=task, every_s=0.05, seed=3, batch=16)
        await hub.until(lambda: hub.scheduler.evaluator.ready, "ready before there is a model")
        assert hub.scheduler.evaluator.samples == 0
        site = Site(0, 1, hub.folder, [hub.folder / "tiny.py"], torch.device("cpu"))
        other = HeldOut(site, task, 3, 16)
        hub.server.manifest = other.flat.manifest
        hub.server.model = other.flat.vector.numpy().copy()
        await hub.until(lambda: hub.scheduler.evaluator.samples == 64, "the first evaluation")
        first = hub.scheduler.evaluator
        assert first.metric_name == "error"
        assert first.metric == pytest.approx(first.loss)
        hub.server.model = hub.server.model * 0
        await asyncio.sleep(0.3)
        assert hub.scheduler.evaluator.loss == first.loss, "an unchanged version is not evaluated again"
        hub.server.version = 4
        await hub.until(lambda: hub.scheduler.evaluator.version == 4, "the new version")
        x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        assert hub.scheduler.evaluator.loss == pytest.approx(float(x.sum(1).square().mean()), rel=1e-4)
        assert {p.role for p in hub.server.pulls} == {pb.ROLE_EVALUATOR}
        assert hub.server.renewals == 0

    play(scenario, role="evaluator")


def test_evaluator_says_what_is_wrong(play: Callable[..., None]) -> None:
    async def scenario(hub: Hub) -> None:
        task = pb.RunTask(name="unheard-of")
        hub.scheduler.tell_evaluator(run_id=RUN, task=task, every_s=0.05, seed=3, batch=16)
        await hub.until(lambda: "unheard-of" in hub.scheduler.evaluator.error, "the error")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(hub.running), 0.1)

    play(scenario, role="evaluator")
