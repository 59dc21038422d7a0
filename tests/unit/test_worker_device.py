"""What computes here, with how many threads, and whether torch can run at all."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from offbeat_core.errors import OffbeatError
from offbeat_worker import cpus, device, startcheck


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_quota_of_a_container_under_version_2(tmp_path: Path) -> None:
    _write(tmp_path / "proc/self/cgroup", "0::/\n")
    _write(tmp_path / "sys/fs/cgroup/cpu.max", "25000 100000\n")
    assert cpus.quota(tmp_path) == 0.25
    assert cpus.allowed(tmp_path) == 1


def test_the_narrowest_of_the_groups_above_holds(tmp_path: Path) -> None:
    _write(tmp_path / "proc/self/cgroup", "0::/pod/container\n")
    _write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    _write(tmp_path / "sys/fs/cgroup/pod/cpu.max", "150000 100000\n")
    assert cpus.quota(tmp_path) == 1.5


def test_quota_under_version_1_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    _write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n")
    _write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    _write(tmp_path / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert cpus.quota(tmp_path) == 0.5


@pytest.mark.parametrize("text", ["max 100000\n", "nonsense\n"])
def test_without_a_quota_affinity_alone_counts(tmp_path: Path, text: str) -> None:
    _write(tmp_path / "proc/self/cgroup", "0::/\n")
    _write(tmp_path / "sys/fs/cgroup/cpu.max", text)
    assert cpus.quota(tmp_path) == math.inf
    assert cpus.allowed(tmp_path) == len(os.sched_getaffinity(0))
    assert cpus.allowed(tmp_path / "no such machine") == len(os.sched_getaffinity(0))


def test_unlimited_version_1_group_does_not_limit(tmp_path: Path) -> None:
    _write(tmp_path / "proc/self/cgroup", "5:cpu:/\n")
    _write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    _write(tmp_path / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert cpus.quota(tmp_path) == math.inf


def test_cpu_is_used_without_a_word_where_it_was_asked_for(tmp_path: Path) -> None:
    found = device.choose("cpu", 3, tmp_path)
    assert (found.description, found.reason, found.threads) == ("cpu", "", 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_why_not_the_gpu_is_said_and_louder_where_there_are_traces_of_one(tmp_path: Path) -> None:
    found = device.choose("auto", 1, tmp_path)
    assert found.description == "cpu"
    assert found.reason
    assert not found.expected_gpu
    _write(tmp_path / "dev/nvidia0", "")
    found = device.choose("auto", 1, tmp_path)
    assert found.expected_gpu
    assert "/dev/nvidia0" in found.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpu_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OffbeatError, match="device: cuda:1: "):
        device.choose("cuda:1", 1, tmp_path)


def test_32_bit_systems_are_refused() -> None:
    with pytest.raises(OffbeatError, match="32-bit one \\(armv7l\\)"):
        startcheck.refuse_32_bit(4, "armv7l")
    startcheck.refuse_32_bit(8)


PI_4 = "processor : 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n"
PI_5 = "Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\n"


def test_instruction_sets_that_an_old_core_lacks_are_named() -> None:
    assert startcheck.missing_instructions("aarch64", PI_4) == ["atomics", "fphp", "asimdhp", "asimddp"]
    assert startcheck.missing_instructions("aarch64", PI_5) == []
    assert startcheck.missing_instructions("riscv64", "isa : rv64\n") == []


def test_torch_that_dies_of_an_illegal_instruction_is_an_error_that_names_them() -> None:
    die = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"]
    with pytest.raises(OffbeatError, match="it has no atomics, asimddp"):
        startcheck.try_torch(["atomics", "asimddp"], die)
    startcheck.try_torch([], die)  # nothing missing: not even tried
    startcheck.try_torch(["atomics"], [sys.executable, "-c", ""])
