"""`offbeat-scheduler` as a process: starts, says where, ends in order, names what is wrong."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import grpc
import pytest

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc
from offbeat_core import channels
from offbeat_core.config import SchedulerSettings
from offbeat_core.errors import guard
from offbeat_scheduler.main import serve

COMMAND = [sys.executable, "-m", "offbeat_scheduler.main"]
RUN = "name: first\ntask: digits\nworkers: 2\nsync: adsp\ntarget: {accuracy: 0.95}\n"
DEADLINE_S = 60


def start(folder, *options):
    ready = folder / "ready.json"
    process = subprocess.Popen(
        [
            *COMMAND,
            *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
            *("--folder", str(folder / "runs"), "--ready-file", str(ready), *options),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + DEADLINE_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"not ready: {process.communicate()[1]}")
        time.sleep(0.05)
    return process, json.loads(ready.read_text())


def end(process, number=signal.SIGTERM):
    """(exit code, its log, seconds that it took)."""
    began = time.monotonic()
    process.send_signal(number)
    log = process.communicate(timeout=DEADLINE_S)[1]
    return process.returncode, log, time.monotonic() - began


def run(*options, **environment):
    return subprocess.run(
        [*COMMAND, *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **environment},
    )


@pytest.fixture
def running(tmp_path):
    process, facts = start(tmp_path)
    yield process, facts, tmp_path
    process.kill()
    process.communicate()


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
        return reply.read().decode()


def test_it_serves_is_healthy_and_ends_in_order_while_agents_and_watchers_are_attached(running):
    process, facts, _ = running
    with channels.connect_blocking(f"127.0.0.1:{facts['port']}") as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        hello = pb.Hello(role=common.ROLE_WORKER, name="w1", incarnation="one")
        reports = iter([pb.Report(hello=hello)])

        def then_wait():
            yield from reports
            time.sleep(DEADLINE_S)

        attending = stub.Attend(then_wait())
        assert next(attending).welcome.report_every_s == 1.0
        watching = stub.WatchStatus(pb.StatusRequest())
        assert next(watching).workers[0].name == "w1"
        assert run("--health", "--listen", f"127.0.0.1:{facts['port']}").returncode == 0
        code, log, seconds = end(process)
        assert code == 0
        assert seconds < 10
        assert "Traceback" not in log
        for stream in (attending, watching):
            with pytest.raises(grpc.RpcError):
                list(stream)
    unhealthy = run("--health", "--listen", f"127.0.0.1:{facts['port']}")
    assert unhealthy.returncode == 1
    assert "health" in unhealthy.stderr


def test_a_run_can_make_it_load_no_file_but_those_that_its_configuration_allows(tmp_path):
    """A model's file is executed, and a run comes over the network."""
    allowed, mark = tmp_path / "models", tmp_path / "executed"
    allowed.mkdir()
    source = (
        "from offbeat_scheduler.sync import Plan, SyncModel\n"
        f"open({str(mark)!r}, 'a').write(__file__ + '\\n')\n"
        "class Mine(SyncModel):\n    def decide(self, fleet): return Plan({})\n"
    )
    (tmp_path / "outside.py").write_text(source)
    (allowed / "mine.py").write_text(source)
    process, facts = start(tmp_path, "--models", str(allowed))
    try:
        with channels.connect_blocking(f"127.0.0.1:{facts['port']}") as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            for outside in (f"{tmp_path}/outside.py:Mine", "../outside.py", "mine.py/../../outside.py:Mine"):
                with pytest.raises(grpc.RpcError) as error:
                    stub.SubmitRun(pb.SubmitRunRequest(run_yaml=f"task: digits\nsync: '{outside}'\n"))
                assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert "none of the models that this scheduler may load" in error.value.details()
            assert not mark.exists()
            stub.SubmitRun(pb.SubmitRunRequest(run_yaml="task: digits\nsync: mine.py:Mine\n"))
            assert mark.read_text() == f"{allowed / 'mine.py'}\n"
            assert "mine.py" in stub.GetStatus(pb.StatusRequest()).sync
    finally:
        process.kill()
        process.communicate()


def test_a_run_file_is_submitted_at_the_start_and_shows_in_the_metrics(tmp_path):
    (tmp_path / "run.yaml").write_text(RUN)
    process, facts = start(tmp_path, "--run", str(tmp_path / "run.yaml"))
    try:
        metrics = scrape(facts["metrics_port"])
        assert 'offbeat_phase{phase="waiting"} 1.0' in metrics
        assert 'offbeat_phase{phase="idle"} 0.0' in metrics
        assert "offbeat_target_metric 0.95" in metrics
        assert 'sync="adsp"' in metrics
        code, log, _ = end(process, signal.SIGINT)
        assert code == 0
        assert "0 of 2 workers ready" in log
        assert "unfinished" in log
        (folder,) = (tmp_path / "runs").iterdir()
        assert folder.name.startswith("first-")
        assert {path.name for path in folder.iterdir()} == {"events.jsonl", "run.yaml"}
    finally:
        process.kill()
        process.communicate()


def test_a_workers_series_come_with_it_and_go_with_it(running):
    _, facts, _ = running
    with channels.connect_blocking(f"127.0.0.1:{facts['port']}") as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        said = []

        def reports():
            yield pb.Report(
                hello=pb.Hello(role=common.ROLE_WORKER, name="w1", incarnation="one", shard=1, shards=2)
            )
            while not said:
                time.sleep(0.02)
            yield pb.Report(goodbye=pb.Goodbye())

        attending = stub.Attend(reports())
        next(attending)
        metrics = scrape(facts["metrics_port"])
        for name in ("steps_total", "commits_total", "step_seconds", "commit_seconds", "staleness"):
            assert f'offbeat_worker_{name}{{worker="w1"}}' in metrics
        assert 'offbeat_worker_time_seconds_total{share="wait",worker="w1"}' in metrics
        said.append(True)
        list(attending)
        assert 'worker="w1"' not in scrape(facts["metrics_port"])


async def attend(ready):
    """One agent that says Hello and no more."""
    while not ready.exists():
        await asyncio.sleep(0.02)
    async with channels.connect(f"127.0.0.1:{json.loads(ready.read_text())['port']}") as channel:
        call = scheduler_pb2_grpc.SchedulerStub(channel).Attend()
        await call.write(pb.Report(hello=pb.Hello(role=common.ROLE_WORKER, name="w", incarnation="1")))
        await asyncio.sleep(DEADLINE_S)


@pytest.mark.parametrize("where", ["hub.Hub._tick", "main._tell_how_to_fetch"])
def test_a_mistake_in_what_runs_in_the_background_ends_the_process_with_exit_code_1(
    tmp_path, monkeypatch, capsys, where
):
    """A scheduler whose leases never end would be worse than none."""

    def mistaken(*_):
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(f"offbeat_scheduler.{where}", mistaken)
    ready = tmp_path / "ready.json"
    settings = SchedulerSettings(
        listen="127.0.0.1:0",
        metrics_listen="",
        folder=tmp_path,
        ready_file=ready,
        lease_s=0.5,
        report_every_s=0.2,
        fetch_command="cp {path} ." if where.startswith("main") else "",
    )

    async def body():
        agent = asyncio.create_task(attend(ready))
        try:
            return await asyncio.wait_for(serve(settings, asyncio.Event()), DEADLINE_S)
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)

    assert guard(lambda: asyncio.run(body())) == 1
    assert "error: ValueError: a mistake of ours" in capsys.readouterr().err


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run("--listen", address, "--metrics-listen", "", "--folder", str(tmp_path))
        assert ended.returncode == 1
        assert f"listen: {address}: Address already in use" in ended.stderr
        assert "Traceback" not in ended.stderr
        ended = run("--listen", "127.0.0.1:0", "--metrics-listen", address, "--folder", str(tmp_path))
        assert ended.returncode == 1
        assert f"metrics_listen: {address}" in ended.stderr


@pytest.mark.parametrize(
    ("run_yaml", "says"),
    [
        (None, "cannot read"),
        ("task: digits\ntarget: {accuracy: 2}\n", "target.accuracy: 2"),
        ("task: digits\nsync: nosuch\n", "'nosuch'"),
    ],
)
def test_a_run_file_that_does_not_hold_ends_the_start(tmp_path, run_yaml, says):
    path = tmp_path / "run.yaml"
    if run_yaml is not None:
        path.write_text(run_yaml)
    ended = run(
        *("--listen", "127.0.0.1:0", "--metrics-listen", "", "--folder", str(tmp_path / "runs")),
        *("--run", str(path)),
    )
    assert ended.returncode == 1
    assert says in ended.stderr
    assert str(path) in ended.stderr or "sync" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_plaintext_port_that_others_can_reach_must_be_allowed(tmp_path):
    ended = run("--listen", "0.0.0.0:0", "--metrics-listen", "", "--folder", str(tmp_path))
    assert ended.returncode == 1
    assert "allow_plaintext" in ended.stderr


def test_options_come_from_variables_too(tmp_path):
    ended = run(OFFBEAT_LISTEN="nonsense", OFFBEAT_FOLDER=str(tmp_path))
    assert ended.returncode == 1
    assert "listen" in ended.stderr
    assert "nonsense" in ended.stderr
