"""What a scenario's file may say, and what is said of one that makes no sense."""

import copy
from pathlib import Path

import pytest

from offbeat_cli.simulator.entries import prepare
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.errors import OffbeatError

GOOD = {
    "task": "digits",
    "devices": [{"count": 2, "step_s": 0.1}],
    "target": {"loss": 0.4},
    "limit_s": 100,
    "compare": ["bsp", "adsp"],
}


def scenario(folder=Path(), **changes):
    return Scenario.make({**copy.deepcopy(GOOD), **changes}, "it.yaml", folder=folder)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"compare": ["bps"]}, ["compare.0", "'bps'", "did you mean 'bsp'"]),
        ({"compare": ["adsp", {"ssp": {"stalenes": 3}}]}, ["compare.1", "stalenes", "'staleness'"]),
        ({"compare": [{"ssp": {"staleness": -3}}]}, ["compare.0", "staleness", "-3"]),
        ({"compare": ["bsp", "bsp"]}, ["compare", "'bsp'", "label"]),
        ({"compare": []}, ["compare", "there are none", "adsp"]),
        ({"compare": "bsp"}, ["compare", "'bsp'", "no list"]),
        ({"compare": [{"sync": "bsp", "overlap": True}]}, ["compare.0", "overlap", "bsp"]),
        ({"compare": [{"sync": "bsp", "training": {"lrr": 1}}]}, ["compare.0", "lrr", "'lr'"]),
        ({"compare": [{"nowhere.py:Model": {}}]}, ["compare.0", "nowhere.py"]),
        ({"devices": []}, ["devices", "there are none", "step_s"]),
        ({"devices": [{"count": 0, "step_s": 1}]}, ["devices.0.count", "0", "1 or more"]),
        ({"devices": [{"step_s": -1}]}, ["devices.0.step_s", "-1", "give"]),
        ({"devices": [{"step_s": 1e-300}]}, ["devices.0.step_s", "1e-300", "0.000001 s"]),
        ({"devices": [{"step_s": 1, "speeds": [[5, 1e-9]]}]}, ["devices.0.speeds", "0.000001 s"]),
        ({"devices": [{"step_s": 1, "count": 10**30}]}, ["devices.0.count", "up to 10000"]),
        ({"devices": [{"step_s": 1, "count": 6000}] * 2}, ["devices: 12000", "up to 10000"]),
        ({"check_period_s": 1e-300}, ["check_period_s", "1e-300", "0.01"]),
        ({"compare": [{"sync": "adsp", "check_period_s": 1e-6}]}, ["compare.0.check_period_s", "0.01"]),
        ({"evaluate_every_s": 1e-6}, ["evaluate_every_s: 1e-06", "evaluate less often"]),
        ({"compare": [{"sync": "bsp", "label": "a\nb"}]}, ["compare.0.label", "one line"]),
        ({"devices": [{"step_s": 1, "commit_s": -3}]}, ["devices.0.commit_s", "-3", "0 or more"]),
        ({"devices": [{"step_z": 1}]}, ["devices.0.step_s: is missing", "step_z", "'step_s'"]),
        ({"devices": [{"step_s": 1, "speeds": [[5, -1]]}]}, ["devices.0.speeds", "[at_s, step_s]"]),
        ({"devices": [{"step_s": 1, "fixed_s": 2}]}, ["fixed_s", "2", "1 s"]),
        ({"devices": [{"step_s": 1}, {"step_s": 1, "joins_at": 5, "leaves_at": 3}]}, ["leaves_at: 3", "5"]),
        ({"devices": [{"step_s": 1, "joins_at": 5}]}, ["devices", "5 s", "joins_at: 0"]),
        ({"devices": [{"step_s": 1}, {"step_s": 1, "joins_at": 900}]}, ["devices.1.joins_at: 900", "100"]),
        ({"devices": [{"name": "a", "step_s": 1}, {"name": "a", "step_s": 1}]}, ["'a'", "different"]),
        ({"target": {"accuracy": 1.2}}, ["target.accuracy", "1.2", "0.85"]),
        ({"target": {"loss": -1}}, ["target.loss", "-1", "above 0"]),
        ({"target": {}}, ["target", "either accuracy or loss"]),
        ({"target": {"loss": 0.4, "smooth": 200}}, ["limit_s: 100", "200 evaluations", "smooth"]),
        ({"limit_s": 0.5}, ["limit_s: 0.5", "first evaluation"]),
        ({"limit_s": -5}, ["limit_s", "-5"]),
        ({"seeds": 0}, ["seeds", "0", "1 to"]),
        ({"seeds": [3, 3]}, ["seeds", "each once"]),
        ({"speling": 1}, ["speling", "unknown key"]),
        ({"task": "mnist"}, ["task", "'mnist'", "digits"]),
        ({"tasks": ["nowhere.py"]}, ["nowhere.py", "No such file"]),
        ({"training": {"partition": {"dirichlet": -1}}}, ["training.partition", "dirichlet:-1", "above 0"]),
        ({"training": {"batch": 0}}, ["training.batch", "0"]),
        (
            {
                "task": {"name": "digits", "partition": "dirichlet:1"},
                "training": {"partition": "dirichlet:2"},
            },
            ["dirichlet:1", "dirichlet:2", "give one"],
        ),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_with_field_value_and_remedy(changes, parts):
    with pytest.raises(OffbeatError) as refused:
        scenario(**changes)
    text = str(refused.value)
    assert text.startswith("it.yaml")
    assert [part for part in parts if part not in text] == []


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OffbeatError, match=r"nowhere\.yaml"):
        Scenario.read(tmp_path / "nowhere.yaml")


def test_the_issues_own_example_is_understood(tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(
        """
task: fashion-mnist            # any task, with its options
devices:
  - {count: 3, step_s: 1.0, commit_s: 0.3}
  - {count: 4, step_s: 0.333, commit_s: 0.3}
training: {batch: 32, lr: 0.05, partition: {dirichlet: 0.3}}
check_period_s: 20
target: {loss: 0.45, smooth: 10}
limit_s: 1500
evaluate_every_s: 1
seeds: 5
overlap: true
compare: [bsp, {ssp: {staleness: 3}}, asp, {fixed-adacomm: {tau: 8}}, adacomm, adsp, {adsp: {rate: 4}}]
"""
    )
    read = Scenario.read(file)
    assert read.name == "example"
    assert read.seeds == (1, 2, 3, 4, 5)
    assert read.partition == "dirichlet:0.3"
    assert [entry.shown for entry in read.compare] == [
        "bsp",
        "ssp(staleness=3)",
        "asp",
        "fixed-adacomm(tau=8)",
        "adacomm",
        "adsp",
        "adsp(rate=4)",
    ]
    assert read.heterogeneity == pytest.approx((3 * 1 + 4 / 0.333) / 7)
    assert len(read.virtual_devices()) == 7


def test_an_entry_may_have_its_own_label_training_and_overlap():
    read = scenario(
        overlap=False,
        compare=[
            {"label": "quick", "sync": {"adsp": {"rate": 4}}, "training": {"lr": 0.2}, "overlap": True},
            {"sync": "asp", "training": {"lr": 0.2}},
        ],
    )
    first, second = read.compare
    assert (first.shown, second.shown) == ("quick", "asp lr=0.2")
    prepared = prepare(read, first, seed=7)
    assert prepared.run.training.learning_rate == 0.2
    assert prepared.run.training.seed == 7
    assert prepared.model.options.overlap is True


@pytest.mark.parametrize("overlap", [True, False])
def test_the_scenarios_overlap_reaches_every_model_that_has_the_choice(overlap):
    read = scenario(overlap=overlap, compare=["asp", "adsp", {"fedbuff": {"k": 2}}, "bsp", "ssp"])
    models = [prepare(read, entry, 1).model for entry in read.compare]
    said = {model.name: getattr(model.options, "overlap", None) for model in models}
    assert said == {"asp": overlap, "adsp": overlap, "fedbuff": overlap, "bsp": None, "ssp": None}


def test_paths_are_relative_to_the_scenarios_file(tmp_path):
    (tmp_path / "own.py").write_text(
        "def build_model(): ...\ndef load_data(split): ...\ndef loss_and_metric(m, b): ...\n"
    )
    (tmp_path / "mine.py").write_text(
        "from offbeat_scheduler.models.bsp import BSP\n\n\nclass Mine(BSP):\n    name = 'mine'\n"
    )
    read = scenario(tmp_path, task="own", tasks=["own.py"], compare=["mine.py:Mine"])
    assert read.tasks == (tmp_path / "own.py",)
    assert read.compare[0].shown == "mine.py:Mine"
    assert type(prepare(read, read.compare[0], 1).model).__name__ == "Mine"


def test_a_step_scales_with_the_batch_but_for_its_fixed_part():
    device = scenario(devices=[{"step_s": 1.0, "fixed_s": 0.2, "speeds": [[10, 0.5]]}]).virtual_devices()[0]
    assert device.step_at(0) == 1.0
    assert device.step_at(0, batches=2) == pytest.approx(0.2 + 0.8 * 2)
    assert device.step_at(0, batches=0.5) == pytest.approx(0.2 + 0.8 / 2)
    assert device.step_at(0, halved=True) == pytest.approx(0.2 + 1.0)
    assert device.step_at(0, batches=2, halved=True) == pytest.approx(2 * 0.2 + 0.8 * 2)
    assert device.step_at(10) == 0.5
    assert device.step_at(10, batches=2) == pytest.approx(0.2 + 0.3 * 2)


EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_are_scenarios(file):
    assert Scenario.read(file).compare
