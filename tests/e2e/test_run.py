"""run, status and stop with real services: runs follow each other without a restart."""

import json
import subprocess
import sys
import time

import pytest

from offbeat_cli.processes import Children

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RUN = """\
name: {name}
task: digits
workers: 2
check_period_s: 3
training: {{learning_rate: 0.3}}
evaluate: {{every_s: 0.3, required: true}}
target: {{accuracy: {accuracy}}}
limits: {{seconds: 90}}
{more}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A hub, two workers and an evaluator; gives the scheduler's address."""
    folder = tmp_path_factory.mktemp("fleet")
    with Children(folder / "logs") as children:

        def start(called, module, **options):
            return children.start_module(called, module, options)

        scheduler = start(
            "scheduler",
            "offbeat_scheduler.main",
            listen="127.0.0.1:0",
            metrics_listen="",
            folder=folder / "scheduler",
            report_every_s=0.3,
        )
        address = f"127.0.0.1:{children.wait_ready(scheduler)['port']}"
        server = start(
            "ps",
            "offbeat_ps.main",
            listen="127.0.0.1:0",
            metrics_listen="",
            folder=folder / "ps",
            scheduler=address,
        )
        common = {
            "scheduler": address,
            "parameter_server": f"127.0.0.1:{children.wait_ready(server)['port']}",
            "threads": 1,
            "shards": 2,
        }
        start("evaluator", "offbeat_worker.main", name="evaluator", role="evaluator", **common)
        for shard, step_s in enumerate((0.1, 0.05)):
            name = f"worker-{shard + 1}"
            start(name, "offbeat_worker.main", name=name, shard=shard, step_seconds=step_s, **common)
        yield address
        children.check()


def _offbeat(*words, timeout=150):
    return subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", *words], capture_output=True, text=True, timeout=timeout
    )


def _run_file(folder, name, accuracy, more=""):
    file = folder / f"{name}.yaml"
    file.write_text(RUN.format(name=name, accuracy=accuracy, more=more))
    return str(file)


def _status(fleet):
    return json.loads(_offbeat("status", "--scheduler", fleet, "--json").stdout)


def test_runs_follow_each_other_without_a_restart(fleet, tmp_path):
    first = _offbeat("run", _run_file(tmp_path, "first", 0.85), "--scheduler", fleet, "--wait", "--json")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["reached"]
    assert found["best_model"]

    # The second begins with what the first has reached.
    more = f"initial_model: {found['best_model']}"
    file = _run_file(tmp_path, "second", 0.8, more)
    second = _offbeat("run", file, "--scheduler", fleet, "--wait", "--json")
    assert second.returncode == 0, second.stderr
    again = json.loads(second.stdout)
    assert again["run_id"] != found["run_id"]
    assert again["time_to_target_s"] < found["time_to_target_s"]

    status = _status(fleet)
    assert (status["phase"], status["outcome"], status["run_id"]) == ("idle", "reached", again["run_id"])
    assert all(worker["attached"] for worker in status["workers"])


def test_a_run_is_stopped_and_its_model_is_there(fleet, tmp_path):
    submitted = _offbeat("run", _run_file(tmp_path, "endless", 1.0), "--scheduler", fleet, "--json")
    run_id = json.loads(submitted.stdout)["run_id"]
    deadline = time.monotonic() + 60
    while _status(fleet)["commits"] < 2 or _status(fleet)["run_id"] != run_id:
        assert time.monotonic() < deadline, "it did not begin"

    busy = _offbeat("run", _run_file(tmp_path, "another", 1.0), "--scheduler", fleet)
    assert busy.returncode == 1
    assert run_id in busy.stderr

    assert _offbeat("stop", "--scheduler", fleet).stdout == f"stopping {run_id}\n"
    while _status(fleet)["phase"] != "idle":
        assert time.monotonic() < deadline, "it did not stop"
    status = _status(fleet)
    assert status["outcome"] == "stopped"
    assert status["model"].endswith("model.safetensors")

    idle = _offbeat("stop", "--scheduler", fleet)
    assert idle.returncode == 1
    assert idle.stderr.startswith("error: ")
    assert "Traceback" not in idle.stderr
