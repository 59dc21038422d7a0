"""One worker against a hub made for the purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario with a hub; `settings` are the worker's."""

    # Here, not at the top: other tests of this folder need no torch.
    from support.worker_hub import FakeServer, play_with

    def run(scenario: Any, server: FakeServer | None = None, **settings: Any) -> None:
        asyncio.run(play_with(scenario, tmp_path, server or FakeServer(), settings))

    return run
