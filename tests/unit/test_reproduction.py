"""The source's experiments: scenario files, the runner, and the page that is computed from results."""

import itertools
import json
import re

import pytest
import yaml

from benchmarks.reproduction import __main__ as command
from benchmarks.reproduction import (
    build,
    claims,
    document,
    experiments,
    files,
    found,
    plots,
    rates,
    runner,
    trends,
)
from benchmarks.reproduction.contenders import CONTENDERS
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.markdown import table
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.errors import OffbeatError

NAMES = sorted(build.build())


# ---- scenario files -----------------------------------------------------------------------


def test_the_files_are_what_the_program_writes():
    written = {path.stem: path.read_text() for path in files.FOLDER.glob("*.yaml")}
    made = {
        name: files.text(name, content, experiments.ABOUT[name]) for name, content in build.build().items()
    }
    stale = {name for name in written.keys() | made.keys() if written.get(name) != made.get(name)}
    assert not stale, "run: python -m benchmarks.reproduction scenarios"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_file_says_what_was_built(name):
    built = json.loads(json.dumps(build.build()[name]))
    read = yaml.safe_load((files.FOLDER / f"{name}.yaml").read_text())
    assert _near(read, built)


def _near(read, built):
    if isinstance(built, dict):
        return read.keys() == built.keys() and all(_near(read[key], built[key]) for key in built)
    if isinstance(built, list):
        return len(read) == len(built) and all(map(_near, read, built))
    return read == pytest.approx(built) if isinstance(built, float) else read == built


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_can_be_run(name):
    """Reading checks the task, the models and their options."""
    scenario = Scenario.read(files.FOLDER / f"{name}.yaml")
    assert len(scenario.seeds) >= 5
    assert scenario.target.smooth == 10
    assert scenario.name == name


def test_every_experiment_of_the_issue_is_there_and_a_quick_run_leaves_none_out():
    assert "".join(experiments.EXPERIMENTS) == "abcdefgh"
    assert sorted(experiments.ABOUT) == NAMES
    for experiment in experiments.EXPERIMENTS.values():
        assert experiment.quick
        for scenario in runner.chosen(experiment, quick=True):
            asked = set(experiment.quick[scenario.name])
            assert {entry.shown for entry in scenario.compare} == asked, scenario.name
            assert len(scenario.seeds) == experiments.QUICK_SEEDS
            assert "ADSP" in asked or scenario.name.startswith("e-")


@pytest.mark.parametrize("asked", [1.0, 1.45, 2.0, 2.6, 29 / 9])
@pytest.mark.parametrize("size", [18, 36, 100, 500])
def test_a_fleet_has_the_heterogeneity_that_was_asked_for(asked, size):
    devices = build.fleet(asked, size)
    speeds = [1 / group["step_s"] for group in devices for _ in range(group["count"])]
    assert len(speeds) == size
    assert sum(speeds) / size / min(speeds) == pytest.approx(asked, rel=0.01)
    assert max(group["step_s"] for group in devices) == 1.0


def test_a_quick_run_makes_the_same_runs_as_the_full_one():
    """So that nothing is made twice: only seeds and entries are left out."""
    quick = {s.name: s for e in experiments.EXPERIMENTS.values() for s in runner.chosen(e, quick=True)}
    full = {s.name: s for e in experiments.EXPERIMENTS.values() for s in runner.chosen(e, quick=False)}
    assert set(quick) < set(full)
    for name, small in quick.items():
        assert set(small.seeds) < set(full[name].seeds)
        fields = {"compare": full[name].compare, "seeds": full[name].seeds}
        assert small.model_copy(update=fields) == full[name]


def test_every_scenario_gives_each_model_its_tuned_rate():
    choices = {"mlp": {"adsp": {"lr": 0.77}, "bsp": {"lr": 0.33}}}
    for name, content in build.build(choices).items():
        if content["task"]["name"] != "fashion-mnist" or content["task"]["options"].get("architecture"):
            continue
        for entry in content["compare"]:
            if name == "g-iid" or not name.startswith("g-"):
                if entry["sync"] == "bsp":
                    assert entry["training"] == {"lr": 0.33}, name
                if entry["sync"] == "adsp":
                    assert entry["training"] == {"lr": 0.77}, name


# ---- the runner ---------------------------------------------------------------------------


SMALL = """\
task: digits
devices:
  - {count: 2, step_s: 0.5, commit_s: 0.1}
  - {count: 1, step_s: 1.0, commit_s: 0.1}
training: {batch: 16, lr: 0.2}
check_period_s: 5
target: {loss: 1.9, smooth: 3}
limit_s: 60
seeds: 3
overlap: false
compare:
  - {label: BSP, sync: bsp}
  - {label: "Fixed ADACOMM(8)", sync: {fixed-adacomm: {tau: 8}}}
  - {label: ADSP, sync: adsp}
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Only (f), with one scenario that takes a second."""
    (tmp_path / "f-svm.yaml").write_text(SMALL)
    experiment = experiments.Experiment(
        "f", "Small", "Small?", {"f-svm": "small"}, {"f-svm": ("BSP", "ADSP")}
    )
    monkeypatch.setitem(experiments.EXPERIMENTS, "f", experiment)

    def run(said=None, **options):
        runner.run(
            ["f"],
            workers=1,
            folder=tmp_path,
            runs=tmp_path / "runs",
            results=tmp_path / "results",
            say=(said if said is not None else []).append,
            **{"quick": False, **options},
        )
        return Found.read("f-svm", tmp_path / "results")

    return run


def test_an_experiment_is_run_and_found_again(small, tmp_path):
    said = []
    quick = small(quick=True)
    assert quick.content["quick"]
    assert quick.labels == ["BSP", "ADSP"]
    assert quick.seeds == experiments.QUICK_SEEDS
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(kept) == 2 * experiments.QUICK_SEEDS
    full = small(said)
    assert full.seeds == 3
    assert not full.content["quick"]
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(after) == 9
    assert kept.items() <= after.items()
    assert full["ADSP"]["times_s"][:2] == quick["ADSP"]["times_s"]
    again = small()
    assert again.content["results"] == full.content["results"]
    assert any("9 of 9 runs" in line for line in said)


def test_what_is_left_is_foretold_from_what_was_made():
    now = [0.0]
    clock = runner.Remaining({"x": 4, "c-workers-500": 2}, now=lambda: now[0])
    assert clock.text() == ""
    clock.finished("x", made=False)  # found: says nothing about how long a run takes
    now[0] = 1.0
    assert clock.seconds() is None
    clock.finished("x", made=True)
    now[0] = 10.0
    cost = runner.COST_S["c-workers-500"]
    assert clock.seconds() == pytest.approx(10 * (2 + 2 * cost))
    assert "left" in clock.text()


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [("QUICK", "yes", "QUICK: 'yes'"), ("ONLY", "a,z", "'z'"), ("WORKERS", "0", "WORKERS: '0'")],
)
def test_a_wrong_setting_is_named(variable, value, named, monkeypatch, capsys):
    monkeypatch.setattr(runner, "run", lambda *args, **options: pytest.fail("it ran"))
    monkeypatch.setenv(variable, value)
    assert command.main([]) == 1
    assert named in capsys.readouterr().err


def test_only_some_experiments_are_run_in_their_order(monkeypatch):
    monkeypatch.setenv("ONLY", "c, a")
    assert command._only() == ["a", "c"]
    monkeypatch.delenv("ONLY")
    assert command._only() == list("abcdefgh")


def test_an_unknown_place_to_tune_in_is_named(capsys):
    assert command.main(["tune", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert command.main(["document", "mlp"]) == 1


# ---- figures ------------------------------------------------------------------------------


def entry(label, times, *, reached=None, compute=0.9, **more):
    count = len(times) if reached is None else reached
    return {
        "label": label,
        "model": "x",
        "time_s": sum(times) / len(times),
        "times_s": times,
        "reached": count,
        "lr": 0.1,
        "compute_share": compute,
        "commit_share": 0.04,
        "wait_share": round(0.96 - compute, 6),
        "steps": 1000,
        "commits": 100,
        "intervals_s": [5.0] * len(times),
        "curve": [[0, 2.0], [10, 1.0], [20, 0.5]],
        **more,
    }


def result(name, *entries, quick=False, seeds=5):
    return {
        "scenario": name,
        "quick": quick,
        "seeds": list(range(1, seeds + 1)),
        "heterogeneity": 3.2,
        "target": {"loss": 0.5, "smooth": 10},
        "limit_s": 1500,
        "results": list(entries),
        "made_with": {
            "commit": "abc1234",
            "torch": "2.0",
            "date": "",
            "offbeat": "",
            "numpy": "",
            "python": "",
        },
    }


def five(mean):
    return [mean * factor for factor in (0.98, 0.99, 1.0, 1.01, 1.02)]


def test_a_lead_is_one_minus_the_ratio_of_means():
    content = Found(result("x", entry("ADSP", five(40)), entry("Fixed ADACOMM(8)", five(100))))
    lead = content.lead("ADSP", "Fixed ADACOMM(8)")
    assert lead.mean == pytest.approx(0.6)
    assert lead.low <= lead.mean <= lead.high
    assert not lead.open_above
    assert not lead.open_below


def test_a_target_that_was_not_reached_leaves_the_ratio_open_on_the_right_side():
    slow = entry("BSP", [1500.0] * 5, reached=3)
    content = Found(result("x", entry("ADSP", five(100)), slow))
    assert content.ratio("BSP", "ADSP").text.startswith("> 15.00")
    assert content.time("BSP") == "> 1500"
    assert content.lead("ADSP", "BSP").open_above  # BSP would have taken longer still
    assert content.ratio("BSP", "BSP").text == "not known"
    assert content.best(["BSP", "ADSP"]) == "ADSP"
    assert content.best([]) is None


def test_a_mean_curve_ends_with_the_first_seed_and_where_one_diverged():
    long = {"time_s": list(range(1, 101)), "loss": [2.0] * 100}
    short = {"time_s": list(range(1, 51)), "loss": [1.0] * 50}
    points = found.mean_curve([long, short])
    assert len(points) <= found.POINTS
    assert points[0] == [1, 1.5]
    assert points[-1] == [50, 1.5]
    broken = {"time_s": [1, 2, 3], "loss": [1.0, 2.0, None]}
    assert [at_s for at_s, _ in found.mean_curve([broken, long])] == [1, 2]
    assert found.mean_curve([{"time_s": [1], "loss": [None]}]) == []


def ratios(*means):
    return [(float(index), Ratio(mean, mean - 0.01, mean + 0.01)) for index, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((0.1, 0.2, 0.4), "yes"),
        ((0.1, 0.3, 0.29, 0.4), "yes"),
        ((0.1, 0.5, 0.3), "in the end, but not steadily"),
        ((0.4, 0.2), "no"),
        ((0.4, 0.41), "no: it stays the same"),
    ],
)
def test_a_trend_is_judged_from_its_leads(means, verdict):
    assert claims.grows("b", "it grows", "here", ratios(*means)).verdict == verdict


def test_a_trend_compares_with_the_taus_that_all_points_have(tmp_path):
    """Else a lead would fall only because more was tried against it."""
    wide = result(
        "a", *(entry(f"Fixed ADACOMM({tau})", five(tau)) for tau in (4, 8, 16)), entry("ADSP", five(2))
    )
    narrow = result(
        "b", *(entry(f"Fixed ADACOMM({tau})", five(tau)) for tau in (8, 16)), entry("ADSP", five(2))
    )
    both = {"a-models": Found(wide), "b-heterogeneity-2.00": Found(narrow)}
    assert set(trends.barrier("b", both).values()) == {"Fixed ADACOMM(8)"}
    assert [lead.mean for _, lead in trends.leads("b", both)] == pytest.approx([0.75, 0.75])
    assert trends.leads("b", {}) == []


def test_one_point_is_no_trend():
    assert claims.grows("b", "it grows", "here", ratios(0.4)) is None


@pytest.mark.parametrize(
    ("lead", "verdict"),
    [
        (Ratio(0.65, 0.6, 0.7), "yes"),
        (Ratio(0.6, 0.55, 0.63), "within the interval"),
        (Ratio(0.5, 0.45, 0.55), "no, less"),
        (Ratio(0.7, 0.6, 0.8, open_below=True), "no: ADSP did not reach the target with every seed"),
    ],
)
def test_a_lead_is_judged_by_the_sources(lead, verdict):
    assert claims.reaches(lead, 0.624) == verdict


def test_implicit_momentum_is_that_of_the_sources_plot():
    expected = {1: 0.459, 2: 0.298, 3: 0.221, 4: 0.175, 5: 0.145, 10: 0.078}
    for rate, mu in expected.items():
        assert rates.implicit_momentum(rate) == pytest.approx(mu, abs=0.001)


def test_a_table_aligns_numbers_to_the_right():
    lines = table(["", "Seconds"], [["BSP", "> 12"], ["ADSP", "7"]])
    assert lines == ["|  | Seconds |", "| --- | ---: |", "| BSP | > 12 |", "| ADSP | 7 |"]


# ---- the page -----------------------------------------------------------------------------


def write_results(folder, *, quick=False, lead=0.35, seeds=5):
    """Results for every scenario: each model takes 100 s but ADSP, which takes `lead` of that."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in build.build().items():
        entries = []
        for number, item in enumerate(content["compare"]):
            ours = item["label"].startswith("ADSP")
            times = [(100 * lead if ours else 100 + number) * (1 + seed / 100) for seed in range(seeds)]
            compute = 0.92 if ours else 0.45
            entries.append(entry(item["label"], times, compute=compute))
        found.write(result(name, *entries, quick=quick, seeds=seeds), folder)


@pytest.fixture
def undrawn(monkeypatch):
    """Plots take seconds; what the page says does not depend on them."""
    monkeypatch.setattr(document, "_pictures", lambda *arguments: [])


def test_the_page_is_computed_from_the_results(tmp_path):
    write_results(tmp_path / "results")
    page = document.write(tmp_path / "docs", tmp_path / "results")
    text = page.read_text()
    assert "a full run" in text
    assert f"{len(NAMES)} of {len(NAMES)} scenarios" in text
    assert "abc1234" in text
    summary = text.split("## What the source says")[1].split("\n## ")[0]
    assert "66.3 % less time than Fixed ADACOMM(4), the best tau" in summary
    assert summary.count("| (a) |") == 4
    for letter in "abcdefgh":
        assert f"## ({letter}) " in text
    for picture in re.findall(r"\]\((reproduction/[^)]*svg)\)", text):
        file = tmp_path / "docs" / picture
        assert file.stat().st_size < 120_000
    assert len(list((tmp_path / "docs" / "reproduction").iterdir())) == 9


def test_another_result_gives_another_verdict(tmp_path, undrawn):
    write_results(tmp_path / "results", lead=0.9)
    summary = document.write(tmp_path / "docs", tmp_path / "results").read_text()
    headline = next(line for line in summary.splitlines() if "up to 62.4 %" in line)
    assert headline.endswith("| no, less |")


def test_the_same_results_give_the_same_plot(tmp_path):
    write_results(tmp_path / "results")
    content = Found.read("f-svm", tmp_path / "results")
    for docs in ("first", "second"):
        plots.groups([("svm", content)], tmp_path / docs / "times.svg", content.labels)
    first, second = ((tmp_path / docs / "times.svg").read_bytes() for docs in ("first", "second"))
    assert first == second


def test_a_quick_run_is_called_one(tmp_path, undrawn):
    write_results(tmp_path / "results", quick=True, seeds=2)
    text = document.write(tmp_path / "docs", tmp_path / "results").read_text()
    assert "a QUICK run" in text
    assert "QUICK run, 2 paired seeds" in text
    assert "a full run" not in text


def test_the_page_says_what_was_not_run(tmp_path, undrawn):
    write_results(tmp_path / "results")
    for path in itertools.chain(*((tmp_path / "results").glob(f"{letter}-*") for letter in "bcdefgh")):
        path.unlink()
    text = document.write(tmp_path / "docs", tmp_path / "results").read_text()
    assert text.count("Not run yet") == 7
    assert "`make reproduce ONLY=h`" in text


def test_a_page_without_any_results_can_be_written(tmp_path, undrawn):
    text = document.write(tmp_path / "docs", tmp_path / "nothing").read_text()
    assert text.count("Not run yet") == 8


def test_contenders_are_models_that_exist():
    for contender in CONTENDERS.values():
        assert isinstance(contender.sync, str) or list(contender.sync) == [contender.model]


def test_a_scenario_folder_without_the_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OffbeatError, match=r"a-models\.yaml"):
        runner.chosen(experiments.EXPERIMENTS["a"], quick=False, folder=tmp_path)
