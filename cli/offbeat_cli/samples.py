"""`offbeat samples`: a task's training data as a file, for a parameter server that deals them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from offbeat_cli.demo_plan import find_task, task_options
from offbeat_core.errors import OffbeatError
from offbeat_worker import tasks
from offbeat_worker.tasks.export import export

NEEDED = ("torch", "safetensors")


def samples(task: str, out: Path, *, data: Path, options: Sequence[str] = (), seed: int = 1) -> int:
    """Write the file; returns the exit code."""
    missing = [library for library in NEEDED if importlib.util.find_spec(library) is None]
    if missing:
        raise OffbeatError(
            f"samples: {', '.join(missing)} not installed here",
            "a task's data are loaded as on a device: pip install 'offbeat[worker,cli]'",
        )
    name, file = find_task(task, "TASK")
    if out.is_dir():
        raise OffbeatError(f"--out: {out} is a folder", f"name a file, such as {out / name}.safetensors")
    loaded = tasks.load(name, [file] if file else [])
    written = export(loaded, data, out, options=task_options(options), seed=seed)
    shown = ", ".join(f"{field.dtype} {list(field.shape)}" for field in written.fields)
    print(f"{written.samples:,} samples ({shown}), {written.size / 2**20:.1f} MiB: {out}")
    print(f"hand them to the parameter server: offbeat-ps --samples {out}")
    return 0
