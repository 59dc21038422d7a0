"""The committed stubs are what protos/ generates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_stubs_are_fresh(tmp_path):
    protos = sorted((ROOT / "protos").rglob("*.proto"))
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}"),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"),
            *map(str, protos),
        ],
        check=True,
    )
    made = {
        path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*") if path.is_file()
    }
    assert made
    for name, text in made.items():
        assert (ROOT / "services/core" / name).read_text() == text, f"{name} is stale: run `make protos`"
