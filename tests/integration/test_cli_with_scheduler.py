"""run, status and stop against a scripted scheduler over real gRPC."""

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest

from offbeat.v1 import scheduler_pb2 as pb
from offbeat.v1 import scheduler_pb2_grpc

RUN = "name: digits\ntask: digits\nworkers: 2\ntarget: {accuracy: 0.9}\n"
EFFECTIVE = "name: digits\ntask: {name: digits}\ntarget: {accuracy: 0.9}\n"


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """Gives the statuses of `script`, each 50 ms after the one before, once a run was submitted."""

    def __init__(self, script):
        self.script = script
        self.submitted = []
        self.stopped = []
        self.refuse = ""
        self.watchers = 0
        self.outages = 0

    def SubmitRun(self, request, context):
        if self.refuse:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse)
        self.submitted.append(request.run_yaml)
        return pb.SubmitRunReply(run_id="digits-1", effective_yaml=EFFECTIVE)

    def StopRun(self, request, context):
        if not self.submitted:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "stop: no run is going on\nsubmit one first")
        self.stopped.append(request.run_id)
        return pb.StopRunReply(run_id="digits-1")

    def GetStatus(self, request, context):
        return self.script[-1]

    def WatchStatus(self, request, context):
        self.watchers += 1
        if self.outages:
            self.outages -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        for status in self.script:
            yield status
            time.sleep(0.05)
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait(30)


def _status(**fields):
    values = {"run_id": "digits-1", "run_name": "digits", "effective_yaml": EFFECTIVE, **fields}
    return pb.Status(**{"sync": "adsp", "target": "accuracy 0.9", **values})


TRAINING = _status(phase=pb.Status.TRAINING, elapsed_s=3, commits=7)
REACHED = _status(
    phase=pb.Status.IDLE,
    outcome=pb.Status.REACHED,
    reached=True,
    time_to_target_s=12.5,
    model_path="/data/model.safetensors",
    evaluations=[pb.EvaluationPoint(at_s=1, metric=0.91, loss=0.3)],
    metric=0.91,
    metric_name="accuracy",
)
LIMIT = _status(phase=pb.Status.IDLE, outcome=pb.Status.LIMIT, message="10 s have passed")
FAILED = _status(phase=pb.Status.IDLE, outcome=pb.Status.FAILED, message="no worker is left")


@pytest.fixture
def scheduler():
    server = grpc.server(futures.ThreadPoolExecutor(8))
    scripted = ScriptedScheduler([TRAINING, REACHED])
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(scripted, server)
    scripted.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield scripted
    server.stop(0).wait()


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    return str(file)


def _offbeat(scheduler, *words):
    return subprocess.run(
        [sys.executable, "-m", "offbeat_cli.main", *words, "--scheduler", scheduler.address],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_run_is_submitted_as_it_was_written(scheduler, run_file):
    done = _offbeat(scheduler, "run", run_file)
    assert done.returncode == 0
    assert scheduler.submitted == [RUN]
    assert "submitted digits-1" in done.stdout


def test_waiting_shows_the_run_and_ends_with_it(scheduler, run_file):
    done = _offbeat(scheduler, "run", run_file, "--wait")
    assert done.returncode == 0
    assert "training" in done.stdout
    assert "reached accuracy 0.9 after 12.5 s" in done.stdout
    assert "/data/model.safetensors" in done.stdout


@pytest.mark.parametrize(("end", "code"), [(REACHED, 0), (LIMIT, 3), (FAILED, 1)])
def test_the_exit_code_of_waiting_is_the_run_s(scheduler, run_file, end, code):
    scheduler.script = [TRAINING, end]
    assert _offbeat(scheduler, "run", run_file, "--wait").returncode == code


def test_the_json_object_comes_alone_on_stdout(scheduler, run_file):
    done = _offbeat(scheduler, "run", run_file, "--wait", "--json")
    found = json.loads(done.stdout)
    assert (found["reached"], found["time_to_target_s"]) == (True, 12.5)
    assert "training" in done.stderr


def test_statuses_of_the_run_before_do_not_end_the_waiting(scheduler, run_file):
    before = _status(run_id="older", phase=pb.Status.IDLE, outcome=pb.Status.FAILED)
    scheduler.script = [before, TRAINING, REACHED]
    assert _offbeat(scheduler, "run", run_file, "--wait").returncode == 0


def test_a_scheduler_that_was_restarted_meanwhile_ends_the_waiting_with_what_to_do(scheduler, run_file):
    scheduler.script = [TRAINING, pb.Status(phase=pb.Status.IDLE)]
    done = _offbeat(scheduler, "run", run_file, "--wait")
    assert done.returncode == 1
    assert "error: digits-1: the scheduler was restarted and leads it no more" in done.stderr
    assert "initial_model" in done.stderr


def test_a_run_that_the_scheduler_refuses_is_said_in_its_words(scheduler, run_file):
    scheduler.refuse = "sync.rate: 0 is not positive\ngive 1 or more"
    done = _offbeat(scheduler, "run", run_file)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: sync.rate: 0 is not positive", "give 1 or more"]


def test_ctrl_c_ends_the_watching_and_not_the_run(scheduler, run_file):
    scheduler.script = [TRAINING]
    command = [sys.executable, "-m", "offbeat_cli.main", "run", run_file, "--wait"]
    process = subprocess.Popen(
        [*command, "--scheduler", scheduler.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not scheduler.watchers:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "digits-1 goes on" in out
    assert "Traceback" not in err
    assert scheduler.stopped == []


def test_status_once_and_as_json(scheduler):
    assert "reached accuracy 0.9" in _offbeat(scheduler, "status").stdout
    found = json.loads(_offbeat(scheduler, "status", "--json").stdout)
    assert (found["phase"], found["outcome"], found["run_id"]) == ("idle", "reached", "digits-1")


def test_watching_prints_one_json_object_a_line(scheduler):
    command = [sys.executable, "-m", "offbeat_cli.main", "status", "--watch", "--json"]
    process = subprocess.Popen(
        [*command, "--scheduler", scheduler.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    phases = [json.loads(process.stdout.readline())["phase"] for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert phases == ["training", "idle"]
    assert process.returncode == 130


def test_a_scheduler_that_goes_away_is_dialled_again(scheduler, run_file):
    scheduler.outages = 1
    done = _offbeat(scheduler, "run", run_file, "--wait")
    assert done.returncode == 0
    assert "dialling again" in done.stdout
    assert "is back" in done.stdout


def test_stop_names_the_run_that_it_stops(scheduler, run_file):
    _offbeat(scheduler, "run", run_file)
    assert _offbeat(scheduler, "stop", "--run", "digits-1").stdout == "stopping digits-1\n"
    assert scheduler.stopped == ["digits-1"]


def test_stopping_without_a_run_is_an_error(scheduler):
    done = _offbeat(scheduler, "stop")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: stop: no run is going on", "submit one first"]


def test_the_address_of_another_service_is_said(run_file):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "offbeat_cli.main", "status", "--scheduler", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        server.stop(0).wait()
    assert done.returncode == 1
    assert "not an Offbeat scheduler" in done.stderr
