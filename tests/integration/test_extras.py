"""Each extra installs alone into a clean environment, and brings what its command needs."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IN_CI = os.environ.get("OFFBEAT_CI") == "1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that users install, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        _not_here(f"the wheel could not be built: {done.stderr[-500:] or done.stdout[-500:]}")
    return next(folder.glob("*.whl"))


def _not_here(reason):
    """Skip where there is no package index, except in CI, which must have one."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


# extra -> (what must work, modules that must not be there)
EXTRAS = {
    "ps": ("import offbeat_ps.main", ["offbeat-ps", "--help"], ["torch", "scipy", "typer", "sklearn"]),
    "scheduler": (
        "import offbeat_scheduler.main",
        ["offbeat-scheduler", "--help"],
        ["torch", "typer", "sklearn"],
    ),
    "worker": ("import offbeat_worker.main, torch", ["offbeat-worker", "--help"], ["typer", "matplotlib"]),
    "cli": ("import offbeat_cli.main", ["offbeat", "--help"], ["torch", "grpc_health"]),
    "fleet": ("import docker", None, ["torch"]),
    "dev": ("import pytest, hypothesis, mypy, grpc_tools", None, ["torch"]),
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_brings_what_its_command_needs_and_no_more(extra, wheel, tmp_path):
    works, command, absent = EXTRAS[extra]
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    python = str(bin_folder / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{wheel}[{extra}]"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        # Resolution errors are ours; a missing index is the machine's.
        if "ResolutionImpossible" in done.stderr or "conflict" in done.stderr:
            pytest.fail(done.stderr[-2000:])
        _not_here(f"pip could not install offbeat[{extra}]: {done.stderr[-500:]}")
    subprocess.run([python, "-m", "pip", "check"], check=True)
    subprocess.run([python, "-c", works], check=True, cwd=tmp_path)
    if command:
        helped = subprocess.run(
            [str(bin_folder / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert "usage" in helped.stdout.lower()
    for module in absent:
        found = subprocess.run(
            [python, "-c", f"import {module}"], capture_output=True, check=False, cwd=tmp_path
        )
        assert found.returncode, f"offbeat[{extra}] brings {module}"
