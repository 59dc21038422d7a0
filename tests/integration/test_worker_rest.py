"""Resting, one commit per generation, and a batch that changes: one worker, real gRPC, a hub made for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import scheduler_pb2 as sc
from support.worker_hub import FakeServer, Hub

HOURLY = pb.Trigger(grid=pb.Grid(interval_s=3600))
W = sc.WorkerReport

Play = Callable[..., None]


def once(hub: Hub, generation: int, **fields: Any) -> pb.WorkerDirective:
    """Commit after 3 updates, once in this generation."""
    given: dict[str, Any] = {"trigger": pb.Trigger(steps=3), "overlap": False, "once": True}
    return hub.train(**(given | {"generation": generation} | fields))


async def first_round(hub: Hub) -> None:
    """It makes its commit of generation 1, and rests."""
    hub.prepare()
    await hub.phase(W.READY)
    once(hub, 1)
    await hub.until(lambda: len(hub.server.applied) == 1, "the commit")
    await at_rest(hub)


async def at_rest(hub: Hub) -> int:
    """Wait until it rests and its figures stand still. Returns its steps."""
    await hub.phase(W.RESTING)
    while True:
        steps, reports = hub.scheduler.worker.steps, len(hub.scheduler.reports)
        await hub.until(lambda n=reports: len(hub.scheduler.reports) > n + 2, "reports")
        if hub.scheduler.worker.steps == steps:
            return steps


async def over(hub: Hub) -> W:
    """End the run; the worker's last report."""
    hub.scheduler.tell(action=pb.WorkerDirective.IDLE)
    await hub.until(lambda: any(r.worker.final for r in hub.scheduler.reports), "the last report")
    return next(r.worker for r in hub.scheduler.reports if r.worker.final)


# ---- told to rest ----------------------------------------------------------------


def test_a_worker_told_to_rest_trains_nothing_and_each_step_counts_once(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        await hub.until(lambda: hub.scheduler.worker.steps > 5, "steps")
        hub.rest()
        steps = await at_rest(hub)
        assert not hub.server.applied, "what is under way is kept"
        hub.server.version = 50
        hub.train(trigger=pb.Trigger(steps=steps + 4))
        await hub.until(lambda: hub.server.applied, "a commit")
        hub.rest()
        await at_rest(hub)
        first = hub.server.applied[0]
        assert first.base_version == 50, "it went on from the model of the day"
        assert first.steps == steps + 4, "what was done before the rest is in it, once"
        report = await over(hub)
        assert sum(h.steps for h in hub.server.applied) <= report.steps

    play(scenario)


def test_what_lies_in_the_updates_is_what_the_server_lacks_whatever_rests_came_between(play: Play) -> None:
    """With weight 1 the server's model is the start minus all updates; the pulled models change nothing."""

    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=7))
        for number in range(1, 6):
            await hub.until(lambda n=number: len(hub.server.applied) >= n, "a commit")
            hub.rest()
            await at_rest(hub)
            hub.train(trigger=pb.Trigger(steps=7))
        server = hub.server
        hub.rest()
        await at_rest(hub)
        assert server.at_start is not None
        assert server.model is not None
        assert server.manifest is not None
        n = server.manifest.trainable_elements
        expected = server.at_start[:n] - np.sum(server.updates, axis=0)
        np.testing.assert_allclose(server.model[:n], expected, atol=1e-5)
        assert [h.sequence for h in server.applied] == list(range(1, len(server.applied) + 1))

    play(scenario)


def test_rest_counts_as_waiting_and_keeps_the_lease(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        assert hub.scheduler.worker.time.wait_s == 0
        hub.rest()
        await at_rest(hub)
        before, renewals = hub.scheduler.worker, hub.server.renewals
        await hub.until(lambda: hub.server.renewals > renewals + 1, "renewals")
        await hub.until(lambda: hub.scheduler.worker.time.wait_s > before.time.wait_s + 0.3, "waiting")
        after = hub.scheduler.worker
        assert (after.time.compute_s, after.steps) == (before.time.compute_s, before.steps)
        assert after.phase == W.RESTING

    play(scenario)


def test_a_worker_may_begin_with_a_rest(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        hub.rest()
        await hub.until(lambda: hub.scheduler.worker.time.wait_s > 0.2, "its time counts")
        assert hub.scheduler.worker.phase == W.RESTING
        assert hub.scheduler.worker.steps == 0
        assert hub.server.model is not None
        hub.server.model = hub.server.model + np.float32(1)
        hub.server.version = 9
        hub.train(trigger=pb.Trigger(steps=1))
        await hub.until(lambda: hub.server.applied, "a commit")
        assert hub.server.applied[0].base_version == 9

    play(scenario)


def test_a_model_that_did_not_change_is_not_sent_again(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        hub.rest()
        await at_rest(hub)
        sent = hub.server.sent_models
        hub.train(trigger=HOURLY)
        await hub.phase(W.TRAINING)
        assert hub.server.pulls[-1].only_if_newer
        assert hub.server.sent_models == sent

    play(scenario)


def test_a_commit_on_its_way_lands_before_the_worker_trains_again(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=5))
        await hub.until(lambda: hub.server.applied, "a commit is on its way")
        pulls = len(hub.server.pulls)
        hub.rest()
        steps = await at_rest(hub)
        hub.train(trigger=pb.Trigger(steps=steps))
        await hub.until(lambda: hub.scheduler.worker.commits == 1, "it lands")
        await hub.until(lambda: len(hub.server.applied) == 2, "another commit")
        assert len(hub.server.pulls) == pulls + 1
        assert hub.server.pulls[-1].newer_than_version == 1, "its answer was a fresh model"
        assert hub.server.applied[1].steps == steps
        assert hub.server.applied[1].base_version == 1

    play(scenario, FakeServer(delay_s=1.5))


def test_rest_and_train_while_the_server_is_down_end_in_training_once_it_is_back(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        hub.rest()
        steps = await at_rest(hub)
        hub.server.down = True
        for _ in range(3):
            hub.train(trigger=pb.Trigger(steps=1))
            await asyncio.sleep(0.05)
            hub.rest()
        hub.train(trigger=pb.Trigger(steps=steps + 2))
        await hub.until(lambda: hub.scheduler.worker.retries > 0, "it tries")
        assert hub.scheduler.worker.phase == W.RESTING
        assert hub.scheduler.worker.steps == steps
        hub.server.down = False
        await hub.until(lambda: hub.server.applied, "a commit")
        assert hub.server.applied[0].steps == steps + 2
        await hub.phase(W.TRAINING)

    play(scenario)


def test_a_resting_worker_whose_server_forgot_it_takes_a_lease_again(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        await hub.until(lambda: hub.scheduler.worker.steps > 3, "steps")
        hub.rest()
        steps = await at_rest(hub)
        pulls = len(hub.server.pulls)
        hub.server.version = 20
        hub.server.known = False
        await hub.until(lambda: len(hub.server.pulls) > pulls, "a pull")
        assert hub.scheduler.worker.phase == W.RESTING
        hub.train(trigger=pb.Trigger(steps=steps + 1))
        await hub.until(lambda: hub.server.applied, "a commit")
        assert (hub.server.applied[0].steps, hub.server.applied[0].base_version) == (steps + 1, 20)

    play(scenario)


def test_a_rest_outlives_the_link_to_the_scheduler_and_ends_when_it_says_so(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        hub.rest()
        steps = await at_rest(hub)
        hub.scheduler.hang_up()
        await hub.until(lambda: hub.scheduler.streams == 2 and hub.station.attached, "another stream")
        assert await at_rest(hub) == steps
        hub.train(trigger=HOURLY)
        await hub.until(lambda: hub.scheduler.worker.steps > steps, "training")

    play(scenario)


def test_a_new_scheduler_ends_a_rest_with_its_run(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        hub.rest()
        await at_rest(hub)
        hub.scheduler.incarnation, hub.scheduler.revision = "s2", 0
        hub.scheduler.hang_up()
        await hub.until(lambda: hub.scheduler.streams == 2 and hub.station.attached, "another stream")
        report = await over(hub)
        assert report.time.wait_s > 0
        await hub.until(lambda: hub.scheduler.worker.run_id == "", "idle")

    play(scenario)


def test_told_to_prepare_at_rest_it_is_ready_and_trains_from_a_fresh_model(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        hub.rest()
        await at_rest(hub)
        hub.prepare()
        await hub.phase(W.READY)
        hub.server.version = 7
        hub.train(trigger=pb.Trigger(steps=1))
        await hub.until(lambda: hub.server.applied, "a commit")
        assert hub.server.applied[0].base_version == 7

    play(scenario)


def test_a_worker_that_leaves_at_rest_commits_what_it_has(play: Play) -> None:
    server = FakeServer()

    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=HOURLY)
        await hub.until(lambda: hub.scheduler.worker.steps > 3, "steps")
        hub.rest()
        await at_rest(hub)

    play(scenario, server)
    assert len(server.applied) == 1
    assert server.checkpoints[0][1] == 1, "a checkpoint with it"


# ---- one commit per generation -----------------------------------------------------


def test_one_commit_in_a_generation_then_rest_until_the_next(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        for generation in (1, 2, 3):
            once(hub, generation)
            await hub.until(lambda g=generation: len(hub.server.applied) == g, "the commit")
            assert await at_rest(hub) == 3 * generation
        assert [(h.generation, h.steps, h.base_version) for h in hub.server.applied] == [
            (1, 3, 0),
            (2, 3, 1),
            (3, 3, 2),
        ]
        assert hub.server.sent_models == 1, "the reply's model is the fresh one"
        report = await over(hub)
        assert (report.steps, report.commits) == (9, 3)
        assert report.time.wait_s > 0

    play(scenario)


def test_who_rested_on_the_model_of_the_round_begins_without_asking_for_it(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        pulls = len(hub.server.pulls)
        for generation in (1, 2, 3):
            once(hub, generation, model_version=generation - 1)
            await hub.until(lambda g=generation: len(hub.server.applied) == g, "the commit")
            await at_rest(hub)
        assert len(hub.server.pulls) == pulls
        hub.server.version = 40
        once(hub, 4, model_version=40)
        await hub.until(lambda: len(hub.server.applied) == 4, "the commit")
        assert hub.server.applied[3].base_version == 40
        assert len(hub.server.pulls) == pulls + 1

    play(scenario)


def test_a_model_that_moved_on_meanwhile_is_taken_for_the_next_generation(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await first_round(hub)
        hub.server.version = 30
        once(hub, 2)
        await hub.until(lambda: len(hub.server.applied) == 2, "another commit")
        assert hub.server.applied[1].base_version == 30

    play(scenario)


def test_another_directive_of_the_same_generation_asks_for_no_second_commit(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await first_round(hub)
        once(hub, 1, max_lone_steps=50)
        assert await at_rest(hub) == 3
        hub.rest(generation=1)
        assert await at_rest(hub) == 3
        once(hub, 1, max_lone_steps=60)
        assert await at_rest(hub) == 3
        once(hub, 2)
        await hub.until(lambda: len(hub.server.applied) == 2, "the next round's")

    play(scenario)


def test_an_update_that_was_refused_is_the_one_of_its_generation_all_the_same(play: Play) -> None:
    """The parameter server closes the round without it; the next one begins from the fresh model."""

    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        once(hub, 1)
        assert await at_rest(hub) == 3
        once(hub, 2)
        await hub.until(lambda: len(hub.server.applied) == 1, "a commit that is taken")
        assert (hub.server.applied[0].generation, hub.server.applied[0].sequence) == (2, 2)

    play(scenario, FakeServer(faults=["refuse"]))


@pytest.mark.parametrize("fault", ["lose the reply", "cut while sending", "unavailable"])
def test_a_commit_that_had_to_be_sent_again_is_the_one_of_its_generation(play: Play, fault: str) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        once(hub, 1)
        await hub.until(lambda: hub.scheduler.worker.commits == 1, "the commit")
        assert await at_rest(hub) == 3
        assert len(hub.server.applied) == 1

    play(scenario, FakeServer(faults=[fault]))


def test_the_next_generation_may_come_while_the_commit_is_on_its_way(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        once(hub, 1)
        await hub.until(lambda: len(hub.server.applied) == 1, "a commit is on its way")
        once(hub, 2)
        pulls = len(hub.server.pulls)
        await hub.until(lambda: len(hub.server.applied) == 2, "the next generation's")
        assert hub.server.applied[1].generation == 2
        assert hub.server.applied[1].base_version == 1
        assert len(hub.server.pulls) == pulls, "the reply's model is fresh"
        assert await at_rest(hub) == 6

    play(scenario, FakeServer(delay_s=0.7))


def test_the_next_generation_may_come_with_the_reply(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        hub.prepare()
        await hub.phase(W.READY)
        first = once(hub, 1)
        following = pb.WorkerDirective()
        following.CopyFrom(first)
        following.generation, following.revision = 2, first.revision + 1
        hub.server.next = following
        await hub.until(lambda: len(hub.server.applied) == 2, "the next generation's")
        assert await at_rest(hub) == 6
        assert [h.generation for h in hub.server.applied] == [1, 2]

    play(scenario)


def test_a_model_without_rounds_ends_the_rest(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await first_round(hub)
        hub.train(trigger=pb.Trigger(steps=1), generation=2)
        await hub.until(lambda: len(hub.server.applied) > 5, "commits")
        await hub.phase(W.TRAINING)

    play(scenario)


# ---- batch ---------------------------------------------------------------------------


def per_step(hub: Hub) -> list[float]:
    """Samples per local update, of each commit."""
    return [h.samples / h.steps for h in hub.server.applied]


def test_another_batch_holds_from_the_next_update_on(play: Play) -> None:
    async def scenario(hub: Hub) -> None:
        await hub.training(trigger=pb.Trigger(steps=4), batch=8)
        await hub.until(lambda: len(hub.server.applied) >= 3, "commits")
        hub.train(trigger=pb.Trigger(steps=4), batch=16)
        await hub.until(lambda: per_step(hub)[-4:] == [16] * 4, "commits of the new batch")
        sizes = per_step(hub)
        assert sizes[0] == 8
        mixed = [size for size in sizes if size not in (8, 16)]
        assert len(mixed) <= 2, "the commit that holds both, and the shorter end of the pass that was begun"
        assert {h.shard_samples for h in hub.server.applied} == {64}

    play(scenario)
