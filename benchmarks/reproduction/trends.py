"""(b), (c) and (d): one thing is varied, and the source says that ADSP's lead grows with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.reproduction.claims import Claim, grows
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.markdown import percent, table

OURS = "ADSP"
BARRIER = "Fixed ADACOMM"


@dataclass(frozen=True)
class Varied:
    """What (b), (c) or (d) vary: scenario -> value."""

    axis: str
    column: str
    source: str
    values: Mapping[str, float]


VARIED = {
    "b": Varied(
        "heterogeneity H",
        "H",
        "the lead over Fixed ADACOMM grows with heterogeneity",
        {
            **{f"b-heterogeneity-{h}": float(h) for h in ("1.00", "1.45", "2.00", "2.60")},
            "a-models": 3.2,
        },
    ),
    "c": Varied(
        "number of devices",
        "Devices",
        "the lead over Fixed ADACOMM grows with the number of workers (18, 36)",
        {f"c-workers-{size}": size for size in (18, 36, 100, 500)},
    ),
    "d": Varied(
        "commit delay, slow steps",
        "Delay",
        "the lead over Fixed ADACOMM grows with the delay (0, 2, 5, 10 s)",
        {f"d-delay-{delay}": delay for delay in (0, 2, 5, 10)},
    ),
}


def barrier(letter: str, found: Mapping[str, Found]) -> dict[str, str]:
    """The best Fixed ADACOMM of each scenario, of those that all of them have: scenario -> label."""
    here = {name: found[name] for name in VARIED[letter].values if name in found}
    common = set.intersection(*({*content.labels} for content in here.values())) if here else set()
    labels = sorted(label for label in common if label.startswith(BARRIER))
    return {name: best for name, content in here.items() if (best := content.best(labels))}


def leads(letter: str, found: Mapping[str, Found]) -> list[tuple[float, Ratio]]:
    """ADSP's lead over the best Fixed ADACOMM for each value of what is varied."""
    return [
        (VARIED[letter].values[name], found[name].lead(OURS, theirs))
        for name, theirs in barrier(letter, found).items()
        if found[name].has(OURS)
    ]


def varied(letter: str) -> Callable[[Mapping[str, Found]], tuple[list[str], list[Claim]]]:
    """(b), (c), (d): one table over all values, and the trend."""

    def section(found: Mapping[str, Found]) -> tuple[list[str], list[Claim]]:
        what = VARIED[letter]
        best = barrier(letter, found)
        rows = []
        for name, value in what.values.items():
            here = found.get(name)
            if not here:
                continue
            theirs = best.get(name)
            shown = ["BSP", "ASP", "ADACOMM", theirs, OURS, f"{OURS} overlapped", "ASP overlapped"]
            for label in dict.fromkeys(shown):
                if label and here.has(label):
                    rows.append(
                        [
                            f"{value:g}",
                            label,
                            f"{here[label]['reached']} of {here.seeds}",
                            here.time(label),
                            here.ratio(label, OURS).text if label != OURS else "",
                            percent(here[label]["compute_share"]),
                        ]
                    )
        lines = table([what.column, "", "Reached", "Seconds", "Of ADSP's time", "Computing"], rows)
        points = leads(letter, found)
        claim = grows(letter, what.source, f"less time than the best Fixed ADACOMM, by {what.axis}", points)
        extra = _overlap(found) if letter == "d" else []
        return [*lines, "", *extra], [claim] if claim else []

    return section


def _overlap(found: Mapping[str, Found]) -> list[str]:
    """What overlap does, by delay."""
    parts = []
    for name, delay in VARIED["d"].values.items():
        here = found.get(name)
        if here and here.has(OURS, f"{OURS} overlapped"):
            parts.append(f"at a delay of {delay:g} {here.ratio(f'{OURS} overlapped', OURS).text}")
    return [f"ADSP's time with overlap, of that without: {'; '.join(parts)}.", ""] if parts else []
