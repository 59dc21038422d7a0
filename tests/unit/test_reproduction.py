"""The sources' experiments: scenario files, the runner, and the page that is computed from results."""

import itertools
import json
import re

import pytest
import yaml

from benchmarks.reproduction import __main__ as command
from benchmarks.reproduction import (
    build,
    build_allocation,
    claims,
    cycles,
    document,
    experiments,
    files,
    found,
    parts,
    plots,
    rates,
    runner,
    sections,
    staleness,
    trends,
)
from benchmarks.reproduction.contenders import CONTENDERS
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.markdown import table
from offbeat_cli.simulator.scenario import Scenario
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.allocation import solve

NAMES = sorted(build.build())
LETTERS = "abcdefghijk"


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
    assert "".join(experiments.EXPERIMENTS) == LETTERS
    assert sorted(experiments.ABOUT) == NAMES
    for experiment in experiments.EXPERIMENTS.values():
        assert experiment.quick or experiment.solved
        for scenario in runner.chosen(experiment, quick=True):
            asked = set(experiment.quick[scenario.name])
            assert {entry.shown for entry in scenario.compare} == asked, scenario.name
            assert len(scenario.seeds) == experiments.QUICK_SEEDS
            assert asked & {"ADSP", "ADSP rate 1", "Optimised"}, scenario.name


@pytest.mark.parametrize("asked", [1.0, 1.45, 2.0, 2.6, 29 / 9])
@pytest.mark.parametrize("size", [18, 36, 100, 500])
def test_a_fleet_has_the_heterogeneity_that_was_asked_for(asked, size):
    devices = parts.fleet(asked, size)
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
        if content["task"]["name"] != "fashion-mnist" or content["task"].get("options", {}).get(
            "architecture"
        ):
            continue
        for entry in content["compare"]:
            if name == "g-iid" or not (name.startswith("g-") or "-dirichlet-" in name):
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
    assert command._only() == list(LETTERS)


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
            more = {"models": [accuracies(0.01 * ours_first(number))] * seeds} if name[0] == "j" else {}
            entries.append(entry(item["label"], times, compute=compute, **more))
        found.write(result(name, *entries, quick=quick, seeds=seeds), folder)
    rows = [a_row(cycle_s, learners) for cycle_s in staleness.CYCLES_S for learners in staleness.LEARNERS]
    found.write(result(staleness.NAME, *rows), folder)


def ours_first(number):
    return 1 if number == 0 else 0


def accuracies(more, cycles=24):
    """A seed of (j): one model every 20 s, each better than the one before."""
    return {
        "time_s": [1 + 20 * n for n in range(cycles)],
        "value": [round(0.1 + 0.03 * n + (more if n > 1 else 0), 4) for n in range(cycles)],
    }


def a_row(cycle_s, learners, *, ours=1, equal=4):
    figures = {"average": 0.5, "updates": 60, "idle": 0.1}
    return {
        "cycle_s": cycle_s,
        "learners": learners,
        "c": 3.35,
        "full-cycle": {**figures, "max": ours, "updates": 72},
        "maximal": {**figures, "max": 0},
        "sync": {**figures, "max": 0},
        "eta": {**figures, "max": equal},
    }


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
    summary = text.split("## What the sources say")[1].split("\n## ")[0]
    assert "66.3 % less time than Fixed ADACOMM(4), the best tau" in summary
    assert summary.count("| (a) |") == 4
    for letter in LETTERS:
        assert f"## ({letter}) " in text
    for picture in re.findall(r"\]\((reproduction/[^)]*svg)\)", text):
        file = tmp_path / "docs" / picture
        assert file.stat().st_size < 120_000
    assert len(list((tmp_path / "docs" / "reproduction").iterdir())) == 12


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
    for path in itertools.chain(*((tmp_path / "results").glob(f"{letter}-*") for letter in LETTERS[1:])):
        path.unlink()
    text = document.write(tmp_path / "docs", tmp_path / "results").read_text()
    assert text.count("Not run yet") == len(LETTERS) - 1
    assert "`make reproduce ONLY=h`" in text


def test_a_page_without_any_results_can_be_written(tmp_path, undrawn):
    text = document.write(tmp_path / "docs", tmp_path / "nothing").read_text()
    assert text.count("Not run yet") == len(LETTERS)


def test_contenders_are_models_that_exist():
    for contender in CONTENDERS.values():
        assert isinstance(contender.sync, str) or list(contender.sync) == [contender.model]


def test_a_scenario_folder_without_the_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OffbeatError, match=r"a-models\.yaml"):
        runner.chosen(experiments.EXPERIMENTS["a"], quick=False, folder=tmp_path)


# ---- (i): staleness --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cycle_s", "learners", "c", "ours", "equal", "updates"),
    [
        (7.5, 10, 1.647, (1, 0.56), (2, 1.11), (15, 10)),
        (7.5, 20, 3.350, (1, 0.51), (4, 2.11), (72, 60)),
        (15.0, 10, 3.371, (1, 0.53), (4, 2.22), (36, 30)),
        (15.0, 20, 6.798, (1, 0.27), (7, 3.68), (137, 120)),
        (30.0, 20, 13.695, (1, 0.34), (15, 7.89), (276, 260)),
    ],
)
def test_the_published_setting_gives_what_is_known_of_it(cycle_s, learners, c, ours, equal, updates):
    row = staleness.row(cycle_s, learners)
    assert row["c"] == pytest.approx(c, abs=0.001)
    for scheme, (most, average) in (("full-cycle", ours), ("eta", equal)):
        assert row[scheme]["max"] == most
        assert row[scheme]["average"] == pytest.approx(average, abs=0.006)
    assert (row["full-cycle"]["updates"], row["sync"]["updates"]) == updates
    assert row["full-cycle"]["idle"] <= 0.02


@pytest.mark.parametrize("learners", [10, 15])
def test_learners_of_even_index_are_fast(learners):
    problem = staleness.problem(7.5, learners)
    assert problem.learners == learners
    fast = problem.compute < problem.compute.mean()
    assert fast.sum() == (learners + 1) // 2
    assert problem.compute.max() / problem.compute.min() == pytest.approx(2.4 / 0.7)


def test_where_c_is_just_above_a_whole_number_the_page_says_that_nothing_is_gained():
    rows = [staleness.row(7.5, 20), staleness.row(7.5, 30)]
    assert rows[1]["full-cycle"]["updates"] == rows[1]["sync"]["updates"]
    lines, made = staleness.section({staleness.NAME: Found({"results": rows})})
    text = "\n".join(lines)
    assert "20 % more updates than the synchronous one: c = 3.35 (20 learners, T = 7.5 s)." in text
    assert "the gain vanishes, at c = 5.05 (30 learners, T = 7.5 s)." in text
    assert "in 2 of 2 settings it makes no more updates than the synchronous scheme" in text
    assert made[0].verdict == "yes"
    assert "largest staleness 0 to 1, with equal allocation 4 to 5" in made[0].here


def test_a_staleness_that_is_not_smaller_is_not_called_so():
    rows = [a_row(7.5, 10), a_row(7.5, 20, ours=4)]
    _, made = staleness.section({staleness.NAME: Found({"results": rows})})
    assert made[0].verdict == "not everywhere"
    assert "smaller in 1 of 2 settings" in made[0].here


def test_what_needs_no_training_is_solved_by_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(staleness, "CYCLES_S", (7.5,))
    monkeypatch.setattr(staleness, "LEARNERS", (10,))
    said = []
    runner.run(["i"], quick=True, results=tmp_path, say=said.append)
    content = Found.read(staleness.NAME, tmp_path)
    assert [row["learners"] for row in content.content["results"]] == [10]
    assert said[0] == "i-staleness: solving"


# ---- (j): cycles -----------------------------------------------------------------------------


def test_each_model_is_kept_once():
    curve = {
        "time_s": [1, 2, 3, 4, 5, 6],
        "loss": [2.3, 2.3, 1.0, 1.0, 1.0, 0.5],
        "value": [0.1, 0.1, 0.7, 0.7, 0.7, 0.81239],
        "commits": [0, 0, 3, 3, 3, 6],
    }
    assert found.models(curve) == {"time_s": [1, 3, 6], "value": [0.1, 0.7, 0.8124]}


def test_accuracy_after_cycles_is_the_mean_of_three_models_measurement_aside():
    run = {"time_s": [1, 5, 20, 40, 60, 80], "value": [0.1, 0.2, 0.3, 0.5, 0.7, 0.9]}
    assert cycles.after_cycles(run, 3) == pytest.approx((0.3 + 0.5 + 0.7) / 3)
    assert cycles.after_cycles(run, 4) == pytest.approx((0.5 + 0.7 + 0.9) / 3)
    with pytest.raises(ValueError, match="4 cycles were made, and not 5"):
        cycles.after_cycles(run, 5)
    assert cycles.after_seconds(run, 60) == pytest.approx((0.3 + 0.5 + 0.7) / 3)
    assert cycles.after_seconds(run, 59) == pytest.approx((0.2 + 0.3 + 0.5) / 3)


def test_a_difference_is_of_paired_seeds():
    """Seeds that differ much, and models that differ little in each: the interval is narrow."""
    theirs = [0.5, 0.6, 0.7, 0.8, 0.9]
    gap = cycles.difference([value + 0.01 for value in theirs], theirs)
    assert (gap.mean, gap.low, gap.high) == pytest.approx((0.01, 0.01, 0.01))
    assert gap.verdict == "ahead"
    assert cycles.difference(theirs, [value + 0.01 for value in theirs]).verdict == "behind"
    assert cycles.difference([0.5, 0.7], [0.6, 0.6]).verdict == "as good"


def test_two_seeds_that_agree_somewhat_prove_nothing():
    gap = cycles.difference([0.51, 0.53], [0.5, 0.5])
    assert gap.low < 0 < gap.high
    gap = cycles.difference([0.51, 0.53, 0.52, 0.51, 0.52], [0.5] * 5)
    assert gap.low == pytest.approx(0.018 - 2.776 * 0.0083666 / 5**0.5, abs=1e-5)


@pytest.mark.parametrize("name", build_allocation.CYCLED)
def test_the_samples_of_a_fleet_give_its_c(name):
    what = build_allocation.CYCLED[name]
    ours, sync, equal = (cycles.planned(what, label) for label in build_allocation.SCHEMES)
    relaxed = solve(ours.problem, "async", "relaxed")
    assert relaxed.tau == pytest.approx([what.updates] * what.learners, rel=0.001)
    assert sync.updates_total == int(what.updates) * what.learners
    assert equal.max_staleness > ours.max_staleness
    gains = ours.updates_total - sync.updates_total
    assert (gains == 0) == (name == "j-no-gain")


@pytest.mark.parametrize("name", build_allocation.CYCLED)
def test_the_least_of_cycles_fits_the_limit(name):
    scenario = Scenario.read(files.FOLDER / f"{name}.yaml")
    longest_s = build_allocation.CLOSES * build_allocation.CYCLE_S
    assert scenario.limit_s >= build_allocation.BENCHMARK_S + max(cycles.AFTER) * longest_s
    assert scenario.target.accuracy == 1.0
    assert len({entry.training["lr"] for entry in scenario.compare}) == 1


def _cycled(name, **more):
    """Results of (j): by label, by how much its accuracy is higher in each of two seeds."""
    entries = [
        entry(label, [460.0] * 2, models=[accuracies(gain) for gain in gains])
        for label, gains in more.items()
    ]
    return {name: Found(result(name, *entries, seeds=2))}


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([0.02, 0.0201], "yes"),
        ([0.02, -0.01], "at least as good: ahead in 0 of 2"),
        ([-0.02, -0.0201], "no: behind in 2 of 2"),
    ],
)
def test_accuracies_are_judged_by_intervals(ours, verdict):
    made = _cycled("j-10-learners", Optimised=ours, Synchronous=[0.0, 0.0], Equal=[0.0, 0.0])
    lines, found_claims = cycles.section(made)
    assert [claim.verdict for claim in found_claims] == [verdict]
    ahead, behind = (2 * verdict.startswith(word) for word in ("yes", "no"))
    assert any(f"is ahead in {ahead} and behind in {behind} of 2 comparisons" in line for line in lines)
    assert any(line.startswith("| Synchronous | 1 | 10 |") for line in lines)


def test_a_fleet_without_a_gain_is_judged_by_itself():
    made = _cycled("j-10-learners", Optimised=[0.02] * 2, Synchronous=[0.0] * 2, Equal=[0.0] * 2)
    made |= _cycled("j-no-gain", Optimised=[0.01, -0.01], Synchronous=[0.0] * 2)  # as in a quick run
    _, (promised, none) = cycles.section(made)
    assert promised.verdict == "yes"
    assert none.source.startswith("(not in the source)")
    assert none.verdict == "yes: no difference that the seeds show"


# ---- (k): batches ----------------------------------------------------------------------------


def test_the_faster_half_of_the_devices_has_a_fixed_part():
    fleet = parts.fleet()
    devices = build_allocation.with_fixed_part(fleet)
    shown = [(group["step_s"], group.get("fixed_s", 0.0)) for group in devices for _ in range(group["count"])]
    assert sorted(step_s for step_s, _ in shown) == sorted(
        g["step_s"] for g in fleet for _ in range(g["count"])
    )
    shown.sort(key=lambda one: (one[0], -one[1]))
    assert [fixed_s > 0 for _, fixed_s in shown] == [True] * 9 + [False] * 9
    assert all(fixed_s == pytest.approx(step_s / 2, abs=1e-4) for step_s, fixed_s in shown[:9])


def _batched(name, ratio):
    entries = entry("ADSP", five(100)), entry(build_allocation.OWN, five(100 * ratio))
    return {name: Found(result(name, *entries))}


def test_own_batches_are_judged_by_intervals_and_by_what_a_step_costs():
    made = _batched("k-1.45-iid-proportional", 1.2) | _batched("k-2.00-iid-proportional", 1.0)
    made |= _batched("k-3.20-dirichlet-fixed-part", 0.8)
    lines, no_claims = sections.SECTIONS["k"](made)
    assert no_claims == []
    said = lines[-2]
    assert "quicker in 0, slower in 1 of 2 scenarios (1.00 to 1.20 of the time) where" in said
    assert "quicker in 1, slower in 0 of 1 scenarios (0.80 to 0.80 of the time) where" in said
    unreached = entry(build_allocation.OWN, [1500.0] * 5, reached=2)
    name = "k-3.20-iid-fixed-part"
    lines, _ = sections.SECTIONS["k"]({name: Found(result(name, entry("ADSP", five(100)), unreached))})
    assert "quicker in 0, slower in 1 of 1" in lines[-2]
