"""A data set at the hub, for learners that hold none: the task `handed`, written by `offbeat samples`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from support.fleet import ONE_THREAD, TASKS


def handed(folder: Path, samples: int, features: int = 2) -> Path:
    """A file of so many samples; the first two features say the class, further ones make them large."""
    owner = folder / "owner"
    owner.mkdir()
    np.save(owner / "points.npy", np.random.default_rng(0).normal(size=(samples, features)))
    out = folder / "handed.safetensors"
    command = [sys.executable, "-m", "offbeat_cli.main", "samples", TASKS / "handed.py"]
    subprocess.run(
        [*map(str, command), "--data", str(owner), "--out", str(out)],
        check=True,
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.DEVNULL,
    )
    return out
