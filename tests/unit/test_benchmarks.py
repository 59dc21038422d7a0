"""The benchmarks' own arithmetic, and their one form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Bar, crossing, ratio_of_means


def test_a_crossing_is_the_tick_at_which_the_mean_of_the_last_evaluations_is_low_enough() -> None:
    points = [(float(second), 10.0 - second) for second in range(11)]
    # The mean of the last 3 at second t is 10 - (t - 1).
    assert crossing(points, 5.0, every_s=1.0, smooth=3) == 6.0
    assert crossing(points, 0.5, every_s=1.0, smooth=3) is None


def test_a_model_that_did_not_change_keeps_its_loss_until_the_next_evaluation() -> None:
    often = [(second / 2, 1.0 if second < 8 else 0.2) for second in range(20)]
    seldom = [(0.0, 1.0), (4.0, 0.2), (9.5, 0.2)]
    assert crossing(often, 0.5, every_s=0.5) == crossing(seldom, 0.5, every_s=0.5)


def test_one_low_evaluation_does_not_cross() -> None:
    points = [(float(t), 0.1 if t == 5 else 1.0) for t in range(20)]
    assert crossing(points, 0.5, every_s=1.0, smooth=10) is None


def test_a_ratio_of_means_lies_in_its_interval_and_pairs_seeds() -> None:
    ratio, low, high = ratio_of_means([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
    assert ratio == pytest.approx(0.5)
    assert low == pytest.approx(0.5)  # each seed's pair has this ratio, so there is no spread
    assert high == pytest.approx(0.5)
    noisy, low, high = ratio_of_means([1.0, 2.0, 1.5], [2.0, 2.5, 4.0])
    assert low < noisy < high
    with pytest.raises(ValueError, match="paired"):
        ratio_of_means([1.0], [1.0, 2.0])


def test_a_missed_bar_is_an_exit_code_and_stands_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "HERE", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    bars = [Bar("time", 0.5, 0.55), Bar("speed", 0.8, 0.9, at_least=True)]
    assert harness.finish("tried", bars, [{"sync": "adsp", "mean s": 3.0}]) == 1
    content = json.loads((tmp_path / "results" / "tried.json").read_text())
    assert [(bar["name"], bar["ok"]) for bar in content["bars"]] == [("time", True), ("speed", False)]
    assert {"value", "limit"} <= content["bars"][0].keys()
    assert content["measured_on"]["cores"] >= 1
    assert harness.finish("tried", bars[:1], []) == 0


def test_the_benchmarks_are_listed_and_an_unknown_one_is_refused() -> None:
    root = Path(harness.__file__).parents[1]
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=root, capture_output=True, text=True, check=True
    )
    assert "barrier" in listed.stdout
    assert "beside" in listed.stdout
    unknown = subprocess.run(
        [sys.executable, "-m", "benchmarks", "no-such"], cwd=root, capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 2
    assert "known: barrier" in unknown.stderr
