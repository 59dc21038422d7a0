"""Disks that are full or read-only: what was written stays, training goes on, somebody is told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from offbeat.v1 import scheduler_pb2 as pb
from support.fleet import Fleet, Phase
from support.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


class SmallDisk:
    """A file system of its own, of 1 MiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Take all that is free now."""
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def free(self) -> None:
        self._filler.unlink()

    def protect(self) -> None:
        self._mount("-o", "remount,ro")

    def unprotect(self) -> None:
        self._mount("-o", "remount,rw")

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "a file system cannot be mounted", "run as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True, text=True
    )
    need(not done.returncode, f"a file system cannot be mounted: {done.stderr}", "allow mount")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize(
    ("breaks", "mends", "when"),
    [("fill", "free", "in the run"), ("protect", "unprotect", "after the end")],
    ids=["full", "read-only"],
)
def test_where_checkpoints_cannot_be_written_the_old_one_stays_and_training_goes_on(
    fleet: Fleet, disk: SmallDisk, breaks: str, mends: str, when: str
) -> None:
    fleet.end("parameter-server")
    fleet.start_server(folder=disk.folder)
    run = fleet.submit(checkpoint_every_s=0.3)
    fleet.until_trains(2)

    def metric(name: str) -> float:
        return fleet.metrics("parameter-server")[f"offbeat_ps_checkpoint_{name}"]

    fleet.eventually(lambda: metric("epoch") > 1, "checkpoints are written")
    # A file that is replaced meanwhile leaves room for the next: again, until there is none.
    fleet.eventually(lambda: getattr(disk, breaks)() or metric("failing") == 1, "the alert rises")
    checkpoint = disk.folder / run / "checkpoint.safetensors"
    old = checkpoint.read_bytes()
    assert load_file(checkpoint)
    epoch = metric("epoch")
    status = fleet.until_commits(10)
    assert status.phase == Phase.TRAINING
    assert checkpoint.read_bytes() == old
    assert metric("epoch") == epoch
    assert metric("failures_total") >= 1
    assert fleet.log("parameter-server").count(f"cannot write {disk.folder / run}") == 1

    if when == "in the run":
        getattr(disk, mends)()
        fleet.eventually(lambda: metric("failing") == 0 and metric("epoch") > epoch, "it is written again")
        status = fleet.stop_run()
    else:
        ended = fleet.stop_run()
        assert ended.outcome == pb.Status.STOPPED
        assert not ended.model_path
        assert any("the final model could not be written" in warning for warning in ended.warnings)
        assert checkpoint.read_bytes() == old
        getattr(disk, mends)()
        status = fleet.until(lambda s: s.model_path, "the model is written when it can be")
        assert not any("the final model" in warning for warning in status.warnings)
    assert load_file(status.model_path).keys() == load_file(checkpoint).keys()


def test_a_full_disk_stops_the_log_of_events_and_not_the_run(fleet: Fleet, disk: SmallDisk) -> None:
    fleet.end("scheduler")
    fleet.start_scheduler(folder=disk.folder)
    run = fleet.submit(workers=3)
    fleet.until_trains(3)
    disk.fill()
    status = fleet.until(lambda s: any("event log stopped" in w for w in s.warnings), "it is said")
    status = fleet.until_commits(10)
    assert status.phase == Phase.TRAINING
    assert len([warning for warning in status.warnings if "No space left" in warning]) == 1
    assert fleet.log("scheduler").count("event log stopped") == 1
    status = fleet.stop_run()
    assert Path(status.model_path).exists()
    lines = (disk.folder / run / "events.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines[:-1]]
    assert fleet.log("scheduler").count("Traceback") == 0

    disk.free()
    run = fleet.submit(workers=3)
    fleet.until_trains(3)
    assert not fleet.stop_run().warnings
    assert json.loads((disk.folder / run / "events.jsonl").read_text().splitlines()[-1])
