"""The benchmarks' own arithmetic, and their one form."""

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import harness, headline, reality, search, simulator, virtual
from benchmarks.harness import Bar, crossing, geometric_mean, ratio_of_means
from benchmarks.tuning import Setting, tune
from offbeat_cli.simulator.scenario import Scenario


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


def test_a_quicker_form_of_a_benchmark_does_not_replace_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "HERE", tmp_path)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "WORK", tmp_path / "work")
    harness.finish("tried", [Bar("time", 0.5, 0.55)], [], is_default=False)
    assert not (tmp_path / "results").exists()
    assert (tmp_path / "work" / "tried.json").exists()


def test_a_geometric_mean_treats_half_and_double_alike() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([4.0]) == pytest.approx(4.0)


# ---- tuning --------------------------------------------------------------------


class Bowl:
    """A setting's score has its least at a learning rate of its own; counts what was measured."""

    def __init__(self, least: dict[str, float], noise: dict[int, float] | None = None) -> None:
        self.least, self.noise = least, noise or {}
        self.measured: Counter[tuple[Setting, int]] = Counter()

    def __call__(self, settings: Sequence[Setting], seeds: Sequence[int]) -> dict[Setting, list[float]]:
        self.measured.update((setting, seed) for setting in settings for seed in seeds)
        return {
            setting: [self.score(setting) + self.noise.get(seed, 0.0) for seed in seeds]
            for setting in settings
        }

    def score(self, setting: Setting) -> float:
        return 10 + abs(math.log2(setting.lr / self.least[json.loads(setting.sync)]))


def test_tuning_goes_on_where_the_best_learning_rate_is_at_the_end_of_the_grid() -> None:
    bowl = Bowl({"inside": 0.2, "above": 1.6, "below": 0.05})
    found = tune({name: [Setting.of(name, 0)] for name in bowl.least}, bowl, [7, 8], [0.1, 0.2, 0.4])
    assert {name: tuned.best.lr for name, tuned in found.items()} == {
        "inside": 0.2,
        "above": 1.6,
        "below": 0.05,
    }
    assert not found["inside"].at_end
    assert found["above"].at_end  # two steps further were not enough to see the other side


def test_finer_tuning_finds_a_rate_between_those_of_the_grid() -> None:
    bowl = Bowl({"between": 0.28, "on": 0.2, "far": 0.8 * math.sqrt(2)})
    families = {name: [Setting.of(name, 0)] for name in bowl.least}
    coarse = tune(families, bowl, [7], [0.2, 0.4])
    finer = tune(families, bowl, [7], [0.2, 0.4], finer=True)
    assert {coarse[name].best.lr for name in families} <= {0.2, 0.4, 0.8}
    assert [finer[name].best.lr for name in families] == [0.283, 0.2, 1.13]


def test_tuning_gives_every_family_the_same_seeds_and_none_to_what_fell_out() -> None:
    bowl = Bowl({"one": 0.2, "other": 0.2})
    found = tune(
        {"a": [Setting.of("one", 0), Setting.of("other", 0)], "b": [Setting.of("one", 0)]}, bowl, [7, 8]
    )
    assert [seeds for _, _, seeds in found["b"].tried] == [2, 2, 1]
    assert sum(seeds == 2 for _, _, seeds in found["a"].tried) >= 2
    assert len(found["a"].tried) == 6
    assert found["a"].best.lr == 0.2


def test_of_two_options_the_better_one_on_all_seeds_wins() -> None:
    def measure(settings: Sequence[Setting], seeds: Sequence[int]) -> dict[Setting, list[float]]:
        """One option is lucky with the first seed."""
        return {
            setting: [
                abs(math.log2(setting.lr / 0.1))
                + ((3.0 if seed == 7 else 9.0) if "lucky" in setting.sync else 3.5)
                for seed in seeds
            ]
            for setting in settings
        }

    found = tune({"a": [Setting.of("lucky", 0), Setting.of("steady", 0)]}, measure, [7, 8, 9], [0.1])
    assert json.loads(found["a"].best.sync) == "steady"


# ---- what is measured ----------------------------------------------------------


def test_a_covering_subset_holds_each_pair_of_settings_and_is_small() -> None:
    rows = search.covering(search.SETTINGS)
    for (i, first), (j, second) in itertools.combinations(enumerate(search.SETTINGS), 2):
        seen = {(row[i], row[j]) for row in rows}
        assert seen == set(itertools.product(first, second))
    assert len(rows) == 6  # fewer can't hold the 3 x 2 pairs with the delay
    assert rows == search.covering(search.SETTINGS)
    assert len(search.regimes(full=True)) == 48
    assert set(search.regimes(full=False)) <= set(search.regimes(full=True))


def test_a_fixed_rate_that_a_regime_does_not_allow_is_not_tried() -> None:
    regime = search.Regime("iid", 1, 0.0, 3.0, False)
    assert search.rates(regime) == [1, 2, 4]  # an interval of 4 s holds a step of 1 s and a commit of 3 s
    assert search.rates(replace(regime, delay=0.1)) == [1, 2, 4, 8, 16]


def test_the_fleets_are_as_unequal_as_they_are_said_to_be() -> None:
    assert 3.1 <= virtual.heterogeneity(virtual.fleet(0.3)) <= 3.3
    assert virtual.heterogeneity(virtual.small_fleet(0.3)) == pytest.approx(
        virtual.heterogeneity(virtual.fleet(0.3)), rel=0.03
    )
    assert sum(group["count"] for group in virtual.fleet(0.3)) == 18


def test_the_headline_is_measured_on_the_devices_of_the_reproduced_experiment() -> None:
    file = harness.HERE / "reproduction" / "scenarios" / "a-models.yaml"
    reproduced = Scenario.read(file).virtual_devices()
    ours = Scenario.make({**headline.SCENARIO, "compare": ["adsp"]}, "headline").virtual_devices()
    assert [replace(device, name="") for device in ours] == [
        replace(device, name="") for device in reproduced
    ]


def result_of(*times_s: float, limit_s: float = 100.0, wait_share: float = 0.0) -> virtual.Result:
    runs = tuple(virtual.Run(time_s, time_s < limit_s, 0.4) for time_s in times_s)
    return virtual.Result(runs, wait_share, 0.0, 1 - wait_share)


def headline_bars(**changed: virtual.Result) -> dict[str, bool]:
    """The bars that hold if ADSP takes 10 s and every other model 30 s, except those given."""
    results = {family: result_of(30.0, 30.0) for family in headline.FAMILIES}
    results |= {headline.ADSP: result_of(10.0, 10.0), headline.OVERLAPPED: result_of(9.0, 9.0), **changed}
    return {bar.name: bar.ok for bar in headline.bars(results)}


def test_each_claim_of_the_headline_can_fail() -> None:
    assert all(headline_bars().values())
    for family, time_s in (
        ("Fixed ADACOMM(16)", 26.0),
        ("BSP", 19.0),
        ("SSP", 19.0),
        ("ADACOMM", 19.0),
        ("ASP", 9.4),
        ("FedBuff", 9.4),
        ("BatchTune Fixed ADACOMM", 9.4),
        ("FedCompass", 9.4),
    ):
        failed = [name for name, ok in headline_bars(**{family: result_of(time_s, time_s)}).items() if not ok]
        assert len(failed) == 1, (family, failed)
        assert family in failed[0]
    behind = headline_bars(FedAvg=result_of(8.5, 8.5))
    assert [name for name, ok in behind.items() if not ok] == [
        "with overlap, ADSP's time over that of the best of all others, FedAvg"
    ]
    waits = headline_bars(ADSP=result_of(10.0, 10.0, wait_share=0.001))
    assert not waits["ADSP's waiting share"]
    missed = headline_bars(ADSP=result_of(10.0, 100.0))
    assert not missed["runs of ADSP that did not reach the loss"]


def test_the_lowest_loss_of_a_run_is_one_that_it_crosses_not_its_last() -> None:
    swings: list[float | None] = [1.0, 0.6, 0.4, 0.8, None, 0.2, 0.9]
    assert virtual._lowest(swings, 1) == 0.2
    assert virtual._lowest(swings, 2) == pytest.approx(0.5)
    assert virtual._lowest(swings, 4) == pytest.approx(0.7)
    assert virtual._lowest(swings, 5) == math.inf
    assert virtual._lowest([], 10) == math.inf


def found_in(regime: search.Regime, **seconds: float) -> search.Found:
    times = {"robust": 10.0, "formula": 11.0, "source": 15.0, "fixed": 10.0, "flipped": 12.0, **seconds}
    of = {name: result_of(value, value) for name, value in times.items()}
    return search.Found(
        regime,
        0.5,
        {name: of[name] for name in search.SEARCHES},
        {4: of["fixed"], 8: result_of(20, 20)},
        of["flipped"],
    )


def test_each_claim_of_the_search_can_fail() -> None:
    regime = search.Regime("iid", 1, 0.0, 1.0, True)
    fine = {5.0: (0.6, 0.5, 0.7)}

    def failed(found: search.Found, far: dict[float, tuple[float, float, float]] = fine) -> list[str]:
        return [bar.name for bar in search.bars([found], far) if not bar.ok]

    assert failed(found_in(regime)) == []
    assert [name[:26] for name in failed(found_in(regime, robust=11.2, formula=12.0))] == [
        "robust over the best fixed"
    ]
    assert failed(found_in(regime, formula=9.9)) == ["robust over formula, geometric mean over the regimes"]
    assert ["with overlap over without" in name for name in failed(found_in(regime, flipped=9.0))] == [True]
    # Where the regime has no overlap, the flipped run is the one with it.
    assert failed(found_in(replace(regime, overlap=False), flipped=9.0)) == []
    assert len(failed(found_in(replace(regime, overlap=False), flipped=12.0))) == 1
    assert len(failed(found_in(regime), {5.0: (0.9, 0.8, 1.01)})) == 1


def test_memory_is_that_of_a_process_and_all_its_children() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    hungry = "import time; held = bytearray(96 * 2**20); time.sleep(1.5)"
    child = subprocess.Popen([sys.executable, "-c", code, hungry])
    with simulator.Peak(child.pid) as peak:
        child.wait()
    assert 96 * 2**20 < peak.bytes < 1000 * 2**20


def seen(crossed_s: float, computes: float = 0.9, rest: float = 0.1) -> reality.Seen:
    return reality.Seen(crossed_s, (1.0, computes), (0.0, 0.0), (0.0, rest), 100, 10)


def test_each_claim_about_the_simulator_and_reality_can_fail() -> None:
    def failed(live: reality.Seen, virtual_: reality.Seen, replays: tuple[int, int] = (50, 0)) -> list[str]:
        found = reality.bars({"adsp": [live]}, {"adsp": [virtual_]}, {"adsp": [replays]})
        return [bar.name for bar in found if not bar.ok]

    assert failed(seen(10.0), seen(10.0)) == []
    assert failed(seen(11.4), seen(10.0)) == []
    assert failed(seen(11.6), seen(10.0)) == ["adsp: live time over virtual time, off 1 by"]
    assert failed(seen(8.4), seen(10.0)) == ["adsp: live time over virtual time, off 1 by"]
    assert failed(seen(10.0, 0.84, 0.16), seen(10.0)) == [
        "adsp: largest difference of a share (worker-2 computes)"
    ]
    assert failed(seen(10.0), seen(10.0), (50, 1)) == ["events after which the replay decides otherwise"]
    assert failed(seen(10.0), seen(10.0), (3, 0)) == ["events of the live runs replayed, at least"]


def test_the_simulator_is_told_the_scenario_that_runs_live() -> None:
    scenario = Scenario.make(reality.scenario([1, 2]), "reality")
    assert [entry.shown for entry in scenario.compare] == list(reality.SYNCS)
    speeds = [reality.SLOW_STEP_S / device.step_s for device in scenario.virtual_devices()]
    assert speeds == pytest.approx(reality.SPEEDS)
    assert scenario.check_period_s == reality.CHECK_PERIOD_S
