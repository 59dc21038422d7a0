"""docker-compose.yml on a real engine, without Prometheus and Grafana: their images come from a registry.

A Prometheus of this machine takes the place of the one in the compose file, with the same
configuration. One stack serves all tests of this file, in their order: the last one takes it down.
"""

import json
import subprocess
import sys
import time

import pytest
from safetensors.numpy import load_file

from support.compose import ROOT, SERVICES, WORKERS, Stack
from support.needs import need_engine, need_prometheus
from support.prometheus import Prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]

DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/offbeat.json").read_text())
UID = "10001"

OWN_TASK = """
import torch

def build_model():
    return torch.nn.Linear(2, 2)

def load_data(shard, shards, split, folder, seed):
    generator = torch.Generator().manual_seed(shard if split == "train" else 1000)
    x = torch.randn(300, 2, generator=generator)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())

def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x)
    return torch.nn.functional.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean().item()
"""

OWN_RUN = """
name: own
task: own_task
workers: 3
check_period_s: 4
training: {learning_rate: 0.1}
target: {accuracy: 0.9}
limits: {seconds: 300}
"""

DEALT_RUN = """
name: dealt
task: own_task
workers: 3
sync: {mel-async: {mode: parallelized, cycle_s: 2}}
training: {learning_rate: 0.1}
target: {accuracy: 0.9}
limits: {seconds: 300}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    need_engine()
    tasks = tmp_path_factory.mktemp("tasks")
    tasks.chmod(0o755)  # read by the containers' user
    (tasks / "own_task.py").write_text(OWN_TASK)
    samples = tasks / "own_task.safetensors"
    written = offbeat("samples", str(tasks / "own_task.py"), "--data", str(tasks), "--out", str(samples))
    assert written.returncode == 0, written.stderr[-3000:]
    stack = Stack(TASKS_FOLDER=str(tasks), OFFBEAT_TASKS="/tasks/own_task.py", SAMPLES_FILE=str(samples))
    try:
        stack.up()
        yield stack
    finally:
        stack.remove()


@pytest.fixture(scope="module")
def prometheus(stack, tmp_path_factory):
    need_prometheus()
    targets = {
        "scheduler:9100": stack.address("scheduler", "monitoring", 9100),
        "parameter-server:9101": stack.address("parameter-server", "monitoring", 9101),
    }
    config = ROOT / "deploy/prometheus/prometheus.yml"
    with Prometheus(config, targets, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


@pytest.fixture(scope="module")
def first_run(stack, prometheus):
    """The run's name, once the run that the scheduler was given at its start is over."""
    line = stack.wait_for_log("scheduler", "the model is at", timeout=900)
    assert "target reached" in line
    return line.partition("the model is at /data/")[2].partition("/")[0]


def test_the_first_run_reaches_its_target_and_the_log_says_how_to_get_the_model(stack, first_run, tmp_path):
    line = stack.wait_for_log("scheduler", "to get the model:", timeout=30)
    command = line.partition("to get the model: ")[2].split()
    assert command[:3] == ["docker", "compose", "cp"]
    *words, here = command[2:]
    stack.compose(*words, str(tmp_path))
    assert here == "."
    model = load_file(tmp_path / "model.safetensors")
    assert sum(values.size for values in model.values()) > 1000


def test_every_service_is_healthy(stack, first_run):
    found = stack.wait_until(lambda each: each["State"]["Health"]["Status"] == "healthy", timeout=180)
    assert set(found) == set(SERVICES)
    assert all(each["RestartCount"] == 0 for each in found.values())


def test_a_health_check_fails_while_the_service_does_not_answer(stack, first_run):
    for service in ("scheduler", "parameter-server"):
        with pytest.raises(AssertionError, match="is the service running"):
            stack.run_in(service, "python", "-m", "offbeat_core.health", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="health_file"):
        stack.run_in("worker-1", "offbeat-worker", "--health", "--health-file", "/tmp/none")


def test_nothing_runs_as_root(stack, first_run):
    for service in SERVICES:
        assert stack.run_in(service, "id", "-u").strip() == UID, service


def test_the_images_of_the_hub_hold_no_torch(stack, first_run):
    look = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    for service, expected in (("scheduler", "False"), ("parameter-server", "False"), ("worker-1", "True")):
        assert stack.run_in(service, "python", "-c", look).strip() == expected, service


def test_a_health_check_of_a_worker_loads_neither_torch_nor_grpc(stack, first_run):
    modules = stack.run_in(
        "worker-1",
        "python",
        "-c",
        "import sys; from offbeat_worker.main import main; code = main(['--health']); "
        "print(code, sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'grpc'}))",
    )
    assert modules.strip() == "0 []"


def test_workers_with_less_of_the_processor_are_slower_and_yet_commit_as_often(prometheus, first_run):
    steps = by_worker(prometheus.since_start("offbeat_worker_steps_total"))
    assert steps["worker-3"][-1] < steps["worker-1"][-1]
    commits = {worker: values[-1] for worker, values in by_worker(prometheus.since_start(COMMITS)).items()}
    assert min(commits.values()) > 0
    # worker-3 runs for 25 ms in each 100 ms, and on a busy machine with longer stalls still.
    assert min(commits.values()) > 0.9 * max(commits.values())


COMMITS = "offbeat_worker_commits_total"


def by_worker(series):
    found = {dict(labels)["worker"]: values for labels, values in series.items()}
    assert set(found) == set(WORKERS)
    return found


def test_prometheus_scrapes_the_hub_and_through_it_the_workers(prometheus, first_run):
    assert prometheus.targets() == {"scheduler": "up", "parameter-server": "up"}
    as_reported = by_worker(prometheus.now("offbeat_worker_steps_total"))
    assert all(steps > 0 for steps in as_reported.values())
    as_counted = by_worker(prometheus.now("offbeat_ps_commits_total"))
    assert all(commits > 0 for commits in as_counted.values())
    (reached,) = prometheus.now("offbeat_run_reached").values()
    assert reached == 1


def queries():
    return [
        pytest.param(target, id=f"{panel['title']}, {target['legendFormat']}")
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.parametrize("target", queries())
def test_a_panel_has_something_to_show(prometheus, first_run, target):
    # Grafana takes at least four scrapes for this variable.
    found = prometheus.since_start(target["expr"].replace("$__rate_interval", "4s"))
    values = [value for series in found.values() for value in series if value == value]
    assert values, target["expr"]
    label = target["legendFormat"]
    if label.startswith("{{"):
        assert all(label.strip("{}") in dict(labels) for labels in found)


def test_another_run_with_an_own_task_is_submitted_without_restarting_anything(stack, first_run, tmp_path):
    before = {service: each["State"]["StartedAt"] for service, each in stack.containers().items()}
    run = tmp_path / "run.yaml"
    run.write_text(OWN_RUN)
    done = offbeat("run", str(run), "--scheduler", stack.published("scheduler", 50050), "--wait", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["reached"] is True
    after = {service: each["State"]["StartedAt"] for service, each in stack.containers().items()}
    assert after == before
    kept = stack.run_in("parameter-server", "ls", "/data").split()
    assert first_run in kept
    assert len([name for name in kept if name.startswith("own-")]) == 1


def test_workers_train_on_samples_that_the_parameter_server_deals(stack, first_run, tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text(DEALT_RUN)
    done = offbeat("run", str(run), "--scheduler", stack.published("scheduler", 50050), "--wait", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["reached"] is True


def offbeat(*words):
    return subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_it_goes_down_in_seconds_with_exit_code_0_and_keeps_the_models(stack, first_run):
    before = time.monotonic()
    stack.compose("stop")
    assert time.monotonic() - before < 15  # far from the 30 s after which it would be killed
    codes = {service: each["State"]["ExitCode"] for service, each in stack.containers().items()}
    assert codes == dict.fromkeys(SERVICES, 0)
    stack.down()
    assert stack.containers() == {}
    volumes = subprocess.check_output(["docker", "volume", "ls", "--quiet"], text=True).split()
    assert f"{stack.project}_checkpoints" in volumes
