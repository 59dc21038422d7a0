"""`offbeat-ps` as a process: start, health, metrics, end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2_grpc as rpc
from offbeat.v1 import scheduler_pb2 as control
from offbeat.v1 import scheduler_pb2_grpc as control_rpc
from offbeat_core import channels
from offbeat_core.config import ParameterServerSettings
from offbeat_core.errors import guard
from offbeat_ps.main import serve

PATIENCE_S = 60.0


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "offbeat_ps.main", *options]


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        command(
            *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
            *("--folder", str(tmp_path / "files"), "--ready-file", str(ready), *options),
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process, json.loads(ready.read_text())
    finally:
        process.kill()
        process.communicate()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*options), capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ}, check=False
    )


def test_it_starts_is_well_and_ends_on_sigterm(tmp_path: Path) -> None:
    with started(tmp_path, "--scheduler", "127.0.0.1:1") as (process, facts):
        assert facts["pid"] == process.pid
        assert run("--health", "--listen", f"127.0.0.1:{facts['port']}").returncode == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{facts['metrics_port']}/metrics") as reply:
            assert "offbeat_ps_scheduler_attached 0.0" in reply.read().decode()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, log
        assert "Traceback" not in log
    assert run("--health", "--listen", f"127.0.0.1:{facts['port']}").returncode == 1


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, option: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = {"--listen": "127.0.0.1:0", "--metrics-listen": "127.0.0.1:0", option: address}
        ended = run("--folder", str(tmp_path), *(part for pair in options.items() for part in pair))
    assert ended.returncode == 1
    field = option.removeprefix("--").replace("-", "_")
    assert f"error: {field}: {address}: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run("--listen", "127.0.0.1:0", "--metrics-listen", "", "--folder", str(tmp_path / "file" / "x"))
    assert ended.returncode == 1
    assert "error: folder: cannot make" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "samples: there is no file"), (b"no tensors", "is not a safetensors file")],
)
def test_a_data_set_that_cannot_be_read_is_a_clear_error(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "samples"
    if content is not None:
        file.write_bytes(content)
    options = ("--folder", str(tmp_path / "files"), "--listen", "127.0.0.1:0", "--samples", str(file))
    ended = subprocess.run(command(*options), capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert "error: samples: " in ended.stderr
    assert said in ended.stderr
    assert "make one with: offbeat samples TASK --out FILE" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_mistake_in_the_loop_that_ends_leases_ends_the_process_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server whose gates never release would be worse than none."""

    def mistaken(*_: Any) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr("offbeat_ps.run.Run.tick", mistaken)

    async def body() -> int:
        server = channels.make_server()
        control_rpc.add_SchedulerServicer_to_server(OneRun(), server)
        port = channels.listen(server, "127.0.0.1:0")
        await server.start()
        settings = ParameterServerSettings(
            listen="127.0.0.1:0", metrics_listen="", folder=tmp_path, scheduler=f"127.0.0.1:{port}"
        )
        try:
            return await asyncio.wait_for(serve(settings, asyncio.Event()), PATIENCE_S)
        finally:
            await server.stop(0)

    assert guard(lambda: asyncio.run(body())) == 1
    assert "error: ValueError: a mistake of ours" in capsys.readouterr().err


class OneRun(control_rpc.SchedulerServicer):
    """A scheduler with one run, for ever."""

    async def Attend(self, requests: Any, context: Any) -> None:
        await context.read()
        await context.write(control.Directive(welcome=control.Welcome(scheduler_incarnation="s")))
        gate, fold = common.Gate(slack=0), common.Fold(when=common.Fold.AT_GATE)
        await context.write(
            control.Directive(
                server=common.ServerDirective(run_id="run-1", revision=1, lease_s=60, gate=gate, fold=fold)
            )
        )
        async for _ in requests:
            pass


def test_on_sigterm_a_checkpoint_is_written_and_held_commits_are_sent_away(tmp_path: Path, ps: Any) -> None:
    """The whole process, with one worker held at the barrier and one that is slow."""

    async def body() -> None:
        server = channels.make_server()
        control_rpc.add_SchedulerServicer_to_server(OneRun(), server)
        port = channels.listen(server, "127.0.0.1:0")
        await server.start()
        with started(tmp_path, "--scheduler", f"127.0.0.1:{port}") as (process, facts):
            async with channels.connect(f"127.0.0.1:{facts['port']}") as channel:
                served = ps.client(rpc.ParameterServerStub(channel))
                await ps.patiently(served.seed)
                a, b = await served.joined("a", "b")
                await asyncio.gather(*(caller.commit(np.ones(6, "<f4")) for caller in (a, b)))
                held = asyncio.create_task(a.commit(np.full(6, 3, "<f4")))
                metrics = f"http://127.0.0.1:{facts['metrics_port']}/metrics"
                text = ""
                while "offbeat_ps_commits_held 1.0" not in text:
                    text = await asyncio.to_thread(lambda: urllib.request.urlopen(metrics).read().decode())
                assert 'offbeat_ps_commits_total{worker="a"} 2.0' in text
                assert "offbeat_ps_active_trainers 2.0" in text
                assert "offbeat_ps_gates 1.0" in text
                assert "offbeat_ps_updates_waiting 1.0" in text
                assert "offbeat_ps_checkpoint_epoch 1.0" in text
                assert "offbeat_ps_checkpoint_failing 0.0" in text
                assert "offbeat_ps_scheduler_attached 1.0" in text
                process.send_signal(signal.SIGTERM)
                async with ps.refused("UNAVAILABLE", "the parameter server is stopping"):
                    await held
                _, log = await asyncio.to_thread(process.communicate, None, PATIENCE_S)
                assert process.returncode == 0, log
                assert "Traceback" not in log
        await server.stop(0)
        saved = load_file(tmp_path / "files" / "run-1" / "checkpoint.safetensors")
        np.testing.assert_array_equal(saved["bias"], [-1, -1])
        np.testing.assert_array_equal(saved["offbeat.waiting"], np.full(6, 3))

    asyncio.run(body())
