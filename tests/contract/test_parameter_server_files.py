"""What the parameter server leaves on the disk, and what it does when it can't."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from offbeat.v1 import common_pb2 as common
from offbeat.v1 import parameter_server_pb2 as pb
from offbeat.v1 import scheduler_pb2 as control
from offbeat_core.manifest import Manifest, TensorSpec

Code = grpc.StatusCode


def metadata(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, "numpy") as file:
        return file.metadata()


def checkpoint(folder: Path, run: str) -> Path:
    return folder / run / "checkpoint.safetensors"


def test_version_0_is_on_the_disk_before_anybody_can_pull_it(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed(np.arange(6, dtype="<f4"))
        path = checkpoint(served.folder, ps.run)
        np.testing.assert_array_equal(load_file(path)["weight"], [[0, 1], [2, 3]])
        facts = metadata(path)
        assert (facts["run_id"], facts["version"], facts["epoch"]) == (ps.run, "0", "1")
        assert facts["manifest"] == served.manifest.digest

    ps(body)


def test_checkpoints_are_written_by_time_and_only_when_something_changed(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(checkpoint_every_s=0.2)
        await served.seed()
        (a,) = await served.joined("a")
        reply = await a.commit(np.ones(6, "<f4"))
        run = served.host.live.run
        await ps.eventually(lambda: run.durable_epoch >= reply.ack.checkpoint_epoch)
        path = checkpoint(served.folder, ps.run)
        np.testing.assert_array_equal(load_file(path)["bias"], [-1, -1])
        assert json.loads(metadata(path)["counts"])["a"]["sequence"] == 1
        written = run.durable_epoch
        await asyncio.sleep(0.6)
        assert run.durable_epoch == written
        assert (await a.renew()).durable_epoch == written

    ps(body)


def test_a_leaving_worker_can_ask_for_a_checkpoint(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run))
        await served.seed()
        (a,) = await served.joined("a")
        ack = (await a.commit(np.ones(6, "<f4"))).ack
        reply = await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run, worker="a"))
        assert (reply.epoch, reply.version) == (ack.checkpoint_epoch, 1)
        assert metadata(checkpoint(served.folder, ps.run))["version"] == "1"
        again = await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run, worker="a"))
        assert again.epoch == reply.epoch  # nothing changed: nothing is written

    ps(body)


def test_the_model_loads_into_torch_in_the_dtypes_of_the_device(ps: Any) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 3, dtype=torch.bfloat16)
            self.norm = torch.nn.BatchNorm1d(3, dtype=torch.float16)
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

    net = Net()
    names = dict(net.named_parameters())
    stats = {n: b for n, b in net.named_buffers() if b.is_floating_point()}

    def spec(name: str, tensor: Any) -> TensorSpec:
        return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))

    async def body(served: Any) -> None:
        served.manifest = Manifest(
            tuple(spec(n, p) for n, p in names.items()), tuple(spec(n, b) for n, b in stats.items())
        )
        served.direct(revision=1)
        await served.seed(np.linspace(-1, 1, served.manifest.elements).astype("<f4"))
        served.direct(revision=2, finished=True)
        await ps.eventually(lambda: served.host.live.finished)
        path = served.host.report().model_path
        outcome = net.load_state_dict(load_torch(path), strict=False)
        assert outcome.unexpected_keys == []
        assert set(outcome.missing_keys) <= {"norm.num_batches_tracked"}
        assert load_torch(path)["linear.weight"].dtype is torch.bfloat16
        assert load_torch(path)["scale"].shape == ()
        expected = torch.linspace(-1, 1, served.manifest.elements)[served.manifest.slices["linear.weight"]]
        assert torch.equal(net.linear.weight.flatten(), expected.to(torch.bfloat16))

    ps(body)


def test_what_waits_for_its_fold_is_in_the_checkpoint_but_not_in_the_final_model(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1, fold=common.Fold(when=common.Fold.EVERY_K, every_k=4))
        await served.seed()
        (a,) = await served.joined("a")
        await a.commit(np.full(6, 4, "<f4"))
        await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run))
        path = checkpoint(served.folder, ps.run)
        saved = load_file(path)
        np.testing.assert_array_equal(saved["bias"], [0, 0])
        np.testing.assert_array_equal(saved["offbeat.waiting"], np.ones(6))
        assert metadata(path)["waiting_weight"] == "0.25"
        served.direct(revision=2, finished=True)
        await ps.eventually(lambda: served.host.live.finished)
        final = load_file(served.host.report().model_path)
        assert set(final) == {"weight", "bias"}
        np.testing.assert_array_equal(final["bias"], [-1, -1])

    ps(body)


def test_exactly_the_model_that_the_evaluator_saw_is_kept_as_the_best(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        judge = served.caller("judge")
        seen = []
        for _ in range(3):
            seen.append(await judge.pull(role=common.ROLE_EVALUATOR))
            await a.commit(np.ones(6, "<f4"))
        for version, expected in ((1, 1), (2, 2), (0, 2)):  # version 0 is one too many back: nothing happens
            served.host.keep_best(control.KeepBest(run_id=ps.run, version=version, loss=0.5, metric=0.9))
            path = served.folder / ps.run / "best.safetensors"
            await ps.eventually(
                lambda path=path, expected=expected: (
                    path.exists() and metadata(path)["version"] == str(expected)
                )
            )
            np.testing.assert_array_equal(load_file(path)["bias"], seen[expected].values[4:])
        await ps.eventually(
            lambda: served.host.report().best_version == 2
        )  # the file is there a moment before
        report = served.host.report()
        assert report.best_model_path == str(path.resolve())
        assert (report.best_loss, report.best_metric) == (0.5, 0.9)
        assert report.best_missed == 0
        assert report.HasField("best_missed")

    ps(body)


def test_a_server_that_ends_right_after_the_run_has_written_its_model(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1)
        await served.seed()
        served.direct(revision=2, finished=True)

    ps(body)
    assert (ps.folder / ps.run / "model.safetensors").exists()


# ---- a disk that refuses ------------------------------------------------------------------


def test_a_disk_that_refuses_stops_no_training_and_is_said_once(
    ps: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "offbeat_ps")
    folder = tmp_path / "ps"
    folder.mkdir()
    blocked = folder / ps.run
    blocked.write_text("a file where the run's folder should be")

    async def body(served: Any) -> None:
        served.direct(checkpoint_every_s=0.05)
        assert (await served.seed()).accepted
        (a,) = await served.joined("a")
        for _ in range(5):
            assert (await a.commit(np.ones(6, "<f4"))).ack.outcome == pb.CommitAck.APPLIED
            await asyncio.sleep(0.1)
        live = served.host.live
        assert live.archive.folder.failing
        assert live.archive.folder.failures >= 2
        assert live.run.durable_epoch == 0
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
        async with ps.refused(Code.FAILED_PRECONDITION, "could not be written"):
            await served.stub.Checkpoint(pb.CheckpointRequest(run_id=ps.run))
        blocked.unlink()
        await ps.eventually(lambda: live.run.durable_epoch > 0)
        assert not live.archive.folder.failing
        np.testing.assert_array_equal(load_file(checkpoint(folder, ps.run))["bias"], [-5, -5])

    ps(body, folder)


def test_a_run_that_ends_on_a_full_disk_says_so_and_its_model_follows_when_there_is_room(
    ps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.live.RETRY_FILES_S", 0.1)
    folder = tmp_path / "ps"
    folder.mkdir()
    blocked = folder / ps.run
    blocked.write_text("")

    async def body(served: Any) -> None:
        served.direct(revision=1)
        await served.seed()
        served.direct(revision=2, finished=True)
        await ps.eventually(lambda: served.host.live.finished)
        report = served.host.report()
        assert report.model_path == ""
        assert "the final model could not be written" in report.error
        blocked.unlink()
        await ps.eventually(lambda: served.host.report().model_path)
        assert served.host.report().error == ""

    ps(body, folder)


def test_a_best_model_that_could_not_be_written_is_tried_again_and_until_then_the_older_one_is_reported(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.live.RETRY_FILES_S", 0.1)

    async def body(served: Any) -> None:
        served.direct()
        await served.seed()
        (a,) = await served.joined("a")
        judge = served.caller("judge")

        async def keep(version: int, metric: float) -> None:
            await judge.pull(role=common.ROLE_EVALUATOR)
            served.host.keep_best(control.KeepBest(run_id=ps.run, version=version, loss=1, metric=metric))

        await keep(0, 0.5)
        await ps.eventually(lambda: served.host.report().best_model_path)
        best = served.host.live.archive.folder.best
        best.unlink()
        best.mkdir()
        await a.commit(np.ones(6, "<f4"))
        await keep(1, 0.7)
        await ps.eventually(lambda: served.host.live.archive.folder.failures >= 2)
        assert (served.host.report().best_version, served.host.report().best_metric) == (0, 0.5)
        best.rmdir()
        await ps.eventually(lambda: served.host.report().best_version == 1)
        assert served.host.report().best_metric == 0.7
        assert metadata(best)["version"] == "1"

    ps(body)


def test_the_final_write_tries_the_best_model_too_and_says_where_it_fails(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat_ps.live.RETRY_FILES_S", 0.1)

    async def body(served: Any) -> None:
        served.direct(revision=1)
        await served.seed()
        await served.caller("judge").pull(role=common.ROLE_EVALUATOR)
        best = served.host.live.archive.folder.best
        best.mkdir()
        served.host.keep_best(control.KeepBest(run_id=ps.run, version=0, loss=1, metric=0.5))
        served.direct(revision=2, finished=True)
        await ps.eventually(lambda: served.host.report().finished)
        report = served.host.report()
        assert "the best model could not be written" in report.error
        assert report.model_path
        assert report.best_model_path == ""
        best.rmdir()
        await ps.eventually(lambda: served.host.report().error == "")
        assert served.host.report().best_model_path == str(best.resolve())

    ps(body)


# ---- starting from a file ------------------------------------------------------------------


def test_a_run_can_start_from_a_file_whatever_the_seeder_brings(ps: Any, tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file(
        {
            "bias": np.array([5, 6], "<f2"),
            "weight": np.array([[1, 2], [3, 4]], "<f4"),
            "frozen.weight": np.zeros(3, "<f4"),
            "num_batches_tracked": np.array(7),
        },
        path,
    )

    async def body(served: Any) -> None:
        served.direct(initial_model=str(path))
        assert (await served.seed(np.zeros(6, "<f4"))).accepted
        np.testing.assert_array_equal((await served.caller("a").pull()).values, [1, 2, 3, 4, 5, 6])

    ps(body)


def test_a_run_can_start_from_the_model_of_another_run_named_by_its_folder(ps: Any) -> None:
    async def body(served: Any) -> None:
        served.direct(revision=1)
        await served.seed(np.arange(6, dtype="<f4"))
        served.direct(revision=2, finished=True)
        await ps.eventually(lambda: served.host.live.finished)
        served.direct(revision=3, run_id="run-2", initial_model=f"{ps.run}/model.safetensors")
        await served.seed(np.zeros(6, "<f4"), run_id="run-2")
        np.testing.assert_array_equal((await served.caller("a").pull(run_id="run-2")).values, np.arange(6))

    ps(body)


def test_a_missing_initial_model_is_reported_before_anybody_seeds(ps: Any, tmp_path: Path) -> None:
    async def body(served: Any) -> None:
        served.direct(initial_model=str(tmp_path / "gone.safetensors"))
        await ps.eventually(lambda: served.host.report().error)
        assert "initial_model: cannot read" in served.host.report().error
        async with ps.refused(Code.FAILED_PRECONDITION, "initial_model: cannot read"):
            await served.seed()
        async with ps.refused(Code.FAILED_PRECONDITION, "no model yet"):
            await served.caller("a").pull()

    ps(body)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"weight": np.zeros((2, 2), "<f4")}, "has no tensor 'bias' [2]"),
        (
            {"weight": np.zeros((4, 1), "<f4"), "bias": np.zeros(2, "<f4")},
            "tensor 'weight' has shape [4, 1], the task's model [2, 2]",
        ),
        (
            {"weight": np.full((2, 2), np.nan, "<f4"), "bias": np.zeros(2, "<f4")},
            "tensor 'weight' has NaN or infinity in it",
        ),
    ],
)
def test_an_initial_model_that_does_not_fit_is_refused_with_what_differs(
    ps: Any, tmp_path: Path, tensors: dict[str, np.ndarray], said: str
) -> None:
    path = tmp_path / "start.safetensors"
    save_file(tensors, path)

    async def body(served: Any) -> None:
        served.direct(initial_model=str(path))
        async with ps.refused(Code.FAILED_PRECONDITION, said):
            await served.seed()
        assert said in served.host.report().error

    ps(body)
