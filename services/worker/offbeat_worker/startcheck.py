"""Before torch is imported: can it run on this machine at all?

- A 32-bit system (Raspberry Pi OS "armhf") has no torch; said in one line.
- On older ARM cores (Cortex-A53 and A72: Raspberry Pi 3 and 4) some torch wheels end the
  process with "Illegal instruction" and nothing else. There torch is tried in a process
  of its own first; if it dies of that, the instruction sets that the processor lacks are named.
"""

from __future__ import annotations

import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from offbeat_core.errors import OffbeatError

# What wheels of recent years were built for now and then, as /proc/cpuinfo calls it. A processor
# that has all of it needs no trial.
WANTED = {
    "aarch64": ("atomics", "fphp", "asimdhp", "asimddp"),
    "x86_64": ("sse4_2", "avx", "avx2", "fma"),
}

_TRIAL = (
    "import torch; x = torch.randn(64, 64, requires_grad=True); "
    "torch.nn.functional.linear(x, x).relu().sum().backward()"
)


def refuse_32_bit(pointer_bytes: int = struct.calcsize("P"), machine: str | None = None) -> None:
    """Raises OffbeatError on a 32-bit Python."""
    if pointer_bytes < 8:
        raise OffbeatError(
            f"device: this Python is a 32-bit one ({machine or platform.machine()}), and torch needs 64 bits",
            "install a 64-bit system (Raspberry Pi OS 64-bit); a 64-bit kernel alone is not enough",
        )


def missing_instructions(machine: str, cpuinfo: str) -> list[str]:
    """Instruction sets that this processor lacks, of those that a torch wheel may want."""
    wanted = WANTED.get(machine, ())
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("features", "flags"):
            present = set(value.split())
            return [name for name in wanted if name not in present]
    return []  # unknown: nothing can be said


def try_torch(missing: Iterable[str], command: list[str] | None = None) -> None:
    """Run torch in a process of its own where instruction sets are missing.

    Raises OffbeatError if it dies of an illegal instruction.
    """
    missing = list(missing)
    if not missing:
        return
    trial = subprocess.run(
        command or [sys.executable, "-c", _TRIAL],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if trial.returncode == -signal.SIGILL:
        raise OffbeatError(
            "device: the installed torch uses instructions that this processor lacks "
            f"(it has no {', '.join(missing)})",
            "install another version of torch: docs/devices.md names those tested on each device",
        )


def check(root: Path = Path("/")) -> None:
    """All checks of this module. Raises OffbeatError; may take as long as importing torch does."""
    refuse_32_bit()
    try:
        cpuinfo = (root / "proc/cpuinfo").read_text()
    except OSError:
        return
    try_torch(missing_instructions(platform.machine(), cpuinfo))
