"""Runs experiments scenario by scenario, says how long it will take, and writes their results.

Every finished run is one file in benchmarks/work/reproduction/runs (see `offbeat_cli.simulator.compare`),
shared by all scenarios and by quick and full runs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.reproduction import files, found, staleness
from benchmarks.reproduction.contenders import RESULTS
from benchmarks.reproduction.experiments import EXPERIMENTS, QUICK_SEEDS, Experiment
from offbeat_cli.simulator.compare import Progress, compare
from offbeat_cli.simulator.scenario import Scenario

RUNS = harness.WORK / "reproduction" / "runs"
SAY_EVERY_S = 20.0

COST_S = {
    "c-workers-18": 0.5,
    "c-workers-36": 1.0,
    "c-workers-100": 2.5,
    "c-workers-500": 13.0,
    "f-cnn": 3.0,
    "f-lstm": 3.0,
    "f-svm": 0.5,
    "a-three-workers": 0.5,
    "j-10-learners": 1.5,
    "j-20-learners": 3.0,
    "j-no-gain": 1.5,
}
"""What a run of a scenario costs, in runs of the others: to foretell how long is left."""

SOLVERS: dict[str, Callable[[Path], Path]] = {staleness.NAME: staleness.run}
"""Results without training."""


def chosen(experiment: Experiment, *, quick: bool, folder: Path = files.FOLDER) -> list[Scenario]:
    """The scenarios of an experiment; a quick run makes them smaller. Raises OffbeatError."""
    names = experiment.quick if quick else experiment.scenarios
    scenarios = [Scenario.read(folder / f"{name}.yaml") for name in names]
    return (
        [reduced(scenario, experiment.quick[scenario.name]) for scenario in scenarios] if quick else scenarios
    )


def reduced(scenario: Scenario, labels: Sequence[str]) -> Scenario:
    """Fewer seeds and models, otherwise the same: the runs that remain are those of the full one."""
    compared = tuple(entry for entry in scenario.compare if entry.shown in labels)
    return scenario.model_copy(update={"seeds": scenario.seeds[:QUICK_SEEDS], "compare": compared})


def run(
    letters: Sequence[str],
    *,
    quick: bool,
    fresh: bool = False,
    workers: int | None = None,
    folder: Path = files.FOLDER,
    runs: Path = RUNS,
    results: Path = RESULTS,
    say: Callable[[str], None] = harness.progress,
) -> None:
    """Run experiments. A scenario's results are written as soon as it is done.

    Args:
        letters: of the experiments. quick: fewer models, sizes and seeds.
        fresh: forget the runs that are kept. workers: processes; None: one per core.
        folder, runs, results: of the scenarios, the kept runs, the result files.

    Raises:
        OffbeatError: for what is wrong with a scenario or its data.
        KeyboardInterrupt: what was finished is kept.
    """
    if fresh:
        shutil.rmtree(runs, ignore_errors=True)
    experiments = [EXPERIMENTS[letter] for letter in letters]
    for name in (name for experiment in experiments for name in experiment.solved):
        say(f"{name}: solving")
        SOLVERS[name](results)
    per_model = {name for experiment in experiments if experiment.per_model for name in experiment.scenarios}
    scenarios = [
        scenario for experiment in experiments for scenario in chosen(experiment, quick=quick, folder=folder)
    ]
    clock = Remaining({scenario.name: len(scenario.seeds) * len(scenario.compare) for scenario in scenarios})
    for number, scenario in enumerate(scenarios, 1):
        total = len(scenario.seeds) * len(scenario.compare)
        say(f"{scenario.name} ({number} of {len(scenarios)} scenarios): {total} runs{clock.text()}")
        progress = _Saying(scenario.name, clock, say)
        comparison = compare(scenario, folder=runs, workers=workers, progress=progress)
        kept = found.compact(comparison, quick=quick, per_model=scenario.name in per_model)
        found.write(kept, results)
    say(f"done: {len(scenarios)} scenarios in {_minutes(clock.elapsed_s)}")


class Remaining:
    """How long is left: by what the runs made so far cost, and what those to come are known to.

    Args:
        runs: of each scenario.
    """

    def __init__(self, runs: dict[str, int], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._left = {name: float(count) for name, count in runs.items()}
        self._made = 0.0  # in units of COST_S; runs that were found finished cost nothing

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._began

    def finished(self, scenario: str, *, made: bool) -> None:
        """One run of a scenario is there: made just now, or found."""
        self._left[scenario] -= 1
        if made:
            self._made += COST_S.get(scenario, 1.0)

    def seconds(self) -> float | None:
        """None until the first run was made."""
        if not self._made:
            return None
        left = sum(COST_S.get(name, 1.0) * count for name, count in self._left.items())
        return self.elapsed_s * left / self._made

    def text(self) -> str:
        seconds = self.seconds()
        return "" if seconds is None else f"; about {_minutes(seconds)} left in all"


class _Saying:
    """A line now and then as a comparison goes on."""

    def __init__(self, name: str, clock: Remaining, say: Callable[[str], None]) -> None:
        self._name, self._clock, self._say = name, clock, say
        self._finished = 0
        self._said = time.monotonic()

    def __call__(self, at: Progress) -> None:
        for _ in range(at.finished - self._finished):
            self._clock.finished(self._name, made=at.note is not None)
        moved = at.finished > self._finished
        self._finished = at.finished
        now = time.monotonic()
        if moved and (at.finished == at.total or now - self._said >= SAY_EVERY_S):
            self._said = now
            self._say(f"  {self._name}: {at.finished} of {at.total} runs{self._clock.text()}")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
