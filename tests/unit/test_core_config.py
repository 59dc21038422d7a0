"""Configuration: each source overrides the weaker one, and what is wrong is named with its remedy."""

import pytest

from offbeat_core.config import (
    RunSettings,
    SchedulerSettings,
    WorkerSettings,
    load_service_settings,
    parse_yaml,
    service_parser,
    validate,
)
from offbeat_core.errors import OffbeatError


def worker(*options, environ=None):
    parser = service_parser(WorkerSettings, "offbeat-worker", "")
    return load_service_settings(WorkerSettings, parser.parse_args(options), environ or {})


def run(text):
    return validate(RunSettings, parse_yaml(text, "run.yaml"), "run.yaml")


def test_an_option_wins_over_a_variable_and_a_variable_over_the_file(tmp_path):
    file = tmp_path / "worker.yaml"
    file.write_text("name: from-file\nshards: 5\nshard: 2\ntasks: [a.py]\n")
    settings = worker(
        "--config",
        str(file),
        "--name",
        "from-option",
        environ={"OFFBEAT_SHARD": "4", "OFFBEAT_NAME": "from-variable"},
    )
    assert (settings.name, settings.shard, settings.shards) == ("from-option", 4, 5)
    assert [str(path) for path in settings.tasks] == ["a.py"]


def test_a_list_comes_from_a_variable_with_commas_or_a_repeated_option():
    assert [str(p) for p in worker(environ={"OFFBEAT_TASKS": "a.py,b.py"}).tasks] == ["a.py", "b.py"]
    assert [str(p) for p in worker("--tasks", "a.py", "--tasks", "b.py").tasks] == ["a.py", "b.py"]


def test_an_empty_variable_clears_an_optional_file():
    assert worker(environ={"OFFBEAT_HEALTH_FILE": ""}).health_file is None


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--shard", "3", "--shards", "3"], ["shard", "3"]),
        (["--scheduler", "somewhere"], ["scheduler", "somewhere", "HOST:PORT"]),
        (["--device", "tpu"], ["device", "tpu"]),
        (["--device", "tpu"], ["auto, cpu, cuda"]),
        (["--name", "a b"], ["name", "a b", "letters, digits"]),
        (["--step-seconds", "1e30"], ["step_seconds", "1e30", "86400"]),
        (["--step-seconds", "-1"], ["step_seconds", "-1"]),
        (["--step-seconds", "nan"], ["step_seconds", "nan"]),
        (["--step-seconds", "0.1", "--step-fixed-seconds", "0.2"], ["step_fixed_seconds", "0.2", "0.1"]),
        (["--max-batch", "-1"], ["max_batch", "-1"]),
        (["--config", "missing.yaml"], ["--config", "missing.yaml", "No such file"]),
    ],
)
def test_a_bad_option_is_named_with_its_value(options, names):
    with pytest.raises(OffbeatError) as caught:
        worker(*options)
    for name in names:
        assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("task: digits\ntrainin: {}", ["trainin", "did you mean 'training'"]),
        ("task: digits\ntraining: {bach: 3}", ["training.bach", "did you mean 'batch'"]),
        ("task: digits\ntarget: {accuracy: 95}", ["target.accuracy", "95"]),
        ("task: digits\ntarget: {accuracy: 0.9, loss: 1}", ["target", "either"]),
        (
            "task: digits\ntarget: {accuracy: 0.9}\nevaluate: {required: false}",
            ["target.accuracy", "evaluator"],
        ),
        ("task: {name: digits, partition: by-luck}", ["task.partition", "by-luck", "dirichlet:ALPHA"]),
        ("task: {name: digits, partition: 'dirichlet:-1'}", ["task.partition", "dirichlet:-1"]),
        ("task: {name: digits, digest: xyz}", ["task.digest", "xyz", "SHA-256"]),
        (
            "task: digits\ntraining: {seed: 99999999999999999999999}",
            ["training.seed", "18446744073709551615"],
        ),
        ("task: digits\ntraining: {batch: 99999999999}", ["training.batch", "4294967295"]),
        ("task: digits\nevaluate: {batch: 99999999999}", ["evaluate.batch", "4294967295"]),
        ("workers: 2", ["task", "missing"]),
        ("task: digits\n  workers: 3", ["run.yaml", "line 2", "YAML"]),
        ("- a\n- b", ["mapping"]),
        ("task: digits\ntraining: {learning_rate: .inf}", ["training.learning_rate", "finite"]),
    ],
)
def test_a_bad_run_file_is_refused_by_field_value_and_remedy(text, names):
    with pytest.raises(OffbeatError) as caught:
        run(text)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("text", "model", "options"),
    [
        ("sync: adsp", "adsp", {}),
        ("sync: local-sgd:8", "local-sgd", {"": "8"}),
        ("sync: {adsp: {rate: 4}}", "adsp", {"rate": 4}),
        ("sync: {bsp: }", "bsp", {}),
        ("sync: {model: adsp, options: {rate: 2}}", "adsp", {"rate": 2}),
    ],
)
def test_each_way_to_write_a_sync_model(text, model, options):
    sync = run(f"task: digits\n{text}").sync
    assert (sync.model, sync.options) == (model, options)


def test_a_file_that_is_not_text_is_named(tmp_path):
    file = tmp_path / "worker.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OffbeatError, match=r"--config: .*worker\.yaml is not text in UTF-8"):
        worker("--config", str(file))


def test_an_accuracy_target_needs_an_evaluator_and_a_loss_does_not():
    assert run("task: digits\ntarget: {accuracy: 0.9}").needs_evaluator
    assert not run("task: digits\ntarget: {loss: 0.9}").needs_evaluator


def test_of_a_pace_that_a_file_says_any_part_may_be_fixed():
    settings = worker("--step-fixed-seconds", "0.2", "--step-seconds-file", "pace")
    assert (settings.step_fixed_seconds, settings.step_seconds) == (0.2, 0.0)


def test_a_lease_shorter_than_two_reports_is_refused():
    with pytest.raises(OffbeatError, match="lease_s"):
        validate(SchedulerSettings, {"lease_s": 1, "report_every_s": 1}, "options")
