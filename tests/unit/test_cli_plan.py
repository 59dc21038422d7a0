"""`offbeat plan` as a command: what it prints, draws, and ends with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat_cli import plan_table
from offbeat_cli.main import app
from offbeat_cli.plan import plan
from offbeat_core.errors import guard

EXAMPLES = Path(__file__).parents[2] / "examples/allocation"
MEASURED = EXAMPLES / "measured.yaml"
KEYS = [
    *("scheme", "integer", "feasible", "reason", "tau", "samples", "max_staleness", "average_staleness"),
    *("cycle_time_s", "idle_share", "updates_total", "solve_s"),
]


def here(capsys, file, **options):
    """(exit code, stdout, stderr), in this process."""
    code = guard(lambda: plan(file, **options))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def solved(capsys, file, **options):
    """(exit code, what --json prints)."""
    code, out, err = here(capsys, file, as_json=True, **options)
    assert err == ""
    return code, json.loads(out)


def write(folder, learners, *, cycle_s=10.0, samples=100):
    file = folder / "it.json"
    file.write_text(
        json.dumps({"mode": "federated", "cycle_s": cycle_s, "samples": samples, "learners": learners})
    )
    return file


def fleet(folder, count, **more):
    """Fast and slow ones in turn."""
    learners = [
        {"name": f"n{k}", "compute_s_per_sample_update": 0.01 * (1 + 2 * (k % 2)), "fixed_s": 0.5, **more}
        for k in range(count)
    ]
    return write(folder, learners, samples=100 * count)


# ---- JSON -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["async", "sync", "eta", "sai"])
@pytest.mark.parametrize("integer", ["maximal", "full-cycle", "relaxed"])
def test_json_has_what_scripts_need_under_every_scheme_and_rule(capsys, scheme, integer):
    code, found = solved(capsys, MEASURED, scheme=scheme, integer=integer)
    assert code == 0
    assert list(found) == KEYS
    assert (found["scheme"], found["integer"], found["feasible"], found["reason"]) == (
        scheme,
        integer,
        True,
        "",
    )
    assert sum(found["samples"]) == pytest.approx(12000)
    assert found["max_staleness"] == pytest.approx(max(found["tau"]) - min(found["tau"]))
    assert found["updates_total"] == pytest.approx(sum(found["tau"]))
    compute, fixed = (3.4e-4, 5.1e-4, 1.3e-3, 1.3e-3), (0.09, 0.09, 0.12, 0.12)
    times = [c * t * d + f for c, t, d, f in zip(compute, found["tau"], found["samples"], fixed, strict=True)]
    assert found["cycle_time_s"] == pytest.approx(times)
    assert found["idle_share"] == pytest.approx(1 - sum(times) / 4 / 7.5, abs=1e-9)
    assert found["solve_s"] > 0
    wanted = float if integer == "relaxed" else int
    assert {type(value) for key in ("tau", "samples") for value in found[key]} == {wanted}


def test_the_schemes_and_rules_differ_as_they_should(capsys):
    def staleness(**options):
        return solved(capsys, MEASURED, **options)[1]["max_staleness"]

    assert staleness(integer="relaxed") < staleness(integer="maximal") < staleness(scheme="eta")
    assert staleness(scheme="sync") == 0


# ---- infeasible, and bad input ------------------------------------------------------------------


def test_an_infeasible_instance_ends_with_4_and_says_why(tmp_path, capsys):
    file = fleet(tmp_path, 2, max_samples=70)
    code, out, err = here(capsys, file)
    assert (code, out) == (4, "")
    assert "infeasible: the learners' max_samples sum to 140, samples is 200" in err
    code, found = solved(capsys, file)
    assert code == 4
    assert list(found) == KEYS
    assert found["feasible"] is False
    assert "max_samples sum to 140" in found["reason"]
    assert found["tau"] == found["samples"] == found["cycle_time_s"] == []
    assert {found[key] for key in ("max_staleness", "average_staleness", "idle_share", "updates_total")} == {
        None
    }


def test_an_infeasible_instance_is_not_drawn(tmp_path, capsys):
    plot = tmp_path / "it.png"
    assert here(capsys, fleet(tmp_path, 2, max_samples=70), plot=plot)[0] == 4
    assert not plot.exists()


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"scheme": "asinc"}, ["--scheme: there is no 'asinc'", "'async'"]),
        ({"integer": "whole"}, ["--integer: there is no 'whole'", "maximal, full-cycle, relaxed"]),
        ({"plot": Path("it.pdf")}, ["--plot: it.pdf is neither .png nor .svg", "it.png"]),
        ({"plot": Path("it")}, ["--plot: it is neither .png nor .svg", "it.png"]),
        ({"plot": Path("absent/it.png")}, ["--plot: absent/it.png: No such file", "folder"]),
    ],
)
def test_a_bad_option_ends_with_1_and_prints_nothing_else(capsys, options, parts):
    code, out, err = here(capsys, MEASURED, as_json=True, **options)
    assert (code, out) == (1, "")
    for part in parts:
        assert part in err


def test_a_plot_that_cannot_be_written_is_said(tmp_path, capsys):
    (tmp_path / "it.svg").mkdir()
    code, out, err = here(capsys, MEASURED, plot=tmp_path / "it.svg")
    assert (code, out) == (1, "")
    assert "it.svg: Is a directory" in err


def test_what_is_wrong_in_the_file_is_said_with_its_name(tmp_path, capsys):
    file = write(tmp_path, [{"compute_s_per_sample_update": 0.01, "fixed_s": 20}])
    code, out, err = here(capsys, file)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {file}: learner 'g1': fixed_s is 20")


# ---- the table --------------------------------------------------------------------------------


def test_people_see_each_learner_and_a_summary(capsys):
    code, out, err = here(capsys, MEASURED)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "measured (async, maximal): 12000 samples, 4 learners, T = 7.5 s"
    assert lines[1].split() == [
        "learner",
        "samples",
        "updates",
        "transfer",
        "s",
        "compute",
        "s",
        "time",
        "s",
        "idle",
    ]
    assert lines[2].split() == ["pc", "5400", "4", "0.090", "7.344", "7.434", "0.9%"]
    assert [line.split()[0] for line in lines[3:6]] == ["jetson", "pi-1", "pi-2"]
    assert lines[6].startswith("staleness max 1, average 0.67 · updates 14 (3 to 4 each) · idle 10.6%")
    assert "solved in" in out


def test_the_documentation_shows_what_is_printed(capsys):
    docs = (EXAMPLES.parents[1] / "docs/plan.md").read_text(encoding="utf-8")
    printed = here(capsys, MEASURED)[1].splitlines()
    assert printed.pop().startswith("solved in")  # not the same each time
    assert "\n".join(printed) in docs


def test_of_a_large_fleet_the_first_and_the_last_are_shown(tmp_path, capsys):
    code, out, _ = here(capsys, fleet(tmp_path, 1000))
    rows = [line.split()[0] for line in out.splitlines()[2:] if line[0] in "n…"]
    assert code == 0
    assert rows == [*(f"n{k}" for k in range(15)), "…", *(f"n{k}" for k in range(985, 1000))]
    assert "… 970 more" in out
    assert "1000 learners" in out
    assert len(out.splitlines()) < 40


def test_all_of_a_fleet_that_fits_are_shown(tmp_path, capsys):
    out = here(capsys, fleet(tmp_path, plan_table.MOST_ROWS))[1]
    assert "more" not in out
    assert f"n{plan_table.MOST_ROWS - 1} " in out


def test_a_narrow_terminal_gets_the_columns_that_matter(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    out = here(capsys, MEASURED)[1]
    assert max(len(line) for line in out.splitlines()) <= 30
    head = next(line for line in out.splitlines() if line.startswith("learner"))
    assert head.split() == ["learner", "samples", "updates", "idle"]


def test_a_learner_without_updates_is_named_where_a_baseline_leaves_one(tmp_path, capsys):
    learners = [
        {"name": "fast", "compute_s_per_sample_update": 0.01, "fixed_s": 0.5},
        {"name": "slow", "compute_s_per_sample_update": 0.5, "fixed_s": 0.5},
    ]
    code, out, _ = here(capsys, write(tmp_path, learners), scheme="eta")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("slow"))
    assert row.split()[1:3] == ["50", "0"]
    note = next(line for line in out.splitlines() if line.startswith("! "))
    assert "slow" in note


def test_energy_is_shown_where_it_limits_somebody(tmp_path, capsys):
    energy = {"max_j": 20, "compute_j_per_sample_update": 0.02, "fixed_j": 1}
    learners = [
        {"name": "phone", "compute_s_per_sample_update": 0.01, "fixed_s": 0.5, "energy": energy},
        {"name": "pc", "compute_s_per_sample_update": 0.01, "fixed_s": 0.5},
    ]
    out = here(capsys, write(tmp_path, learners))[1]
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:4]}
    assert rows["learner"][-1] == "energy"
    assert rows["pc"][-1] == "-"
    samples, updates = map(int, rows["phone"][1:3])
    assert rows["phone"][-1] == f"{(0.02 * samples * updates + 1) / 20:.1%}"
    assert "energy" not in here(capsys, MEASURED)[1]


def test_seconds_have_the_digits_that_their_cycle_asks_for():
    assert plan_table.seconds(7.3441, 7.5) == "7.344"
    assert plan_table.seconds(1234.5, 3600) == "1234"
    assert plan_table.seconds(0.000512345, 0.001) == "0.000512"


@pytest.mark.parametrize(("width", "lines"), [(120, 1), (60, 2), (34, 3)])
def test_the_summary_takes_as_few_lines_as_hold_it(monkeypatch, capsys, width, lines):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = here(capsys, MEASURED)[1].splitlines()
    first = next(number for number, line in enumerate(shown) if line.startswith("staleness"))
    assert len(shown) - first == lines


# ---- the plot ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 100])
def test_the_plot_is_a_picture(tmp_path, capsys, count):
    file = fleet(tmp_path, count)
    png, svg = tmp_path / "it.PNG", tmp_path / "it.svg"
    code, out, _ = here(capsys, file, plot=png)
    assert code == 0
    assert f"plot: {png}" in out.replace("\n", "")
    assert png.read_bytes().startswith(b"\x89PNG")
    code, _ = solved(capsys, file, plot=svg)  # nothing but JSON on stdout
    assert code == 0
    text = svg.read_text()
    for word in ("transfer", "compute", "idle", "local updates", "seconds of the cycle"):
        assert word in text
    assert ("n0" in text) == (count <= 3)


def test_the_same_plan_gives_the_same_picture(tmp_path, capsys):
    pictures = []
    for name in ("one.svg", "other.svg"):
        here(capsys, MEASURED, plot=tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]


def test_the_bars_say_how_the_cycle_is_spent():
    from offbeat_cli.plan import cycle
    from offbeat_cli.plan_plot import draw
    from offbeat_scheduler.allocation import solve
    from offbeat_scheduler.allocation.instance import Instance

    instance = Instance.read(MEASURED)
    found = cycle(instance, solve(instance.problem()))
    left, right = draw(found).axes
    transfer, compute, idle = left.containers
    assert [bar.get_width() for bar in transfer] == pytest.approx([0.09, 0.09, 0.12, 0.12])
    assert [bar.get_width() for bar in compute] == pytest.approx(found.compute_s)
    ends = [bar.get_x() + bar.get_width() for bar in idle]
    assert ends == pytest.approx([7.5] * 4)
    assert [label.get_text() for label in left.get_yticklabels()] == ["pc", "jetson", "pi-1", "pi-2"]
    assert [bar.get_width() for bar in right.containers[0]] == found.updates.tolist()
    assert right.texts[0].get_text() == "4 × 5400"


# ---- as a process -------------------------------------------------------------------------------


def test_the_command_takes_its_options_in_their_published_form(tmp_path):
    words = ["plan", str(MEASURED), "--scheme", "sai", "--integer", "maximal", "--json"]
    done = CliRunner().invoke(app, [*words, "--plot", str(tmp_path / "it.svg")])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["scheme"] == "sai"
    assert (tmp_path / "it.svg").exists()
    assert CliRunner().invoke(app, ["plan"]).exit_code == 2
    assert CliRunner().invoke(app, ["plan", str(tmp_path / "absent.json")]).exit_code == 1


def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path):
    file = fleet(tmp_path, 5000)
    words = [sys.executable, "-m", "offbeat_cli.main", "plan", str(file), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.read(10) == '{"scheme":'
        process.stdout.close()
        said = process.stderr.read()
        process.wait(timeout=120)
    assert said == ""
