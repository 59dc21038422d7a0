"""`offbeat simulate` as a command: what it prints, leaves and ends with."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from offbeat_cli.simulate import simulate
from offbeat_core.errors import guard

pytest.importorskip("torch")

SCENARIO = """
task: digits
devices:
  - {name: slow, step_s: 0.3, commit_s: 0.1, jitter: 0.1}
  - {name: fast, count: 2, step_s: 0.1, commit_s: 0.1, jitter: 0.1}
training: {batch: 16, lr: 0.1}
check_period_s: 3
target: {loss: %s, smooth: 3}
limit_s: %s
seeds: 1
compare: [bsp, adsp]
"""


def write(folder, *, loss=1.8, limit_s=30):
    file = folder / "small.yaml"
    file.write_text(SCENARIO % (loss, limit_s))
    return file


def command(*arguments):
    return [sys.executable, "-m", "offbeat_cli.main", "simulate", *map(str, arguments)]


def run(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=280, check=False)


def test_it_prints_one_json_object_and_leaves_a_page_that_needs_nothing_else(tmp_path):
    out = tmp_path / "out"
    done = run(write(tmp_path), "--json", "--out", out, "--workers", 1)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["scenario"] == "small"
    assert result["heterogeneity"] == pytest.approx(7 / 3)
    assert [entry["model"] for entry in result["results"]] == ["bsp", "adsp"]
    assert set(result["results"][0]) == {
        *("model", "label", "reached", "time_s", "times_s", "interval_s", "value", "loss"),
        *("steps", "commits", "wait_share", "commit_share", "compute_share", "bytes"),
    }
    assert "adsp, seed 1: reached" in done.stderr
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    for name in ("quality", "times", "shares"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (out / f"{name}.svg").read_text()

    again = run(write(tmp_path), "--json", "--out", out)
    assert again.stdout == done.stdout
    assert "reached" not in again.stderr  # nothing was run again


def here(capsys, *arguments, **options):
    """(exit code, stdout, stderr), in this process."""
    code = guard(lambda: simulate(*arguments, workers=options.pop("workers", 1), **options))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_target_that_is_not_reached_ends_with_3(tmp_path, capsys):
    code, out, _ = here(capsys, write(tmp_path, loss=0.001, limit_s=4))
    assert code == 3
    assert "> 4" in out


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("bsp", "bps"), "'bps' is not a synchronization model"),
        (("loss: 1.8", "accuracy: 1.2"), "1.2"),
        (("digits", "dogs"), "'dogs' is not known"),
        (("limit_s: 30", "limit_s: 2"), "limit_s: 2"),
        (("task: digits", "task: {name: digits, options: {hiden: 3}}"), "hiden"),
    ],
)
def test_what_makes_no_sense_ends_with_1_in_a_line_or_two(tmp_path, capsys, edit, said):
    file = write(tmp_path)
    file.write_text(file.read_text().replace(*edit))
    code, out, err = here(capsys, file, as_json=True)
    assert code == 1
    assert out == ""
    assert said in err
    assert len(err.splitlines()) <= 3


def test_labels_are_shown_as_they_are_and_what_a_task_prints_is_no_result(tmp_path, capsys):
    label = r"[/red] costs $\frac$"
    file = write(tmp_path, limit_s=4)
    (tmp_path / "loud.py").write_text(
        "from offbeat_worker.tasks.builtin.digits import build_model, load_data, loss_and_metric\n"
        "print('loud')\n"
    )
    text = file.read_text().replace("task: digits", "task: loud\ntasks: [loud.py]\nname: '[/x]'")
    file.write_text(
        text.replace("[bsp, adsp]", f"[{{sync: bsp, label: '{label}'}}, {{sync: asp, label: _low}}]")
    )
    code, out, err = here(capsys, file, as_json=True, out=tmp_path / "out")
    assert code == 3, err
    assert [entry["label"] for entry in json.loads(out)["results"]] == [label, "_low"]
    assert "loud" in err
    assert label in err
    drawn = (tmp_path / "out" / "quality.svg").read_text()
    assert "costs $" in drawn
    assert "_low" in drawn


def test_options_are_checked(tmp_path, capsys):
    for options in ({"seeds": 0}, {"workers": 0}):
        code, _, err = here(capsys, write(tmp_path), **options)
        assert code == 1
        assert "0 is not positive" in err
    assert here(capsys, tmp_path / "nowhere.yaml")[0] == 1


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    code, _, err = here(capsys, write(tmp_path), out=tmp_path / "file")
    assert code == 1
    assert "file" in err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_command_and_finished_runs_stay(tmp_path, sent):
    out = tmp_path / "out"
    file = write(tmp_path, loss=1e-9, limit_s=100_000)
    file.write_text(file.read_text().replace("compare:", "tasks: []\ncompare:"))
    process = subprocess.Popen(
        command(file, "--out", out, "--workers", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # it simulates
        assert "loss" in line
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(sent)
        process.wait(timeout=60)
    finally:
        process.kill()
    if sent == signal.SIGINT:
        assert process.returncode == 130
    deadline = time.monotonic() + 60
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < deadline, "a process outlived the command"
        time.sleep(0.1)
    assert (out / "runs").is_dir()


def test_ctrl_c_while_its_processes_start_is_said_in_a_line(tmp_path):
    process = subprocess.Popen(
        command(write(tmp_path, loss=1e-9, limit_s=100_000), "--workers", 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while len(psutil.Process(process.pid).children()) < 3:  # two, and one that keeps track of them
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert said.splitlines() == ["nothing is kept; with --out DIR it would be", "interrupted"]
