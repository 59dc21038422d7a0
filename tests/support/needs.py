"""What a test needs of its machine: without it the test is skipped, and in CI (OFFBEAT_CI=1) it fails."""

import os
import shutil
import subprocess

import pytest


def need(there: bool, what: str, remedy: str) -> None:
    if there:
        return
    if os.environ.get("OFFBEAT_CI") == "1":
        pytest.fail(f"{what} ({remedy})", pytrace=False)
    pytest.skip(f"{what} ({remedy})")


def need_engine() -> None:
    """A Docker engine with compose v2, and the base image or a registry to pull it from."""
    need(_runs("docker", "info"), "no Docker engine answers", "start one; on a bare Debian: .ci/engine start")
    need(_runs("docker", "compose", "version"), "docker has no compose v2", "install its plugin")
    base = "python:3.11-slim-bookworm"
    there = _runs("docker", "image", "inspect", base) or _runs("docker", "pull", "-q", base)
    need(there, f"the image {base} cannot be had", "without a registry: .ci/base-image")


def need_prometheus() -> None:
    need(bool(shutil.which("prometheus")), "no prometheus on the path", "apt-get install prometheus")


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
