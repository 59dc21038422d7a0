"""Attend over real gRPC: agents come, report, are told, and go."""

import asyncio
import functools

import grpc
import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core import channels
from offbeat_scheduler.models import make_model
from offbeat_scheduler.service import QUEUED_DIRECTIVES, Stream
from support.scheduler_live import live_scheduler

W = pb.WorkerReport
D = common.WorkerDirective
RUN = "name: first\ntask: digits\nworkers: 2\nsync: fake\ntarget: {accuracy: 0.9, confirm: 2}\n"


def scheduler_test(**options):
    """The test is a coroutine that gets a live scheduler."""

    def decorate(test):
        @functools.wraps(test)
        def run(tmp_path):
            async def body():
                async with live_scheduler(tmp_path / "runs", **options) as live:
                    await asyncio.wait_for(test(live), 60)

            asyncio.run(body())

        del run.__wrapped__  # pytest would look for the coroutine's own arguments
        return run

    return decorate


async def a_training_run(live, run=RUN):
    """(ps, evaluator, [w1, w2], run_id) of a run in training."""
    ps = await live.agent("ps", "ps")
    evaluator = await live.agent("evaluator", "eval")
    workers = [await live.agent("worker", name) for name in ("w1", "w2")]
    run_id = await live.submit(run)
    prepared = [await worker.told(D.PREPARE) for worker in workers]
    assert sorted(directive.may_seed for directive in prepared) == [False, True]
    server = (await ps.until(lambda d: d.server.run_id == run_id)).server
    assert server.lease_s == 10.0
    await ps.say(server=pb.ServerReport(run_id=run_id, seeded=True, version=1))
    await evaluator.until(lambda d: d.evaluator.run_id == run_id)
    await evaluator.say(evaluator=pb.EvaluatorReport(run_id=run_id, ready=True))
    for worker in workers:
        await worker.say(worker=pb.WorkerReport(run_id=run_id, phase=W.READY))
    for worker in workers:
        train = await worker.told(D.TRAIN)
        assert train.trigger.grid.interval_s == 2.0
    return ps, evaluator, workers, run_id


@scheduler_test()
async def test_a_later_hello_corrects_the_tasks_and_nothing_else(live):
    await live.agent("ps", "ps")
    worker = await live.agent("worker", "w1", tasks={"other": "0" * 64})
    await live.submit(RUN)
    await worker.told(D.REFUSED)
    other = pb.Hello()
    other.CopyFrom(worker.hello)
    other.name = "w2"
    await worker.say(hello=other)
    worker.hello.tasks["digits"] = "1" * 64
    await worker.say(hello=worker.hello)
    assert (await worker.told(D.PREPARE)).task.digest == "1" * 64
    assert [each.name for each in (await live.status()).workers] == ["w1"]


@scheduler_test()
async def test_a_run_goes_from_submission_to_its_target(live):
    ps, evaluator, workers, run_id = await a_training_run(live)
    for version in (2, 3):
        await evaluator.say(
            evaluator=pb.EvaluatorReport(
                run_id=run_id, version=version, loss=0.2, metric=0.95, metric_name="accuracy", samples=10
            )
        )
    await ps.until(lambda d: d.keep_best.version == 2)
    for worker in workers:
        await worker.until(lambda d: d.worker.action == D.IDLE and d.worker.run_id == run_id)
        await worker.say(worker=pb.WorkerReport(run_id=run_id, final=True, steps=7))
    await ps.until(lambda d: d.server.finished)
    assert (await ps.until(lambda d: "w1" in d.next.workers)).next.workers["w1"].action == D.TRAIN
    await ps.say(
        server=pb.ServerReport(run_id=run_id, seeded=True, finished=True, model_path="/m.safetensors")
    )
    status = await live.status_where(lambda s: s.phase == pb.Status.IDLE)
    assert status.outcome == pb.Status.REACHED
    assert status.reached
    assert status.model_path == "/m.safetensors"
    assert [worker.report.steps for worker in status.workers] == [7, 7]
    assert 0 < status.time_to_target_s <= status.elapsed_s


@scheduler_test()
async def test_the_next_run_needs_no_restart(live):
    ps, _, workers, first = await a_training_run(live)
    await live.stub.StopRun(pb.StopRunRequest())
    await ps.until(lambda d: d.server.finished)
    await ps.say(server=pb.ServerReport(run_id=first, seeded=True, finished=True))
    for worker in workers:
        await worker.say(worker=pb.WorkerReport(run_id=first, final=True))
    await live.status_where(lambda s: s.phase == pb.Status.IDLE)
    second = await live.submit(RUN.replace("first", "second"))
    found = await workers[0].until(lambda d: d.worker.run_id == second)
    assert found.worker.action == D.PREPARE


@scheduler_test()
async def test_the_first_report_must_be_a_hello(live):
    call = live.stub.Attend()
    await call.write(pb.Report(worker=pb.WorkerReport()))
    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "Hello" in await call.details()


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (pb.Hello(role=common.ROLE_WORKER, name="", incarnation="x"), "name"),
        (pb.Hello(role=common.ROLE_WORKER, name="a b", incarnation="x"), "name: 'a b'"),
        (pb.Hello(role=common.ROLE_WORKER, name="x" * 65, incarnation="x"), "name"),
        (pb.Hello(name="w1", incarnation="x"), "role"),
        (pb.Hello(role=common.ROLE_WORKER, name="w1"), "incarnation"),
    ],
)
def test_a_hello_that_says_too_little_is_refused(tmp_path, hello, says):
    async def body():
        async with live_scheduler(tmp_path) as live:
            call = live.stub.Attend()
            await call.write(pb.Report(hello=hello))
            assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert says in await call.details()
            assert not (await live.status()).workers

    asyncio.run(body())


@scheduler_test()
async def test_a_newer_process_takes_the_name_and_the_older_stream_is_aborted(live):
    older = await live.agent("worker", "w1", "one")
    newer = await live.agent("worker", "w1", "two")
    code, details = await older.end()
    assert code == grpc.StatusCode.ABORTED
    assert "newer process" in details
    assert not newer.call.done()
    again = live.stub.Attend()
    await again.write(pb.Report(hello=older.hello))
    assert await again.code() == grpc.StatusCode.ABORTED
    status = await live.status()
    assert [worker.attached for worker in status.workers] == [True]
    assert any("two devices call themselves 'w1'" in warning for warning in status.warnings)


@scheduler_test()
async def test_a_name_of_another_role_is_refused_as_a_matter_of_configuration(live):
    await live.agent("ps", "hub")
    call = live.stub.Attend()
    await call.write(pb.Report(hello=pb.Hello(role=common.ROLE_WORKER, name="hub", incarnation="x")))
    assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "parameter server" in await call.details()


@scheduler_test()
async def test_a_process_that_dials_again_gets_what_holds_and_its_older_stream_ends(live):
    _, _, workers, _ = await a_training_run(live)
    before = await workers[0].told(D.TRAIN)
    async with channels.connect(f"127.0.0.1:{live.port}") as channel:
        again = await live.agent("worker", "w1", channel=channel)
        after = await again.told(D.TRAIN)
        assert after.revision == before.revision
        assert after.trigger.grid.elapsed_s > before.trigger.grid.elapsed_s
        assert (await workers[0].end())[0] == grpc.StatusCode.ABORTED
        assert (await live.status()).workers[0].attached


@scheduler_test(lease_s=0.5)
async def test_an_agent_that_falls_silent_is_cut_off_when_its_lease_ends(live):
    silent = await live.agent("worker", "w1")
    lively = await live.agent("worker", "w2")
    lively.keep_saying(0.05, worker=pb.WorkerReport())
    code, details = await silent.end()
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "lease" in details
    assert [worker.name for worker in (await live.status()).workers] == ["w2"]


@scheduler_test(lease_s=0.6)
async def test_training_goes_on_without_a_worker_that_fell_silent(live):
    ps = await live.agent("ps", "ps")
    ps.keep_saying(0.05, server=pb.ServerReport())
    workers = [await live.agent("worker", name) for name in ("w1", "w2")]
    for worker in workers:
        worker.keep_saying(0.05, worker=pb.WorkerReport())
    run_id = await live.submit("task: digits\nsync: fake\nworkers: 2\n")
    await ps.say(server=pb.ServerReport(run_id=run_id, seeded=True))
    for worker in workers:
        await worker.say(worker=pb.WorkerReport(run_id=run_id, phase=W.READY))
    await live.status_where(lambda s: s.phase == pb.Status.TRAINING)
    workers[0].quiet()
    status = await live.status_where(lambda s: not s.workers[0].attached)
    assert status.phase == pb.Status.TRAINING
    workers[1].quiet()
    status = await live.status_where(lambda s: s.phase == pb.Status.WAITING)
    assert "no worker is left" in status.message
    back = await live.agent("worker", "w2")
    assert (await back.told(D.TRAIN)).run_id == run_id
    assert (await live.status()).phase == pb.Status.TRAINING


@scheduler_test()
async def test_a_cut_stream_shows_at_once_and_a_goodbye_removes_the_agent(live):
    w1 = await live.agent("worker", "w1")
    w2 = await live.agent("worker", "w2")
    w1.close()
    await live.status_where(lambda s: [w.attached for w in s.workers] == [False, True])
    await w2.say(goodbye=pb.Goodbye(reason="it stops"))
    assert (await w2.end())[0] == grpc.StatusCode.OK
    status = await live.status()
    assert [worker.name for worker in status.workers] == ["w1"]


@scheduler_test()
async def test_a_stream_ends_when_the_agent_has_nothing_more_to_say(live):
    w1 = await live.agent("worker", "w1")
    await w1.call.done_writing()
    assert (await w1.end())[0] == grpc.StatusCode.OK
    assert not (await live.status_where(lambda s: not s.workers[0].attached)).workers[0].attached


@scheduler_test()
async def test_agents_are_told_to_dial_again_when_the_scheduler_stops(live):
    w1 = await live.agent("worker", "w1")
    watch = live.stub.WatchStatus(pb.StatusRequest(every_s=0.05))
    assert await watch.read()
    live.service.close()
    assert (await w1.end())[0] == grpc.StatusCode.UNAVAILABLE
    assert await watch.code() == grpc.StatusCode.UNAVAILABLE


@scheduler_test()
async def test_two_hundred_agents_attend_without_a_thread_each(live):
    import threading

    before = threading.active_count()
    agents = await asyncio.gather(*(live.agent("worker", f"w{i}") for i in range(200)))
    assert len((await live.status()).workers) == 200
    assert threading.active_count() - before < 20
    run_id = await live.submit("task: digits\nsync: fake\nworkers: 200\n")
    await live.agent("ps", "ps")
    await asyncio.gather(*(agent.told(D.PREPARE) for agent in agents))
    assert (await live.status()).run_id == run_id


@scheduler_test()
async def test_an_agent_that_dials_again_and_again_leaves_nothing_behind(live):
    async def dial(number):
        agent = await live.agent("worker", "w1", f"process-{number // 3}")
        agent.close()
        await live.status_where(lambda s: not s.workers[0].attached)

    for number in range(5):
        await dial(number)
    before = len(asyncio.all_tasks())
    for number in range(5, 60):
        await dial(number)
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= before + 2
    assert len((await live.status()).workers) == 1


def test_an_agent_that_never_reads_is_cut_off():
    async def body():
        stream = Stream(pb.Hello(name="w1", incarnation="one"))
        for _ in range(QUEUED_DIRECTIVES + 50):
            stream.push(pb.Directive())
        assert stream.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        heard = 0
        while await stream.next() is not None:
            heard += 1
        assert heard == QUEUED_DIRECTIVES

    asyncio.run(body())


@scheduler_test(make_model=make_model)
async def test_rounds_are_drawn_closed_and_followed_by_the_next(live):
    """The parameter server's word that a gate has closed is what makes the next round."""
    ps = await live.agent("ps", "ps")
    names = ("w1", "w2", "w3")
    workers = {name: await live.agent("worker", name) for name in names}
    run_id = await live.submit("task: digits\nworkers: 3\nsync: {fedavg: {fraction: 0.3, tau: 4}}\n")
    report = pb.ServerReport(run_id=run_id, seeded=True)
    await ps.say(server=report)
    for worker in workers.values():
        await worker.told(D.PREPARE)
        await worker.say(worker=pb.WorkerReport(run_id=run_id, phase=W.READY))
    drawn = []
    for generation in range(1, 6):
        rules = await ps.until(lambda d, g=generation: d.server.generation == g)
        (one,) = rules.server.cohort
        assert rules.server.once
        train = await workers[one].until(lambda d, g=generation: d.worker.generation == g)
        assert (train.worker.action, train.worker.once, train.worker.trigger.steps) == (D.TRAIN, True, 4)
        if drawn and drawn[-1] != one:
            await workers[drawn[-1]].told(D.REST)
        drawn.append(one)
        report.generation, report.closed = generation, 1
        await ps.say(server=report)
    for name in set(names) - set(drawn[:1]):
        assert (await workers[name].told(D.REST)).batch == 32
    resting = next(name for name in names if name != drawn[-1])
    await workers[resting].say(worker=pb.WorkerReport(run_id=run_id, phase=W.RESTING))
    status = await live.status_where(
        lambda s: any(w.name == resting and w.report.phase == W.RESTING for w in s.workers)
    )
    assert status.phase == pb.Status.TRAINING
