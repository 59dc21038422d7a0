"""Comparisons: the same bytes however they are run, resumed where they were interrupted."""

import json

import pytest

pytest.importorskip("torch")

from offbeat_cli.simulator import job
from offbeat_cli.simulator.code import digest_of
from offbeat_cli.simulator.compare import compare, dumps
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.models import models


def scenario(**changes):
    values = {
        "name": "small",
        "task": "digits",
        "devices": [
            {"name": "slow", "step_s": 0.3, "commit_s": 0.1, "jitter": 0.1},
            {"name": "fast", "count": 2, "step_s": 0.1, "commit_s": 0.1, "jitter": 0.1},
        ],
        "training": {"batch": 16, "lr": 0.1},
        "check_period_s": 3,
        "target": {"loss": 1.8, "smooth": 3},
        "limit_s": 30,
        "seeds": 2,
        "compare": ["bsp", "adsp"],
        **changes,
    }
    return Scenario.make(values, "small.yaml")


def test_processes_interruptions_and_other_scenarios_change_no_byte(tmp_path):
    alone = compare(scenario(), folder=tmp_path / "alone", workers=1)
    beside = compare(scenario(), folder=tmp_path / "beside", workers=2)
    assert dumps(beside.to_json()) == dumps(alone.to_json())
    files = {file.name: file.read_bytes() for file in (tmp_path / "alone").iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "beside").iterdir()} == files
    assert len(files) == 4

    # Half of it is lost, and one file was being written: those are made again, the others are not.
    names = sorted(files)
    (tmp_path / "alone" / names[0]).unlink()
    (tmp_path / "alone" / names[1]).write_text("{")
    made = []
    wider = scenario(compare=["bsp", "adsp"], name="another")
    resumed = compare(
        wider,
        folder=tmp_path / "alone",
        workers=1,
        progress=lambda at: made.append(at) if at.note and at.note.figures else None,
    )
    assert len(made) == 2
    assert resumed.to_json()["results"] == alone.to_json()["results"]
    assert {file.name: file.read_bytes() for file in (tmp_path / "alone").iterdir()} == files


def test_the_figures_are_those_of_the_runs():
    result = compare(scenario(), workers=1)
    assert result.scenario.heterogeneity == pytest.approx((1 + 3 + 3) / 3)
    both = {entry.label: entry for entry in result.results}
    for entry in both.values():
        shown = entry.to_json()
        assert shown["reached"] is True
        assert shown["time_s"] == pytest.approx(sum(shown["times_s"]) / 2)
        assert shown["interval_s"][0] <= shown["time_s"] <= shown["interval_s"][1]
        assert shown["compute_share"] + shown["commit_share"] + shown["wait_share"] == pytest.approx(1)
        for run in entry.runs:
            last = run["curve"]["loss"][-3:]
            assert sum(last) / 3 == pytest.approx(run["loss"])
            assert run["loss"] <= 1.8 < sum(run["curve"]["loss"][-4:-1]) / 3
            assert run["curve"]["time_s"][-1] == run["time_s"]
    assert both["bsp"].mean("wait_share") > 0.2
    assert both["adsp"].mean("wait_share") == 0
    assert both["adsp"].time_s < both["bsp"].time_s
    assert json.loads(dumps(result.to_json()))["results"][0]["model"] == "bsp"


def test_a_target_that_is_not_reached_costs_the_limit():
    result = compare(
        scenario(target={"loss": 0.001, "smooth": 2}, limit_s=5, seeds=1, compare=["asp"]), workers=1
    )
    shown = result.to_json()["results"][0]
    assert shown["reached"] is False
    assert shown["times_s"] == [5.0]
    assert shown["interval_s"] == [5.0, 5.0]
    assert not result.reached


def test_a_model_that_diverges_is_shown_without_numbers_that_are_none():
    result = compare(
        scenario(training={"batch": 16, "lr": 1e6}, limit_s=6, seeds=1, compare=["asp", "bsp"]), workers=1
    )
    text = dumps(result.to_json())
    assert "NaN" not in text
    assert "Infinity" not in text


def test_what_is_wrong_with_a_task_is_said_from_another_process_too(tmp_path):
    (tmp_path / "odd.py").write_text(
        "import torch\n\n\ndef build_model():\n    return torch.nn.Linear(1, 1)\n\n\n"
        "def load_data(split):\n    raise ValueError('the disk is gone')\n\n\n"
        "def loss_and_metric(model, batch):\n    return model(batch[0]).sum(), 0.0\n"
    )
    broken = scenario(task="odd", tasks=[str(tmp_path / "odd.py")])
    for workers in (1, 2):
        with pytest.raises(OffbeatError, match=r"odd\.py.*the disk is gone"):
            compare(broken, workers=workers)


@pytest.mark.parametrize("kept", ["{}", "[]", "null", "5", '{"reached": true, "time_s": 1}', "\udcff"])
def test_a_kept_run_that_is_none_is_made_again(tmp_path, kept):
    small = scenario(compare=["bsp"], seeds=1, limit_s=3)
    first = compare(small, folder=tmp_path, workers=1)
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    file.write_bytes(kept.encode("utf-8", "surrogateescape"))
    assert compare(small, folder=tmp_path, workers=1).to_json() == first.to_json()
    assert file.read_bytes() == written


def test_a_model_that_is_edited_while_it_runs_is_said_and_not_kept(tmp_path):
    file = tmp_path / "mine.py"
    text = "from offbeat_scheduler.models.bsp import BSP\n\n\nclass Mine(BSP):\n    name = 'mine'\n"
    file.write_text(text)
    small = scenario(compare=[f"{file}:Mine"], seeds=1, limit_s=3)
    runs = tmp_path / "runs"

    def edit(progress):
        file.write_text(text + "    edited = True\n")

    with pytest.raises(OffbeatError, match="edited meanwhile"):
        compare(small, folder=runs, workers=1, progress=edit)
    assert list(runs.iterdir()) == []
    assert compare(small, folder=runs, workers=1).results[0].runs


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OffbeatError, match="file"):
        compare(scenario(), folder=tmp_path / "file" / "runs", workers=1)


# ---- what is taken for the same run ---------------------------------------------------------


def key(seed=1, entry=0, **changes):
    made = scenario(**changes)
    return job.key(made, made.compare[entry], seed)


def test_a_run_is_the_same_where_all_that_determines_it_is_the_same():
    same = key()
    assert key(name="other", seeds=5, compare=["bsp", "asp", "ssp"]) == same
    assert key(compare=[{"label": "called otherwise", "sync": "bsp"}]) == same
    for changes in (
        {"limit_s": 31},
        {"server_s": 0.1},
        {"check_period_s": 4},
        {"training": {"batch": 17, "lr": 0.1}},
        {"compare": [{"sync": "bsp", "training": {"lr": 0.2}}]},
        {"compare": ["asp"]},
        {"target": {"loss": 1.4, "smooth": 3}},
        {"devices": [{"name": "slow", "step_s": 0.4}]},
        {"task": {"name": "digits", "options": {"hidden": 65}}},
    ):
        assert key(**changes) != same, changes
    assert key(seed=2) != same


def test_a_task_that_was_edited_is_another_one(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("X = 1\n")
    before = key(task="own", tasks=[str(path)])
    path.write_text("X = 2\n")
    assert key(task="own", tasks=[str(path)]) != before


def test_comments_are_no_code_and_one_models_code_is_not_anothers(tmp_path):
    import importlib.util

    def model(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("mine_for_digests", path)
        module = importlib.util.module_from_spec(spec)
        import sys

        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return digest_of(module.Mine)

    first = model('class Mine:\n    """Said."""\n    a = 1\n')
    assert model('# why\nclass Mine:\n    """Said otherwise."""\n\n    a = 1\n') == first
    assert model("class Mine:\n    a = 2\n") != first
    assert digest_of(models()["bsp"]) != digest_of(models()["adsp"])


def test_learners_without_data_train_on_the_hubs_and_what_travels_to_them_is_counted():
    """The same fleet on a link of 2 ms a sample, and on one of 50 ms: there each is given fewer."""
    learned = {}
    for sample_s in (0.002, 0.05):
        devices = [
            {"name": "slow", "step_s": 0.3, "commit_s": 0.1, "sample_s": sample_s},
            {"name": "fast", "count": 2, "step_s": 0.1, "commit_s": 0.1, "sample_s": sample_s},
        ]
        entry = {"mel-async": {"mode": "parallelized", "cycle_s": 6}}
        given = scenario(devices=devices, compare=[entry], limit_s=60, seeds=[1], target={"loss": 0.01})
        learned[sample_s] = job.run_job(given, given.compare[0], 1)
    near, far = learned[0.002], learned[0.05]
    assert near["loss"] < 1.0
    assert near["steps"] > 1.5 * far["steps"]
    vectors = 4 * 4810 * 2 * near["commits"]  # a model each way
    assert near["bytes"] > vectors + 5 * 700 * (64 * 4 + 8)
    with pytest.raises(OffbeatError, match=r"sample_s.*negative"):
        scenario(devices=[{"step_s": 0.1, "sample_s": -1}])
