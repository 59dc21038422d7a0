"""What a status means: ended or not, exit codes, shares, the JSON object."""

import io
import json
import re
from itertools import pairwise

import pytest
from rich.console import Console

from offbeat.v1 import scheduler_pb2 as pb
from offbeat_cli import outcome
from offbeat_cli.table import RunView, plain, render
from offbeat_core.errors import ExitCode

ACCURACY = "task: {name: digits}\ntarget: {accuracy: 0.95}\n"
LOSS = "task: {name: digits}\ntarget: {loss: 0.3}\n"
NO_TARGET = "task: {name: digits}\nlimits: {seconds: 5}\n"


def a_status(**fields):
    worker = pb.WorkerStatus(
        name="worker-1",
        attached=True,
        commits=12,
        steps_per_s=3.3,
        report=pb.WorkerReport(
            phase=pb.WorkerReport.TRAINING,
            steps=100,
            train_loss=0.5,
            time=pb.Shares(compute_s=2, paced_s=7, commit_s=0.5, wait_s=0.5),
        ),
    )
    values = {
        "phase": pb.Status.TRAINING,
        "run_id": "digits-1",
        "run_name": "digits",
        "sync": "adsp",
        "commit_rate": 4,
        "check_period_s": 6,
        "interval_s": 1.5,
        "elapsed_s": 20,
        "loss": 0.31,
        "metric": 0.91,
        "metric_name": "accuracy",
        "commits": 36,
        "target": "accuracy 0.95",
        "effective_yaml": ACCURACY,
        "workers": [worker],
        "evaluations": [pb.EvaluationPoint(at_s=1, version=1, loss=0.31, metric=0.91)],
        "probes": [pb.Probe(rate=4, interval_s=1.5, reward=0.2, chosen=True)],
        **fields,
    }
    return pb.Status(**values)


@pytest.mark.parametrize(
    ("how", "config", "code"),
    [
        (pb.Status.REACHED, ACCURACY, ExitCode.DONE),
        (pb.Status.LIMIT, ACCURACY, ExitCode.LIMIT),
        (pb.Status.STOPPED, ACCURACY, ExitCode.LIMIT),
        (pb.Status.CONVERGED, LOSS, ExitCode.LIMIT),
        (pb.Status.FAILED, ACCURACY, ExitCode.FAILED),
        (pb.Status.LIMIT, NO_TARGET, ExitCode.DONE),
        (pb.Status.CONVERGED, NO_TARGET, ExitCode.DONE),
        (pb.Status.FAILED, NO_TARGET, ExitCode.FAILED),
    ],
)
def test_the_exit_code_says_whether_the_target_came_first(how, config, code):
    target = "" if config == NO_TARGET else "a target"
    status = a_status(phase=pb.Status.IDLE, outcome=how, effective_yaml=config, target=target)
    assert outcome.exit_code(status) == code


def test_a_run_has_ended_when_its_model_is_written_or_another_followed():
    assert not outcome.has_ended(a_status(), "digits-1")
    assert not outcome.has_ended(a_status(phase=pb.Status.FINISHING, outcome=pb.Status.REACHED), "digits-1")
    assert outcome.has_ended(a_status(phase=pb.Status.IDLE, outcome=pb.Status.REACHED), "digits-1")
    assert outcome.has_ended(a_status(run_id="digits-2"), "digits-1")


def test_the_shares_of_a_device_sum_to_one():
    found = outcome.result(a_status(), 30.0)["workers"][0]
    shares = [found[f"{name}_share"] for name in ("compute", "paced", "commit", "wait")]
    assert shares == pytest.approx([0.2, 0.7, 0.05, 0.05])


def test_a_device_that_has_not_begun_has_no_shares():
    assert outcome.shares(pb.WorkerReport()) == {"compute": 0, "paced": 0, "commit": 0, "wait": 0}


def test_the_json_object_has_what_scripts_read():
    status = a_status(phase=pb.Status.IDLE, outcome=pb.Status.REACHED, reached=True, time_to_target_s=18.5)
    found = json.loads(json.dumps(outcome.result(status, 30.0, {"worker-1": 3.0})))
    assert found["reached"] is True
    assert found["value"] == 0.91
    assert found["time_to_target_s"] == 18.5
    assert found["wall_s"] == 30
    assert found["sync"] == "adsp"
    assert found["commit_rate"] == 4
    assert [probe["rate"] for probe in found["probes"]] == [4]
    worker = found["workers"][0]
    assert (worker["name"], worker["speed"], worker["steps"], worker["commits"]) == ("worker-1", 3.0, 100, 12)


def test_numbers_that_are_none_are_null_in_json():
    status = a_status(loss=float("nan"), metric=float("inf"))
    status.workers[0].report.train_loss = float("nan")
    status.probes[0].loss_end = float("inf")

    def refuse(constant):
        raise AssertionError(constant)

    for found in (outcome.result(status, 30.0), outcome.status_json(status)):
        read = json.loads(outcome.dumps(found), parse_constant=refuse)
        assert (read["loss"], read["metric"], read["value"]) == (None, None, None)
        assert read["workers"][0]["train_loss"] is None
        assert read["probes"][0]["loss_end"] is None


def test_without_a_target_reached_there_is_no_time_to_it():
    assert outcome.result(a_status(), 30.0)["time_to_target_s"] is None


def test_the_value_is_what_the_target_speaks_of():
    assert outcome.value(a_status(effective_yaml=LOSS)) == pytest.approx(0.31)
    assert outcome.value(a_status()) == pytest.approx(0.91)
    assert outcome.value(a_status(evaluations=[], loss=0, metric=0)) is None


def _rendered(status, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(status))
    return console.export_text()


def test_the_table_shows_the_run_its_devices_and_its_probes():
    shown = _rendered(a_status(warnings=["worker-9 is slow"]), width=100)
    for text in ("digits", "training", "accuracy 0.91", "worker-1", "3.3", "70.0%", "chosen", "worker-9 is"):
        assert text in shown


def test_the_table_fits_a_terminal_of_80_columns():
    status = a_status()
    status.workers[0].report.steps = 1234567
    assert "…" not in _rendered(status, width=80)


def test_the_table_shows_what_an_allocation_promises_what_was_made_and_how_long_it_took_to_solve():
    status = a_status()
    status.allotment.CopyFrom(
        pb.Allotment(cycle_s=6, max_staleness=2, average_staleness=1.25, idle_share=0.01)
    )
    shown = _rendered(status, width=200)
    assert "6 s; planned: idle 1.0%, staleness at most 2, 1.25 on average\n" in re.sub(" +\n", "\n", shown)
    status.allotment.solve_s, status.allotment.max_solve_s = 0.0025, 0.04
    status.allotment.observed_max_staleness, status.allotment.observed_average_staleness = 2.5, 2.5
    status.workers[0].local_updates = 4
    status.workers.add(name="worker-2", attached=True, local_updates=6.5)
    status.workers.add(name="worker-3", attached=False, local_updates=99)
    shown = " ".join(_rendered(status, width=250).split())
    assert "; observed: staleness at most 2.5, 2.50 on average, 4 to 6.5 local updates a commit; " in shown
    assert "; solved in 2.5 ms, at most 40" in shown
    assert [worker["local_updates"] for worker in outcome.status_json(status)["workers"]] == [4, 6.5, 99]


def test_the_table_and_the_json_show_what_each_device_was_allotted():
    status = a_status()
    status.allotment.CopyFrom(pb.Allotment(cycle_s=2, max_staleness=12.5, observed_max_staleness=11))
    status.workers[0].batch, status.workers[0].allotted_updates = 96, 12.34
    status.workers.add(name="worker-2", attached=True, batch=32, allotted_passes=3, allotted_samples=240)
    status.workers.add(name="worker-3", attached=True)
    shown = _rendered(status, width=120)
    rows = {line.split()[0]: line for line in shown.splitlines() if line.startswith("worker")}
    assert "12.3 × 96" in rows["worker-1"]
    assert "3 × 240" in rows["worker-2"]
    assert "×" not in rows["worker-3"]
    found = outcome.status_json(status)
    assert (found["allotment"]["max_staleness"], found["allotment"]["observed_max_staleness"]) == (12.5, 11)
    assert [worker["batch"] for worker in found["workers"]] == [96, 32, None]
    assert [worker.get("allotted_updates") for worker in found["workers"]] == [12.34, None, None]
    assert "allotment" not in outcome.result(a_status(), 1.0)


def _head(shown):
    return next(line for line in shown.splitlines() if line.startswith("device")).split()


def test_a_narrow_terminal_loses_the_columns_that_say_least():
    status = a_status()
    status.workers[0].report.steps = 1234567
    heads = [_head(_rendered(status, width)) for width in (100, 60, 50, 36, 32)]
    assert all(set(narrow) <= set(wide) for wide, narrow in pairwise(heads))
    assert "steps" in heads[2]
    assert "paced" not in heads[1]
    assert heads[3] == heads[4] == ["device", "commits", "wait", "state"]


@pytest.mark.parametrize("width", [40, 50, 60])
def test_at_40_columns_every_line_fits_and_nothing_is_cut(width):
    status = a_status()
    status.workers.add(name="worker-12", attached=True, commits=123456)
    shown = _rendered(status, width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown


def test_where_nothing_fits_the_names_are_cut_and_the_rest_is_whole():
    status = a_status()
    status.workers[0].name = "a-device-whose-name-is-as-long-as-names-can-be"
    row = next(line for line in _rendered(status, 40).splitlines() if line.startswith("a-device"))
    assert row.split()[0].endswith("…")
    assert row.split()[1:] == ["12", "5.0%", "training"]


def test_a_resting_worker_is_shown_as_such():
    status = a_status()
    status.workers.add(name="worker-2", attached=True, report=pb.WorkerReport(phase=pb.WorkerReport.RESTING))
    assert "resting" in _rendered(status, 80)
    assert "worker-2 resting" in plain(status)


def test_what_several_workers_failed_by_is_said_once():
    status = a_status()
    for number in range(2, 8):
        status.workers.add(name=f"worker-{number}", attached=True, error="task: another file\nmore")
    said = "worker-2, worker-3, worker-4 and 3 more: task: another file"
    assert f"! {said}" in _rendered(status, 100)
    assert plain(status).count("another file") == 1


def test_a_worker_some_of_whose_commits_were_refused_still_trains():
    status = a_status()
    status.workers[0].error = "2 of its commits were refused by the parameter server"
    shown = _rendered(status, 100)
    assert "training" in next(line for line in shown.splitlines() if line.startswith("worker-1"))
    assert "! worker-1: 2 of its commits were refused" in shown


def test_many_warnings_leave_room_for_the_rest():
    shown = _rendered(a_status(warnings=[f"warning {number}" for number in range(20)]), 80)
    assert "warning 4" in shown
    assert "warning 5" not in shown
    assert "and 15 warnings more" in shown


def test_an_own_model_is_shown_without_its_folder():
    assert "offbeat digits  mine.py" in _rendered(a_status(sync="/home/me/mine.py"), 80).lower()


def test_a_failed_worker_is_named_below_the_table():
    status = a_status()
    status.workers.add(name="worker-2", attached=True, error="tasks: no such task\nmore")
    shown = _rendered(status, width=80)
    assert "! worker-2: tasks: no such task" in shown
    assert "failed" in shown


def test_the_plain_line_says_the_same():
    line = plain(a_status())
    for text in ("training", "accuracy 0.91", "target: accuracy 0.95", "worker-1 100 steps 12 commits"):
        assert text in line


def test_a_failed_worker_is_named_with_its_error():
    status = a_status(phase=pb.Status.WAITING, message="2 of 3 workers")
    status.workers.add(name="worker-2", attached=True, error="tasks: no such task\nmore")
    line = plain(status)
    assert "worker-2 failed" in line
    assert "worker-2: tasks: no such task" in line
    assert len(line.splitlines()) == 1


def test_elsewhere_than_in_a_terminal_lines_come_seldom_but_at_each_change_of_phase(capsys):
    with RunView(Console()) as view:
        for elapsed in range(5):
            view.show(a_status(elapsed_s=elapsed))
        view.show(a_status(phase=pb.Status.FINISHING))
    assert len(capsys.readouterr().out.splitlines()) == 2
