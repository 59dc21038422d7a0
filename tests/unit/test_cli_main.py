"""The command line itself: quick help, versions, exit codes, errors without a traceback."""

import os
import subprocess
import sys

import pytest

from offbeat_core import __version__

HEAVY = ("torch", "grpc", "matplotlib", "numpy", "sklearn")


def _offbeat(*words, timeout=60):
    return subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", *words], capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.parametrize("words", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_needs_none_of_the_heavy_libraries(words):
    code = (
        f"import sys; sys.argv = ['offbeat', *{words!r}]\n"
        "from offbeat_cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_help_lists_the_commands_and_where_to_begin():
    shown = _offbeat("--help").stdout
    for command in (
        "demo",
        "run",
        "status",
        "stop",
        "report",
        "simulate",
        "plan",
        "samples",
        "replay",
        "example",
    ):
        assert command in shown
    assert "offbeat demo" in shown


def test_version():
    assert _offbeat("--version").stdout.strip() == f"offbeat {__version__}"


@pytest.mark.parametrize(
    "words",
    [["demos"], ["demo", "--speed", "1"], ["run"], ["demo", "--max-seconds", "soon"], ["status", "now"]],
)
def test_wrong_usage_ends_with_2(words):
    done = _offbeat(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--target-accuracy", "95"], "did you mean 0.95?"),
        (["demo", "--speeds", "fast"], "--speeds"),
        (["demo", "--task", "absent.py"], "absent.py: there is no such file"),
        (["run", "absent.yaml"], "absent.yaml"),
        (["status", "--scheduler", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["report", "absent"], "No such file"),
        (["replay", "absent"], "No such file"),
        (["example", "fleet"], "'fleet'"),
    ],
)
def test_a_bad_value_is_one_or_two_lines_and_ends_with_1(words, said):
    done = _offbeat(*words)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert done.stdout == ""


def test_debug_shows_where_an_error_happened_wherever_it_stands():
    assert "Traceback" in _offbeat("demo", "--speeds", "fast", "--debug").stderr
    assert "Traceback" in _offbeat("--debug", "demo", "--speeds", "fast").stderr


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    done = _offbeat("demo", "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: --out: {tmp_path}: is not empty (thesis.tex)",
        "choose another folder, or remove what is in it",
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    done = _offbeat("demo", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 1
    assert "--out: " in done.stderr
    assert "Not a directory" in done.stderr


def test_a_run_file_with_an_unknown_key_is_refused_before_any_scheduler_is_asked(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("task: digits\nworker: 3\n")
    done = _offbeat("run", str(file), "--scheduler", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"error: {file}: worker: unknown key", "did you mean 'workers'?"]


def test_no_scheduler_is_said(tmp_path):
    done = _offbeat("status", "--scheduler", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "error: --scheduler: 127.0.0.1:1: no scheduler answers"


def test_a_reader_that_has_read_enough_is_no_error():
    read, write = os.pipe()
    os.close(read)
    try:
        words = [sys.executable, "-m", "offbeat_cli.main", "example", "run"]
        done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=120, check=False)
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode == 1
