"""`offbeat demo` as a user runs it: real processes, a real model, real data.

Times are never asserted; ratios, orderings and shares are.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

WAIT_LIMIT = 0.02
SHARES = ("compute_share", "paced_share", "commit_share", "wait_share")
ROOT = Path(__file__).parents[2]
QUICK = ("--step-seconds", "0.15")

BROKEN_TASK = """
import torch

def build_model():
    return torch.nn.Linear(3, 2)

def load_data(shard, shards, split, folder, seed):
    raise ValueError("no column 'label'")

def loss_and_metric(model, batch):
    return model(batch).sum(), 0.0
"""

OWN_TASK = """
import torch

def build_model(hidden=16):
    return torch.nn.Sequential(torch.nn.Linear(2, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))

def load_data(shard, shards, split, folder, seed):
    generator = torch.Generator().manual_seed(shard if split == "train" else 1000)
    x = torch.randn(300, 2, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return torch.utils.data.TensorDataset(x, y)

def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x)
    return torch.nn.functional.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean().item()
"""


def _command(out, *words):
    return [sys.executable, "-m", "offbeat_cli.main", "demo", "--out", str(out), "--json", *words]


def _demo(out, *words, timeout=240):
    done = subprocess.run(_command(out, *words), capture_output=True, text=True, timeout=timeout)
    _nobody_left(out)
    return done


def _result(done, code=0):
    assert done.returncode == code, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _start(out, *words):
    return subprocess.Popen(
        _command(out, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _processes(out):
    """Those that the demo started: the folder stands in their command lines."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(out) in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def _nobody_left(out, seconds=15):
    _until(lambda: not _processes(out), f"left behind: {_processes(out)}", seconds)


def _training(out):
    """Has the run that lives in `out` begun to train?"""
    logs = list(Path(out).glob(".services/scheduler/*/events.jsonl"))
    return bool(logs) and '"TRAINING"' in logs[0].read_text()


def _commits_are_even(workers, on_the_way=0):
    """As far as a run tells that ends at any moment; `on_the_way`: commits that may not be there by then."""
    counts = [worker["commits"] for worker in workers]
    return max(counts) - min(counts) <= 1 + on_the_way + 0.05 * max(counts)


@pytest.mark.slow
def test_workers_without_data_train_on_what_the_hub_deals_to_them(tmp_path):
    task = tmp_path / "own.py"
    # A worker would load its data here: it has none.
    task.write_text(
        OWN_TASK.replace("import torch", "import sys, torch", 1).replace(
            "    generator",
            "    if split == 'train' and 'offbeat_worker.main' in sys.modules['__main__'].__spec__.name:\n"
            "        raise ValueError('no data here')\n    generator",
        )
    )
    sync = "{mel-async: {mode: parallelized, cycle_s: 2}}"
    quick = ("--task", str(task), "--step-seconds", "0.05", "--learning-rate", "0.5")
    result = _result(_demo(tmp_path / "out", "--sync", sync, *quick, "--target-accuracy", "0.8"))
    assert result["reached"]
    assert all(worker["commits"] > 2 for worker in result["workers"])

    task.write_text(BROKEN_TASK)
    failed = _demo(tmp_path / "failed", "--sync", sync, *quick, "--target-accuracy", "0.8")
    assert failed.returncode == 1
    assert "the data set could not be written" in failed.stderr
    assert "no column 'label'" in failed.stderr


@pytest.mark.slow
@pytest.mark.parametrize("delay", ["0", "0.09", "2"])
def test_digits_reach_their_target_and_nobody_waits(tmp_path, delay):
    result = _result(_demo(tmp_path / "out", "--commit-delay", delay))
    assert result["reached"]
    assert result["value"] >= 0.95
    assert 0 < result["time_to_target_s"] < result["wall_s"]
    assert len(result["probes"]) >= 2
    assert result["commit_rate"] > 0
    workers = result["workers"]
    assert [worker["speed"] for worker in workers] == [1, 3, 3]
    for worker in workers:
        assert worker["wait_share"] <= WAIT_LIMIT, workers
        assert sum(worker[share] for share in SHARES) == pytest.approx(1, abs=0.01)
    assert workers[1]["steps"] / workers[0]["steps"] == pytest.approx(3, rel=0.15)
    # With a delay of 2 s a commit is on its way for most of an interval.
    assert _commits_are_even(workers, on_the_way=float(delay) > 1), workers


@pytest.mark.slow
def test_fashion_mnist_reaches_its_target_and_nobody_waits(tmp_path):
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.exists():
        if os.environ.get("OFFBEAT_CI"):
            pytest.fail("Debian's package dataset-fashion-mnist is not installed")
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    result = _result(_demo(tmp_path / "out", *QUICK, "--task", "fashion-mnist"))
    assert result["reached"]
    assert result["value"] >= 0.85
    assert len(result["probes"]) >= 2
    assert max(worker["wait_share"] for worker in result["workers"]) <= WAIT_LIMIT
    assert _commits_are_even(result["workers"])


@pytest.mark.slow
def test_a_worker_that_waits_for_its_commits_fails_that_test(tmp_path):
    result = _result(_demo(tmp_path / "out", *QUICK, "--commit-delay", "0.5", "--no-overlap", "--rate", "3"))
    assert max(worker["wait_share"] for worker in result["workers"]) > WAIT_LIMIT


@pytest.mark.slow
def test_at_a_barrier_the_fast_wait_for_the_slow(tmp_path):
    done = _demo(tmp_path / "out", *QUICK, "--sync", "bsp", "--max-seconds", "12", "--target-accuracy", "1")
    workers = _result(done, code=3)["workers"]
    assert workers[1]["wait_share"] > 0.4
    assert workers[1]["wait_share"] > workers[0]["wait_share"]
    assert abs(workers[1]["steps"] - workers[0]["steps"]) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    ["{fedbuff: {k: 2, tau: 3}}", f"{ROOT}/examples/models/patient_barrier.py:PatientBarrier:2"],
    ids=["options", "own"],
)
def test_a_model_with_options_or_of_ones_own_is_trained_with_and_replays(tmp_path, sync):
    out = tmp_path / "out"
    done = _demo(out, *QUICK, "--sync", sync, "--max-seconds", "6", "--target-accuracy", "1")
    workers = _result(done, code=3)["workers"]
    assert all(worker["commits"] > 0 for worker in workers)
    assert "The search of the commit rate" not in (out / "report.html").read_text()
    replayed = subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", "replay", str(out)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_what_is_left_is_whole(tmp_path):
    out = tmp_path / "out"
    result = _result(_demo(out, *QUICK, "--target-accuracy", "0.8"))
    assert sorted(path.name for path in out.iterdir()) == [
        "best.safetensors",
        "events.jsonl",
        "logs",
        "model.safetensors",
        "report.html",
        "result.json",
        "run.yaml",
    ]
    assert json.loads((out / "result.json").read_text()) == result
    assert result["out"] == str(out)
    loading = (
        "from safetensors.torch import load_file\n"
        "from offbeat_worker.tasks.builtin.digits import build_model\n"
        "model = build_model()\n"
        "print(model.load_state_dict(load_file('model.safetensors'), strict=False))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", loading], cwd=out, capture_output=True, text=True, timeout=60, check=True
    )
    assert "All keys matched" in loaded.stdout
    # The run can be submitted again from what it left.
    from offbeat_core.config import RunSettings, read_yaml, validate

    assert validate(RunSettings, read_yaml(out / "run.yaml", "run"), "run").target.accuracy == 0.8
    report = (out / "report.html").read_text()
    assert report.count("<svg") >= 3
    again = subprocess.run([sys.executable, "-m", "offbeat_cli.main", "report", str(out)], timeout=60)
    assert again.returncode == 0
    # A second demo must not write over it.
    assert _demo(out).returncode == 1
    assert (out / "report.html").exists()


@pytest.mark.slow
def test_an_own_task_without_a_target_trains_until_its_limit(tmp_path):
    task = tmp_path / "quadrants.py"
    task.write_text(OWN_TASK)
    words = ("--task", str(task), "--max-seconds", "6", "--speeds", "1,2", "--task-option", "hidden=8")
    result = _result(_demo(tmp_path / "out", *QUICK, *words))
    assert not result["reached"]
    assert result["outcome"] == "limit"
    assert all(worker["steps"] > 0 for worker in result["workers"])
    assert "hidden: 8" in (tmp_path / "out" / "run.yaml").read_text()


@pytest.mark.slow
def test_a_limit_before_the_target_ends_with_3(tmp_path):
    done = _demo(tmp_path / "out", *QUICK, "--target-accuracy", "1", "--max-seconds", "4")
    result = _result(done, code=3)
    assert not result["reached"]
    assert result["time_to_target_s"] is None
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_nobody_is_left_when_the_demo_is_killed(tmp_path):
    out = tmp_path / "out"
    demo = _start(out, *QUICK, "--target-accuracy", "1", "--commit-delay", "0.1")
    try:
        _until(lambda: _training(out), "did not begin to train")
        assert len(_processes(out)) >= 7
        demo.send_signal(signal.SIGKILL)
        demo.communicate(timeout=30)
        _nobody_left(out)
    finally:
        demo.kill()


@pytest.mark.slow
def test_nobody_is_left_when_the_demo_is_killed_while_it_starts(tmp_path):
    out = tmp_path / "out"
    demo = _start(out, *QUICK)
    try:
        _until(lambda: len(_processes(out)) >= 3, "nothing was started")
        demo.send_signal(signal.SIGKILL)
        demo.communicate(timeout=30)
        _nobody_left(out, seconds=30)
    finally:
        demo.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_keeps_its_model_and_leaves_nobody(tmp_path, number):
    out = tmp_path / "out"
    demo = _start(out, *QUICK, "--target-accuracy", "1")
    try:
        _until(lambda: _training(out), "did not begin to train")
        demo.send_signal(number)
        stdout, stderr = demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert demo.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert json.loads(stdout.splitlines()[-1])["outcome"] == "stopped"
    assert (out / "model.safetensors").exists()
    assert (out / "report.html").exists()
    _nobody_left(out)


@pytest.mark.slow
def test_a_process_that_dies_is_said_with_its_last_words(tmp_path):
    out = tmp_path / "out"
    demo = _start(out, *QUICK, "--target-accuracy", "1")
    try:
        _until(lambda: _training(out), "did not begin to train")
        victim = next(process for process in _processes(out) if "--name=worker-2" in process.cmdline())
        victim.kill()
        _, stderr = demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert "error: worker-2 was ended by SIGKILL" in stderr
    assert "worker-2.log" in stderr
    assert "Traceback" not in stderr
    _nobody_left(out)


@pytest.mark.slow
def test_two_demos_side_by_side_do_not_disturb_each_other(tmp_path):
    outs = [tmp_path / "one", tmp_path / "two"]
    words = (*QUICK, "--target-accuracy", "0.8", "--speeds", "1,2")
    demos = [_start(out, *words) for out in outs]
    try:
        results = [demo.communicate(timeout=240) for demo in demos]
    finally:
        for demo in demos:
            demo.kill()
    for demo, (stdout, stderr), out in zip(demos, results, outs, strict=True):
        assert demo.returncode == 0, stderr
        found = json.loads(stdout.splitlines()[-1])
        assert found["reached"]
        assert len(found["workers"]) == 2
        assert found["model"].startswith(str(out))
        _nobody_left(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BROKEN_TASK, "no column 'label'"),
        ("def build_model(:\n", "mine.py:1: "),
        ("def build_model():\n    return None\n", "load_data"),
    ],
)
def test_a_task_with_an_error_in_it_is_said_in_a_few_lines(tmp_path, text, said):
    task = tmp_path / "mine.py"
    task.write_text(text)
    done = _demo(tmp_path / "out", "--task", str(task))
    assert done.returncode == 1
    error = done.stderr[done.stderr.index("error: ") :]
    assert said in error
    assert "mine.py" in error
    assert len(error.splitlines()) <= 4
    assert "Traceback" not in done.stderr


def test_an_unknown_synchronization_model_is_said_before_anything_is_started(tmp_path):
    done = _demo(tmp_path / "out", "--sync", "adps")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --sync: 'adps'")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_where_another_demo_runs_is_refused(tmp_path):
    out = tmp_path / "out"
    demo = _start(out, *QUICK)
    try:
        _until(lambda: (out / "logs").exists(), "did not start")
        second = subprocess.run(_command(out), capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert "another demo is running there" in second.stderr
        assert demo.poll() is None
    finally:
        os.kill(demo.pid, signal.SIGTERM)
        demo.communicate(timeout=60)
    assert demo.returncode == 130
    _nobody_left(out)
    assert [path.name for path in out.iterdir()] == ["logs"]  # nothing was trained, so nothing is in the way
