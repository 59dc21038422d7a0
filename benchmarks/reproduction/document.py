"""docs/reproduction.md, made of the result files: every number and every verdict in it is computed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.reproduction import (
    allocated,
    cycles,
    plots,
    plots_allocation,
    rates,
    sections,
    staleness,
    trends,
)
from benchmarks.reproduction.claims import Claim
from benchmarks.reproduction.contenders import CONTENDERS, RESULTS, tuned
from benchmarks.reproduction.experiments import ABOUT, EXPERIMENTS, Experiment
from benchmarks.reproduction.found import Found
from benchmarks.reproduction.markdown import number, table
from benchmarks.reproduction.tuned import PLACES, SEEDS
from benchmarks.reproduction.workloads import WORKLOADS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "reproduction.md"
PICTURES = "reproduction"

HEAD = """\
# The sources' experiments, reproduced

Written by `make reproduce`: text, figures and verdicts are computed from
[benchmarks/results/reproduction](../benchmarks/results/reproduction); edits here are lost.

The source of (a) to (h) is Hu, Wang, Wu, "Distributed Machine Learning through Heterogeneous Edge Systems",
AAAI 2020 (arXiv 1911.06949); that of (i) and (j) is Mohammad, Sorour, "Adaptive Task Allocation for
Asynchronous Federated and Parallelized Mobile Edge Learning", 2019 (arXiv 1905.01656). The first one's
experiments ran on 18 machines; these run in virtual time (`offbeat simulate`): the decisions are those of the
live services, the gradients are real, the data is real, and the seconds don't depend on the machine.

```console
$ make reproduce              # all of it; interrupted, it goes on where it was
$ make reproduce QUICK=1      # fewer models, sizes and seeds: within 10 minutes on 2 cores
$ make reproduce ONLY=a,c     # some experiments
```

**Measure**, but for (i) and (j): virtual seconds until the mean of the last 10 evaluations of held-out data,
one a second, is at or below a loss. Seeds are paired: with seed k every model gets the same initial model,
division and order of data, and jitter (10 % of each step's and each commit's time). In brackets: 95 %
intervals of a ratio of means, by bootstrap over seeds. `>`: not every seed got there within the limit, which
then counts as its time. "Less time" is one minus the ratio of means.

**Devices**, unless a section says otherwise: 18; 5 make one local update a second, 6 three, 7 five:
heterogeneity H = mean(v)/min(v) = 3.2. A commit takes 0.3 s, push and pull together, and training waits for
it (`overlap: false`), as in the source. Check period 20 s. Plain SGD.

**Learning rates** are tuned for each model in the same way; see [the end](#learning-rates). "Fixed ADACOMM"
in a comparison is the one with the best tau of those in the table, in hindsight.
"""


def write(docs: Path = DOCS, results: Path = RESULTS) -> Path:
    """Write page and plots from what was found so far. Returns the page."""
    found = {
        name: content
        for experiment in EXPERIMENTS.values()
        for name in experiment.names
        if (content := Found.read(name, results))
    }
    claims: list[Claim] = []
    body: list[str] = []
    for experiment in EXPERIMENTS.values():
        body += _section(experiment, found, docs / PICTURES, claims)
    page = docs / PAGE
    docs.mkdir(parents=True, exist_ok=True)
    parts = [HEAD, *_overview(found), *_summary(claims), *_workloads(), *body, *_learning_rates()]
    page.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return page


def _section(
    experiment: Experiment, found: Mapping[str, Found], pictures: Path, claims: list[Claim]
) -> list[str]:
    lines = [f"## ({experiment.letter}) {experiment.title}", "", experiment.asks, ""]
    mine = {name: found[name] for name in experiment.names if name in found}
    if not mine:
        return [*lines, f"Not run yet: `make reproduce ONLY={experiment.letter}`.", ""]
    lines += [_solved(mine) if experiment.solved else _how(mine), ""]
    write_section: Callable[[Mapping[str, Found]], tuple[list[str], list[Claim]]] = sections.SECTIONS[
        experiment.letter
    ]
    text, new = write_section({**mine, **({"a-models": found["a-models"]} if "a-models" in found else {})})
    claims += new
    lines += text
    for picture, drawn in _pictures(experiment.letter, mine, found, pictures):
        if drawn:
            lines += [f"![{picture}]({PICTURES}/{drawn.name})", ""]
    if new:
        lines += [*(f"- {claim.sentence}" for claim in new), ""]
    return lines


def _how(mine: Mapping[str, Found]) -> str:
    """Quick or full, seeds, versions: of a section whose scenarios may come from different runs."""
    quick = [name for name, found in mine.items() if found.content["quick"]]
    kind = "Full run" if not quick else "QUICK run" if len(quick) == len(mine) else "Partly a QUICK run"
    seeds = sorted({found.seeds for found in mine.values()})
    made = sorted({_version(found) for found in mine.values()})
    names = ", ".join(f"[{name}](../benchmarks/reproduction/scenarios/{name}.yaml)" for name in mine)
    return f"{kind}, {' or '.join(map(str, seeds))} paired seeds, {'; '.join(made)}. Scenarios: {names}."


def _solved(mine: Mapping[str, Found]) -> str:
    versions = "; ".join(
        sorted({f"Offbeat at {found.content['made_with']['commit']}" for found in mine.values()})
    )
    file = "examples/allocation/published.yaml"
    return f"Solved by {versions}. Setting: [{file}](../{file}), with other T and K."


def _version(found: Found) -> str:
    made = found.content["made_with"]
    return f"Offbeat at {made['commit']}, torch {made['torch']}"


def _overview(found: Mapping[str, Found]) -> list[str]:
    found = {name: content for name, content in found.items() if name in ABOUT}
    quick = sum(bool(content.content["quick"]) for content in found.values())
    kind = (
        "a full run"
        if not quick
        else "a QUICK run: fewer seeds, models and sizes, so wide intervals"
        if quick == len(found)
        else f"full runs and {quick} QUICK ones"
    )
    return [f"This page shows {kind}; {len(found)} of {len(ABOUT)} scenarios.", ""]


def _summary(claims: Sequence[Claim]) -> list[str]:
    if not claims:
        return []
    rows = [[f"({claim.letter})", claim.source, claim.here, claim.verdict] for claim in claims]
    return [
        "## What the sources say, and what came out here",
        "",
        *table(["", "The source", "Here", "The same?"], rows),
        "",
    ]


def _workloads() -> list[str]:
    rows = [
        [f"`{work.key}`", work.about, str(work.batch), f"{work.target_loss:g}"] for work in WORKLOADS.values()
    ]
    return [
        "## Workloads",
        "",
        "All data is at hand without a download, but for Fashion-MNIST where Debian's package is not "
        "installed. The LSTM and the SVM are user task files: [tasks](../benchmarks/reproduction/tasks).",
        "",
        *table(["", "Data and model", "Batch", "Target loss"], rows),
        "",
    ]


def _pictures(
    letter: str, mine: Mapping[str, Found], found: Mapping[str, Found], folder: Path
) -> list[tuple[str, Path | None]]:
    """(what it shows, file) of an experiment."""

    def draw(name: str, plot: Callable[..., None], *arguments: object, **options: object) -> Path:
        plot(*arguments, folder / f"{name}.svg", **options)
        return folder / f"{name}.svg"

    if letter == "a" and "a-models" in mine:
        everyone = mine["a-models"]
        chosen = [label for label in everyone.labels if label in sections.DRAWN or label.startswith("ADSP")]
        theirs = everyone.best(sections.taus(everyone))
        chosen += [theirs] if theirs and theirs not in chosen else []
        return [
            ("Held-out loss against time", draw("a-loss", lambda path: plots.curves(everyone, path, chosen))),
            ("Where the time went", draw("a-shares", lambda path: plots.shares(everyone, path))),
        ]
    if letter in trends.VARIED:
        points = trends.leads(letter, found)
        label = trends.VARIED[letter].axis
        if len(points) > 1:
            log = letter == "c"
            return [
                (
                    f"ADSP's lead against {label}",
                    draw(f"{letter}-leads", lambda path: plots.leads(points, path, label, log=log)),
                )
            ]
        return []
    if letter == "e":
        panels = [(rates.RATES[name], content) for name, content in mine.items()]
        return [("Time against the commit rate", draw("e-rates", lambda path: plots.rates(panels, path)))]
    if letter == "i":
        rows = mine[staleness.NAME].content["results"]
        return [("Staleness", draw("i-staleness", lambda path: plots_allocation.staleness(rows, path)))]
    if letter == "j":
        titled = [(cycles.title(name), content) for name, content in mine.items()]
        return [
            (
                "Accuracy against cycles",
                draw("j-accuracy", lambda path: plots_allocation.cycles(titled, path)),
            )
        ]
    if letter == "k":
        ratios = allocated.ratios(mine)
        return [
            ("Time with own batches", draw("k-ratios", lambda path: plots_allocation.ratios(ratios, path)))
        ]
    if letter in ("f", "g", "h"):
        panels = [(name.partition("-")[2].replace("-", " "), content) for name, content in mine.items()]
        labels = list(dict.fromkeys(label for content in mine.values() for label in content.labels))
        return [("Times", draw(f"{letter}-times", lambda path: plots.groups(panels, path, labels)))]
    return []


def _learning_rates() -> list[str]:
    """The tuning, as it was found."""
    choices = tuned()
    lines = [
        "## Learning rates",
        "",
        "Tuned alike for all (`python -m benchmarks.reproduction tune`): a grid that goes on by a factor of "
        "two as long as its best is at an end, seeds that no comparison uses, least mean time to the target. "
        "The rates found for `mlp`, at H = 3.2 and a delay of 0.3 s, are used in (a) to (e) and (h); in (g) "
        "each division of the data has its own. In brackets: with the first seed only. `>`: the target was "
        "not reached.",
        "",
    ]
    for place in PLACES:
        contenders = choices.get(place)
        if not contenders:
            usual = WORKLOADS[PLACES[place].workload].usual_rate
            lines += [f"**{place}**: not tuned yet, every model has the rate {usual:g}.", ""]
            continue
        rows = []
        for key, choice in contenders.items():
            tried = ", ".join(_tried(*attempt) for attempt in choice["tried"])
            rows.append([CONTENDERS[key].label, f"{choice['lr']:g}", tried])
        lines += [f"**{place}**", "", *table(["", "Chosen", "Rate: mean seconds to the target"], rows), ""]
    return lines


def _tried(lr: float, time_s: float, seeds: int, reached: bool) -> str:
    text = f"{lr:g}: {'' if reached else '> '}{number(time_s)}"
    return text if seeds == len(SEEDS) else f"({text})"
