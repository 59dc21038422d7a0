"""(e): fixed commit rates, and the searches that choose one in the run."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.reproduction.claims import Claim
from benchmarks.reproduction.found import Found
from benchmarks.reproduction.markdown import number, table

RATES = {
    "e-rates-0.3": "delay 0.3",
    "e-rates-3": "delay 3",
    "e-rates-3-overlapped": "delay 3, overlapped",
}


def section(found: Mapping[str, Found]) -> tuple[list[str], list[Claim]]:
    """(e)"""
    lines: list[str] = []
    claims: list[Claim] = []
    for name, title in RATES.items():
        here = found.get(name)
        if not here:
            continue
        best = here.best([label for label in here.labels if " rate " in label])
        rows = []
        for label in here.labels:
            rate = float(label.rpartition(" ")[2]) if " rate " in label else None
            intervals = [value for value in here[label]["intervals_s"] if value]
            mean = sum(intervals) / len(intervals) if intervals else None
            rows.append(
                [
                    label,
                    f"{here[label]['reached']} of {here.seeds}",
                    here.time(label),
                    here.ratio(label, best).text if best and label != best else "",
                    number(mean) if mean else "",
                    f"{implicit_momentum(rate):.2f}" if rate else "",
                ]
            )
        head = [
            "",
            "Reached",
            "Seconds",
            "Of the best fixed rate's time",
            "Interval at the end, s",
            "Implicit momentum",
        ]
        lines += [f"**{title}**", "", *table(head, rows), ""]
        searches = {label.rpartition(" ")[2]: label for label in here.labels if "search" in label}
        if best and searches:
            claims.append(_search_claim(here, title, best, searches))
    lines += [
        "Implicit momentum is the source's formula for 18 equal workers: committing less often acts like "
        "momentum. It is a trend to see, and controls nothing.",
        "",
    ]
    return lines, claims


def _search_claim(found: Found, title: str, best: str, searches: Mapping[str, str]) -> Claim:
    parts = [
        f"{name} {found.ratio(label, best).text} of the time of {best.removeprefix('ADSP ')}"
        for name, label in searches.items()
    ]
    robust = searches.get("robust")
    near = robust is not None and found.ratio(robust, best).mean <= 1.1 and found.reached_all(robust)
    return Claim(
        "e",
        "a search finds the commit rate in the run",
        f"{title}: {', '.join(parts)}",
        "yes: robust is within 10 % of the best rate"
        if near
        else "robust is more than 10 % behind the best rate",
    )


def implicit_momentum(rate: float, workers: int = 18, per_commit: float = 0.05) -> float:
    """mu = 1 - 1/(1 + (1 - 1/M) M g/rate): the source's formula with the unit of its own plot (g = 0.05)."""
    return 1 - 1 / (1 + (1 - 1 / workers) * workers * per_commit / rate)
