"""What computes: the GPU where torch can use one, else the CPU, and why."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_core.errors import OffbeatError
from offbeat_worker import cpus

# Files by which a machine or container shows an NVIDIA GPU, whether torch sees it or not.
_TRACES = ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvmap", "proc/driver/nvidia/version", "etc/nv_tegra_release")


@dataclass(frozen=True)
class Device:
    """A torch device with what the status says about it."""

    torch_device: torch.device
    description: str  # "cpu" or "cuda:0 NVIDIA ..."
    reason: str  # why not the GPU; empty where it is used or the CPU was asked for
    expected_gpu: bool  # there are traces of a GPU that is not used
    threads: int

    def to_proto(self) -> pb.DeviceInfo:
        return pb.DeviceInfo(
            machine=platform.machine(),
            compute=self.description,
            compute_reason=self.reason,
            threads=self.threads,
            torch_version=torch.__version__,
        )


def choose(wanted: str, threads: int, root: Path = Path("/")) -> Device:
    """The device for the configured `device` (auto, cpu, cuda, cuda:N) and `threads` (0: what is allowed).

    Raises OffbeatError where a GPU was asked for by name and is not usable.
    """
    count = threads or cpus.allowed(root)
    if wanted == "cpu":
        return Device(torch.device("cpu"), "cpu", "", False, count)
    reason = _why_no_cuda(torch.cuda.is_available, root)
    if not reason:
        device = torch.device("cuda:0" if wanted in ("auto", "cuda") else wanted)
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise OffbeatError(
                f"device: {wanted}: there are only {torch.cuda.device_count()} GPUs", "give cuda:0 or auto"
            )
        return Device(device, f"{device} {torch.cuda.get_device_name(device)}", "", False, count)
    if wanted != "auto":
        raise OffbeatError(f"device: {wanted}: {reason}", "give the container its GPU, or device: cpu")
    return Device(torch.device("cpu"), "cpu", reason, _traces(root) != "", count)


def _traces(root: Path) -> str:
    return next((f"/{trace}" for trace in _TRACES if (root / trace).exists()), "")


def _why_no_cuda(is_available: Callable[[], bool], root: Path) -> str:
    """Empty if CUDA can be used."""
    trace = _traces(root)
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA" + (
            f", though {trace} shows a GPU" if trace else ""
        )
    try:
        if is_available():
            return ""
    except RuntimeError as error:  # a driver that does not fit
        return str(error).partition("\n")[0]
    if trace:
        return (
            f"torch cannot use the GPU that {trace} shows (a driver too old for CUDA {torch.version.cuda}?)"
        )
    return "no GPU is visible here (a container needs it passed in: --gpus all, or runtime: nvidia)"


def prepare_thread(device: Device) -> None:
    """In the thread that computes: its threads, its GPU, and no denormal numbers (each costs a hundred)."""
    torch.set_num_threads(device.threads)
    if device.torch_device.type == "cuda":
        torch.cuda.set_device(device.torch_device)
    torch.set_flush_denormal(True)
