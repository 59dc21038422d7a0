"""What the demo will do, and what it says to options that make no sense."""

import subprocess
import sys

import pytest
import yaml

from offbeat_cli import demo_sync
from offbeat_cli.demo_plan import DemoOptions, parse_speeds, plan
from offbeat_core.config import RunSettings, validate
from offbeat_core.errors import ExitCode, OffbeatError


def test_the_slowest_worker_sets_the_pace_and_the_others_are_faster_by_their_speed():
    todo = plan(DemoOptions(speeds="1,3,1.5", step_seconds=0.6))
    assert todo.step_seconds == pytest.approx({"worker-1": 0.6, "worker-2": 0.2, "worker-3": 0.4})


def test_a_part_of_each_workers_update_may_not_grow_with_its_batch():
    todo = plan(DemoOptions(speeds="1,3", step_seconds=0.6, fixed_parts="0, 0.5"))
    assert todo.fixed_seconds == pytest.approx({"worker-1": 0.0, "worker-2": 0.1})
    assert set(plan(DemoOptions()).fixed_seconds.values()) == {0.0}


def test_speeds_are_relative():
    assert plan(DemoOptions(speeds="10,30")).step_seconds == pytest.approx(
        plan(DemoOptions(speeds="1,3")).step_seconds
    )


def test_the_check_period_follows_the_slowest_step():
    assert plan(DemoOptions(step_seconds=0.5)).run.check_period_s == pytest.approx(10)
    assert plan(DemoOptions(step_seconds=0.5, check_period=3)).run.check_period_s == 3


def test_unpaced_workers_get_no_pace():
    assert set(plan(DemoOptions(unpaced=True)).step_seconds.values()) == {0.0}


def test_built_in_tasks_have_a_target():
    assert plan(DemoOptions()).run.target.accuracy == 0.95
    assert plan(DemoOptions(task="fashion-mnist")).run.target.accuracy == 0.85
    assert plan(DemoOptions(target_loss=0.4)).run.target.loss == 0.4


def test_an_own_task_has_a_target_only_when_one_is_given(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("")
    todo = plan(DemoOptions(task=str(file)))
    assert (todo.name, todo.task_file, todo.run.target) == ("mine", file, None)
    assert plan(DemoOptions(task=str(file), target_accuracy=0.7)).run.target.accuracy == 0.7


def test_every_worker_is_needed():
    assert plan(DemoOptions(speeds="1,2,3,4")).run.workers == 4


def test_half_of_the_commit_delay_lies_on_each_way():
    assert plan(DemoOptions(commit_delay=0.5)).link_delay_s == 0.25


def test_options_of_adsp_go_into_its_part_of_the_run():
    assert plan(DemoOptions(rate=4, no_overlap=True)).run.sync.options == {"rate": 4, "overlap": False}
    assert plan(DemoOptions(sync="local-sgd:8")).run.sync.model == "local-sgd"


@pytest.mark.parametrize(
    ("text", "model", "options"),
    [
        ("bsp", "bsp", {}),
        ("local-sgd:8", "local-sgd", {"": "8"}),
        ("{local-sgd: {tau: 8}}", "local-sgd", {"tau": 8}),
        ("local-sgd: {tau: 8}", "local-sgd", {"tau": 8}),
        ("{bsp: }", "bsp", {}),
    ],
)
def test_a_model_is_named_with_or_without_options(text, model, options):
    todo = plan(DemoOptions(sync=text))
    assert (todo.run.sync.model, todo.run.sync.options) == (model, options)
    submitted = validate(RunSettings, yaml.safe_load(yaml.safe_dump(todo.run_values)), "submitted")
    assert submitted == todo.run


def test_an_own_option_of_the_demo_adds_to_those_of_the_model():
    todo = plan(DemoOptions(sync="{adsp: {prior: 0.01}}", search="formula"))
    assert todo.run.sync.options == {"prior": 0.01, "search": "formula"}
    assert plan(DemoOptions(sync="adsp:4", no_overlap=True)).run.sync.options == {
        "rate": "4",
        "overlap": False,
    }


def test_the_file_of_an_own_model_is_found_wherever_the_scheduler_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demo_sync.read("mine.py:Mine") == f"{tmp_path}/mine.py:Mine"
    assert demo_sync.read("mine.py:Mine:3") == f"{tmp_path}/mine.py:Mine:3"
    assert demo_sync.read("mine.py") == f"{tmp_path}/mine.py"
    assert demo_sync.read("{mine.py:Mine: {k: 2}}") == {f"{tmp_path}/mine.py:Mine": {"k": 2}}


def test_the_check_needs_no_heavy_library():
    code = (
        "import sys\n"
        "from offbeat_cli.demo_plan import DemoOptions, plan\n"
        "plan(DemoOptions())\n"
        "print([name for name in ('torch', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_task_options_are_numbers_where_they_look_like_numbers():
    todo = plan(DemoOptions(task_option=["hidden=64", "drop=0.1", "kind=mlp"]))
    assert todo.run.task.options == {"hidden": 64, "drop": 0.1, "kind": "mlp"}


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"speeds": "1,x"}, r"--speeds: '1,x': 'x' is not a number above 0", "such as 1,3,3"),
        ({"speeds": ""}, "--speeds", "such as 1,3,3"),
        ({"speeds": "1,,3"}, "--speeds", "such as 1,3,3"),
        ({"speeds": "1,-3"}, "--speeds: '1,-3': '-3'", "such as 1,3,3"),
        ({"speeds": "nan"}, "--speeds", "such as 1,3,3"),
        ({"speeds": "inf"}, "--speeds", "such as 1,3,3"),
        ({"fixed_parts": "0,0"}, "--fixed-parts: 2 parts for 3 workers", "such as 0,0,0.95"),
        ({"fixed_parts": "0,0,1.5"}, r"--fixed-parts: '0,0,1.5': '1.5'", "from 0 to 1"),
        ({"fixed_parts": "0,x,1"}, r"--fixed-parts: '0,x,1': 'x'", "from 0 to 1"),
        ({"speeds": "1," * 70 + "1"}, "--speeds: 71 workers", "such as 1,3,3"),
        ({"target_accuracy": 95.0}, "--target-accuracy: 95 ", "did you mean 0.95?"),
        ({"target_accuracy": -1.0}, "--target-accuracy: -1 ", "0.95"),
        ({"target_accuracy": 0.0}, "--target-accuracy: 0 ", "0.95"),
        ({"target_accuracy": float("nan")}, "--target-accuracy: nan ", "0.95"),
        ({"target_loss": -0.1}, "--target-loss: -0.1 ", "0.3"),
        ({"max_seconds": 0.0}, "--max-seconds: 0 ", "120"),
        ({"commit_delay": -1.0}, "--commit-delay: -1 ", "0.1"),
        ({"commit_delay": 1e9}, "--commit-delay: 1e.09 is as long as", "--max-seconds"),
        ({"step_seconds": 1e30}, "--step-seconds: 1e.30 is as long as", "--max-seconds"),
        ({"step_seconds": 0.0}, "--step-seconds: 0 ", "0.3"),
        ({"check_period": -2.0}, "--check-period: -2 ", "0.3"),
        ({"evaluate_every": 0.0}, "--evaluate-every: 0 ", "0.5"),
        ({"threads": 0}, "--threads: 0 ", "1 or more"),
        ({"rate": 0}, "--rate: 0 ", "1 or more"),
        ({"batch": 0}, "--batch: 0 ", "1 or more"),
        ({"learning_rate": 0.0}, "--learning-rate: 0 ", "0.05"),
        ({"momentum": 1.0}, r"training\.momentum: 1", ""),
        ({"task": "digit"}, "--task: 'digit'", "did you mean 'digits'?"),
        ({"task": "nowhere/task.py"}, "--task: nowhere/task.py: there is no such file", "digits"),
        ({"task": "."}, "not a Python file", ""),
        ({"partition": "dirichlet:0"}, "task.partition", ""),
        ({"task_option": ["hidden"]}, "--task-option: 'hidden'", "hidden=64"),
        ({"sync": "adps"}, "--sync: 'adps' is not a synchronization model", "did you mean 'adsp'?"),
        ({"sync": " "}, "--sync: is empty", "NAME:VALUE"),
        ({"sync": "bsp:3"}, "--sync: 'bsp:3': bsp takes no value", "write '--sync bsp'"),
        ({"sync": "local-sgd:x"}, "--sync: local-sgd: tau: 'x'", ""),
        ({"sync": "{local-sgd: {tua: 8}}"}, "--sync: local-sgd: tua: unknown key", "did you mean 'tau'?"),
        ({"sync": "{adsp: 4}"}, "--sync: '{adsp: 4}': the options of adsp are a mapping", "'adsp:4'"),
        ({"sync": "{adsp: {}, bsp: {}}"}, "--sync: .* one model with its options is expected", "NAME"),
        ({"sync": "{3: {}}"}, "--sync: .* 3 is no model's name", "NAME"),
        ({"sync": "{"}, "--sync: '{': ", "NAME"),
        ({"search": "robus"}, "--search: 'robus': .*'robust'", ""),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(options, problem, remedy):
    with pytest.raises(OffbeatError, match=problem) as caught:
        plan(DemoOptions(**options))
    assert remedy in str(caught.value)
    assert caught.value.code == ExitCode.FAILED
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    "options",
    [
        {"target_accuracy": 0.9, "target_loss": 0.3},
        {"unpaced": True, "step_seconds": 0.2},
        {"unpaced": True, "fixed_parts": "0,0,0.5"},
        {"sync": "bsp", "rate": 3},
        {"sync": "local-sgd:4", "no_overlap": True},
        {"rate": 3, "search": "robust"},
        {"rate": 3, "sync": "adsp:4"},
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(options):
    with pytest.raises(OffbeatError) as caught:
        plan(DemoOptions(**options))
    assert caught.value.code == ExitCode.USAGE


def test_workers_are_named_in_the_order_of_their_speeds():
    assert list(parse_speeds("2, 1").items()) == [("worker-1", 2.0), ("worker-2", 1.0)]


def test_workers_of_a_parallelized_model_hold_no_data():
    assert plan(DemoOptions(sync="{mel-async: {mode: parallelized}}")).parallelized
    assert not plan(DemoOptions(sync="mel-async")).parallelized
