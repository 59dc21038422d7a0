"""Small rules of the worker: which directive holds, what an error means, whether it is alive."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from offbeat.v1 import common_pb2 as pb
from offbeat_core.errors import OffbeatError
from offbeat_worker import health
from offbeat_worker.bulk import Verdict, judge
from offbeat_worker.directives import DirectiveBook
from offbeat_worker.outage import Outage


def _directive(revision: int) -> pb.WorkerDirective:
    return pb.WorkerDirective(revision=revision, generation=revision)


def test_the_highest_revision_holds_by_whichever_way_it_came() -> None:
    book = DirectiveBook(pb.WorkerDirective())
    book.welcome("s1")
    assert [book.offer(_directive(n)) for n in (4, 2, 4, 5)] == [True, False, False, True]
    assert book.current.revision == 5


def test_a_new_scheduler_counts_anew_and_the_old_directive_holds_until_it_speaks() -> None:
    book = DirectiveBook(pb.WorkerDirective())
    book.welcome("s1")
    book.offer(_directive(40))
    book.welcome("s1")  # the same one, after a broken stream
    assert not book.offer(_directive(40))
    book.welcome("s2")
    assert book.current.revision == 40
    assert book.offer(_directive(1))
    assert not book.offer(_directive(1))


def test_a_reply_with_the_directive_of_a_scheduler_that_is_gone_does_not_outrank_the_new_one() -> None:
    book = DirectiveBook(pb.WorkerDirective())
    book.welcome("s1")
    assert book.offer(_directive(40))
    assert book.offer_in_reply(_directive(41))
    book.welcome("s2")
    assert not book.offer_in_reply(_directive(42))
    assert book.offer(_directive(1))
    assert book.offer_in_reply(_directive(2))


def _error(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (_error(grpc.StatusCode.UNAVAILABLE), Verdict.AGAIN),
        (_error(grpc.StatusCode.INTERNAL, "Internal error from Core"), Verdict.UNCLEAR),
        (_error(grpc.StatusCode.RESOURCE_EXHAUSTED), Verdict.AGAIN),
        (TimeoutError(), Verdict.AGAIN),
        (EOFError(), Verdict.AGAIN),
        (_error(grpc.StatusCode.FAILED_PRECONDITION, "no model yet"), Verdict.NOT_YET),
        (_error(grpc.StatusCode.FAILED_PRECONDITION, "run 'a' is not known here"), Verdict.NOT_YET),
        (_error(grpc.StatusCode.FAILED_PRECONDITION, "manifest differs: bias"), Verdict.WRONG),
        (_error(grpc.StatusCode.FAILED_PRECONDITION, "initial_model: /x: no such file"), Verdict.WRONG),
        (
            _error(grpc.StatusCode.FAILED_PRECONDITION, "worker 'w' has not pulled the model"),
            Verdict.NOT_PULLED,
        ),
        (_error(grpc.StatusCode.ABORTED), Verdict.SUPERSEDED),
        (_error(grpc.StatusCode.PERMISSION_DENIED, "worker 'w' is quarantined"), Verdict.WRONG),
        (_error(grpc.StatusCode.INVALID_ARGUMENT), Verdict.WRONG),
    ],
)
def test_what_an_error_means(error: BaseException, verdict: Verdict) -> None:
    assert judge(error) is verdict


def test_an_outage_is_said_once_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("scheduler 10.0.0.1:50050")
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            outage.failed("UNAVAILABLE")
        outage.over()
        outage.over()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert outage.failures == 100


def test_an_outage_is_over_once_every_kind_of_call_works_again(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("parameter server 10.0.0.1:50051")
    with caplog.at_level(logging.INFO):
        outage.failed("UNAVAILABLE", "commit")
        outage.over("lease")
        outage.failed("UNAVAILABLE", "lease")
        outage.over("lease")
        assert len(caplog.records) == 1
        outage.over("commit")
    assert len(caplog.records) == 2


def test_health_is_the_age_of_the_file_in_the_machines_own_time(tmp_path: Path) -> None:
    path = tmp_path / "health"
    health.write(path, 1000.0)
    health.check(path, 1000.0 + health.STALE_S)
    with pytest.raises(OffbeatError, match="written 61 s ago"):
        health.check(path, 1061.0)
    with pytest.raises(OffbeatError, match="is old"):
        health.check(path, 5.0)  # the machine started anew
    path.write_text("")
    with pytest.raises(OffbeatError, match="health_file"):
        health.check(path, 1000.0)
    with pytest.raises(OffbeatError, match="is not there"):
        health.check(tmp_path / "missing", 0.0)
    with pytest.raises(OffbeatError, match="is not set"):
        health.check(None, 0.0)


def test_health_file_is_kept_fresh_and_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "health"

    async def scenario() -> None:
        task = asyncio.create_task(health.keep(path))
        while not path.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert not path.exists()


def test_a_health_file_that_can_not_be_written_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "WRITE_S", 0.01)
    blocked = tmp_path / "folder"
    blocked.write_text("")
    path = blocked / "health"

    async def scenario() -> None:
        task = asyncio.create_task(health.keep(path))
        await asyncio.sleep(0.1)
        blocked.unlink()
        while not path.exists():
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert len([r for r in caplog.records if "health_file: cannot write" in r.getMessage()]) == 1


def test_health_check_imports_neither_torch_nor_grpc(tmp_path: Path) -> None:
    path = tmp_path / "health"
    code = (
        "import sys, time; from offbeat_worker.main import main; from offbeat_worker import health;"
        f"from pathlib import Path; health.write(Path({str(path)!r}), time.monotonic());"
        f"assert main(['--health', '--health-file', {str(path)!r}]) == 0;"
        "print(sorted({'torch', 'grpc', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from offbeat_worker.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: print('torch' in sys.modules, end.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 0"
    assert "--step-seconds" in done.stdout
