"""What the operator's command calls, over real gRPC."""

import asyncio
import json

import grpc
import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.config import RunSettings, parse_yaml, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.directives import Wording
from offbeat_scheduler.run import Run
from offbeat_scheduler.submission import read_run
from support.scheduler_live import live_scheduler

RUN = "task: digits\nsync: fake\nworkers: 3\n"


def with_scheduler(folder, test, **options):
    async def body():
        async with live_scheduler(folder, **options) as live:
            return await asyncio.wait_for(test(live), 60)

    return asyncio.run(body())


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "task: is missing"),
        ("workers: 2\n", "task: is missing"),
        (RUN + "wokers: 2\n", "did you mean 'workers'?"),
        (RUN + "workers: [\n", "not valid YAML"),
        ("- a\n- b\n", "mapping"),
        (RUN + "target: {accuracy: 1.5}\n", "target.accuracy: 1.5"),
        (RUN + "target: {accuracy: 95}\n", "target.accuracy: 95"),
        (RUN + "target: {loss: -1}\n", "target.loss: -1"),
        (RUN + "target: {}\n", "give either accuracy or loss"),
        (RUN + "target: {accuracy: 0.9, loss: 0.1}\n", "give either accuracy or loss"),
        (RUN + "target: {accuracy: 0.9}\nevaluate: {required: false}\n", "evaluator"),
        (RUN + "check_period_s: 0\n", "check_period_s"),
        (RUN.replace("fake", "adps"), "'adps' is not a synchronization model"),
        (RUN + "# " + "x" * 300_000, "characters"),
    ],
)
def test_a_run_that_does_not_hold_is_refused_with_field_value_and_remedy(tmp_path, text, says):
    async def test(live):
        code, details = await refusal(live.stub.SubmitRun(pb.SubmitRunRequest(run_yaml=text)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert says in details
        assert "Traceback" not in details
        assert (await live.status()).run_id == ""

    with_scheduler(tmp_path, test)


def test_a_run_that_can_not_begin_by_a_mistake_of_ours_is_refused_too(tmp_path, monkeypatch):
    async def test(live):
        await live.agent("worker", "w1")
        await live.agent("ps", "ps")
        with monkeypatch.context() as patched:
            patched.setattr(Wording, "prepare", lambda *args, **more: 1 / 0)
            code, details = await refusal(live.stub.SubmitRun(pb.SubmitRunRequest(run_yaml=RUN)))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "the run was refused: it could not begin: ZeroDivisionError" in details
        assert "Traceback" not in details
        assert (await live.status()).phase == pb.Status.IDLE
        with monkeypatch.context() as patched:
            patched.setattr(Run, "__init__", lambda *args, **more: 1 / 0)
            code, details = await refusal(live.stub.SubmitRun(pb.SubmitRunRequest(run_yaml=RUN)))
        assert "the run could not be made: ZeroDivisionError" in details
        assert await live.submit(RUN), "the next may come"
        assert (await live.status()).phase == pb.Status.WAITING

    with_scheduler(tmp_path, test)


def test_a_model_that_raises_when_it_is_made_is_a_run_that_does_not_hold(tmp_path):
    def broken(spec, run):
        raise RuntimeError("no such luck")

    with pytest.raises(OffbeatError, match="sync: 'fake' can't be made: RuntimeError: no such luck"):
        read_run(RUN, broken)


def test_a_submitted_run_gets_an_id_of_its_name_and_its_effective_settings(tmp_path):
    async def test(live):
        reply = await live.stub.SubmitRun(pb.SubmitRunRequest(run_yaml="name: mine\n" + RUN))
        assert reply.run_id.startswith("mine-")
        settings = validate(RunSettings, parse_yaml(reply.effective_yaml, "reply"), "reply")
        assert settings.workers == 3
        assert settings.training.batch == 32
        assert "batch: 32" in reply.effective_yaml
        assert (tmp_path / reply.run_id / "run.yaml").read_text() == reply.effective_yaml
        assert (await live.status()).effective_yaml == reply.effective_yaml

    with_scheduler(tmp_path, test)


def test_a_run_without_a_name_is_called_after_its_task(tmp_path):
    async def test(live):
        assert (await live.submit(RUN)).startswith("digits-")

    with_scheduler(tmp_path, test)


def test_a_second_run_is_refused_while_one_is_active_and_it_says_which_and_what_to_do(tmp_path):
    async def test(live):
        first = await live.submit(RUN)
        code, details = await refusal(live.stub.SubmitRun(pb.SubmitRunRequest(run_yaml=RUN)))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert first in details
        assert "offbeat stop" in details
        assert (await live.stub.StopRun(pb.StopRunRequest())).run_id == first
        second = await live.submit(RUN)
        assert second != first

    with_scheduler(tmp_path, test)


def test_stopping_names_what_is_wrong(tmp_path):
    async def test(live):
        code, details = await refusal(live.stub.StopRun(pb.StopRunRequest()))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "no run is active" in details
        run_id = await live.submit(RUN)
        code, details = await refusal(live.stub.StopRun(pb.StopRunRequest(run_id="other-1")))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "'other-1'" in details
        assert run_id in details
        await live.stub.StopRun(pb.StopRunRequest(run_id=run_id))
        status = await live.status()
        assert (status.phase, status.outcome) == (pb.Status.IDLE, pb.Status.STOPPED)

    with_scheduler(tmp_path, test)


def test_watching_gives_a_status_now_and_one_after_each_change(tmp_path):
    async def test(live):
        watch = live.stub.WatchStatus(pb.StatusRequest(every_s=0.05))
        assert (await watch.read()).phase == pb.Status.IDLE
        run_id = await live.submit(RUN)
        status = await asyncio.wait_for(watch.read(), 10)
        assert (status.phase, status.run_id) == (pb.Status.WAITING, run_id)
        quiet = asyncio.ensure_future(watch.read())
        done, _ = await asyncio.wait({quiet}, timeout=0.5)
        assert not done, "nothing changed, so there is nothing to tell"
        await live.stub.StopRun(pb.StopRunRequest())
        assert (await asyncio.wait_for(quiet, 10)).outcome == pb.Status.STOPPED
        watch.cancel()

    with_scheduler(tmp_path, test)


def test_many_changes_at_once_make_few_statuses(tmp_path):
    async def test(live):
        worker = await live.agent("worker", "w1")
        watch = live.stub.WatchStatus(pb.StatusRequest(every_s=0.2))
        await watch.read()
        for steps in range(300):
            await worker.say(worker=pb.WorkerReport(steps=steps))
        reports = live.service.events
        seen = 0

        async def count():
            nonlocal seen
            while await watch.read() is not grpc.aio.EOF:
                seen += 1

        counting = asyncio.ensure_future(count())
        await live.status_where(lambda _: live.service.events >= 301)
        await asyncio.sleep(0.5)
        counting.cancel()
        watch.cancel()
        assert reports
        assert 1 <= seen < 100

    with_scheduler(tmp_path, test)


def test_the_event_log_of_a_run_can_be_read_and_followed_to_its_end(tmp_path):
    async def test(live):
        run_id = await live.submit(RUN)
        follow = live.stub.Events(pb.EventsRequest(follow=True))
        lines = [json.loads((await follow.read()).json) for _ in range(2)]
        assert [line["event"] for line in lines] == ["HubState", "RunSubmitted"]
        assert lines[1]["run_id"] == run_id
        await live.agent("worker", "w1")
        await live.stub.StopRun(pb.StopRunRequest())
        while (event := await asyncio.wait_for(follow.read(), 10)) is not grpc.aio.EOF:
            lines.append(json.loads(event.json))
        kinds = [line.get("event") for line in lines]
        assert "AgentJoined" in kinds
        assert "StopRequested" in kinds
        ends = [line for line in lines if line.get("decision") == "PhaseChanged"]
        assert (ends[-1]["phase"], ends[-1]["outcome"]) == ("idle", "stopped")
        again = live.stub.Events(pb.EventsRequest(run_id=run_id))
        whole = [json.loads(event.json) async for event in again]
        assert whole == lines

    with_scheduler(tmp_path, test)


@pytest.mark.parametrize("run_id", ["other-1", "../run", ""])
def test_a_run_without_a_log_is_not_found(tmp_path, run_id):
    async def test(live):
        call = live.stub.Events(pb.EventsRequest(run_id=run_id))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() == grpc.StatusCode.NOT_FOUND

    with_scheduler(tmp_path / "runs", test)


def test_a_scheduler_that_can_not_write_its_log_runs_all_the_same_and_says_so(tmp_path):
    (tmp_path / "file").write_text("")

    async def test(live):
        await live.submit(RUN)
        status = await live.status()
        assert status.phase == pb.Status.WAITING
        assert any("event log" in warning for warning in status.warnings)

    with_scheduler(tmp_path / "file" / "runs", test)
