"""The sections (a) to (k): tables and verdicts, computed from what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from benchmarks.reproduction import allocated, cycles, rates, staleness, trends
from benchmarks.reproduction.claims import Claim, lead_text, reaches, share
from benchmarks.reproduction.found import Found, Ratio
from benchmarks.reproduction.markdown import percent, table, together
from benchmarks.reproduction.trends import BARRIER, OURS

HEADLINE = 0.624
DRAWN = ("BSP", "SSP(3)", "ASP", "ADACOMM", "FedBuff(2)", "FedCompass(8)")

Section = tuple[list[str], list[Claim]]


def entries(found: Found, labels: Iterable[str] | None = None) -> list[str]:
    """The table that every scenario gets: the fastest first."""
    chosen = [label for label in (labels or found.labels) if found.has(label)]
    chosen.sort(key=lambda label: (found[label]["time_s"], -found[label]["reached"]))
    rows = []
    for label in chosen:
        entry = found[label]
        ratio = found.ratio(label, OURS).text if found.has(OURS) and label != OURS else ""
        rows.append(
            [
                label,
                f"{entry['lr']:g}",
                f"{entry['reached']} of {found.seeds}",
                found.time(label),
                ratio,
                *(percent(entry[key]) for key in ("compute_share", "commit_share", "wait_share")),
                f"{entry['steps']:.0f}",
                f"{entry['commits']:.0f}",
            ]
        )
    head = [
        "",
        "Rate",
        "Reached",
        "Seconds",
        "Of ADSP's time",
        "Computing",
        "Committing",
        "Waiting",
        "Steps",
        "Commits",
    ]
    return [*table(head, rows), ""]


def taus(found: Found) -> list[str]:
    """Fixed ADACOMM with each tau that was tried."""
    return [label for label in found.labels if label.startswith(BARRIER)]


def models(found: Mapping[str, Found]) -> Section:
    """(a)"""
    lines: list[str] = []
    claims: list[Claim] = []
    everyone = found.get("a-models")
    if everyone:
        lines += entries(everyone)
        theirs = everyone.best(taus(everyone))
        if theirs:
            lead = everyone.lead(OURS, theirs)
            text = lead_text(lead, f"{theirs}, the best tau")
            if everyone.has(f"{BARRIER}(40)") and theirs != f"{BARRIER}(40)":
                fixed = everyone.lead(OURS, f"{BARRIER}(40)")
                text += f"; {lead_text(fixed, 'the tau of the source, 40')}"
            source = "ADSP takes up to 62.4 % less time than Fixed ADACOMM at H = 3.2"
            claims.append(Claim("a", source, text, reaches(lead, HEADLINE)))
        ahead = [label for label in everyone.labels if label != OURS and everyone.ratio(label, OURS).mean < 1]
        claims.append(
            Claim(
                "a",
                "ADSP is ahead of BSP, SSP, ADACOMM and Fixed ADACOMM",
                f"ahead of ADSP: {together(ahead)} of all {len(everyone.labels) - 1}",
                "yes" if not [a for a in ahead if not a.startswith(BEYOND)] else "no",
            )
        )
        compute = everyone[OURS]["compute_share"]
        claims.append(
            share("a", "ADSP's workers compute 91 to 92 % of the time", "they compute", compute, 0.91, 0.92)
        )
    three = found.get("a-three-workers")
    if three:
        more_lines, more_claims = _three(three)
        lines += more_lines
        claims += more_claims
    return lines, claims


BEYOND = ("ASP", "FedBuff", "FedCompass", "FedAvg", "BatchTune")
"""What the source does not compare with, by the beginnings of labels."""

THREE = {
    "BSP": 0.95,
    "SSP(40)": 0.91,
    "ADACOMM": 0.54,
    "Fixed ADACOMM(40)": 0.56,
    "ADSP": 0.06,
}


def _three(found: Found) -> Section:
    """The source's "waiting" is all time that is not computing, its commits' travel included."""
    lines = [
        "Three workers, step times 1 : 1 : 3. The source counts its commits' travel as waiting. It does not "
        "say how long one takes; its own shares for BSP and Fixed ADACOMM(40) imply about 10 slow steps, "
        "which is what this scenario has (check period 120 s).",
        "",
    ]
    rows = []
    same = []
    for label in found.labels:
        entry = found[label]
        waiting = 1 - entry["compute_share"]
        source = THREE.get(label)
        rows.append(
            [
                label,
                found.time(label),
                percent(source) if source is not None else "",
                percent(waiting),
                percent(entry["commit_share"]),
                percent(entry["wait_share"]),
            ]
        )
        if source is not None:
            same.append((label, source, waiting))
    head = [
        "",
        "Seconds",
        "Not computing, source",
        "Here",
        "of that its own commits",
        "of that waiting for others",
    ]
    lines += [*table(head, rows), ""]
    near = [label for label, source, here in same if abs(source - here) <= 0.05]
    claim = Claim(
        "a",
        "of the time of three workers (1 : 1 : 3) is lost: "
        + ", ".join(f"{label} {percent(source)}" for label, source, _ in same),
        ", ".join(f"{label} {percent(here)}" for label, _, here in same),
        "yes" if len(near) == len(same) else f"within 5 points for {together(near)}",
    )
    return lines, [claim]


def workloads(found: Mapping[str, Found]) -> Section:
    """(f)"""
    lines: list[str] = []
    parts, won = [], []
    for name in ("f-cnn", "f-lstm", "f-svm"):
        here = found.get(name)
        if not here:
            continue
        lines += [f"**{name.removeprefix('f-').upper()}**", "", *entries(here)]
        theirs = here.best(taus(here))
        if theirs:
            lead = here.lead(OURS, theirs)
            parts.append(f"{name.removeprefix('f-').upper()} {lead_text(lead, theirs)}")
            won.append(lead.low > 0)
    verdict = "yes" if all(won) else "not in all of them"
    source = "the lead holds for a CNN, an LSTM and an SVM"
    return lines, [Claim("f", source, "; ".join(parts), verdict)] if parts else []


def weights(found: Mapping[str, Found]) -> Section:
    """(g)"""
    lines: list[str] = []
    says = []
    for name in ("g-iid", "g-dirichlet", "g-labels-by-speed"):
        here = found.get(name)
        if not here:
            continue
        title = name.removeprefix("g-").replace("-", " ").replace("iid", "evenly divided")
        lines += [f"**{title.capitalize()}**", "", *entries(here)]
        other = f"{OURS}, weight per step"
        if here.has(OURS, other):
            ratio = here.ratio(other, OURS)
            says.append(f"{title}: {ratio.text} of the time with equal weights, {_helps(ratio)}")
    if says:
        lines += [f"Weight `per_step` under ADSP, {'; '.join(says)}.", ""]
    return lines, []


def _helps(ratio: Ratio) -> str:
    if ratio.open_above and ratio.open_below:
        return "neither reached the target with every seed"
    if ratio.open_above or ratio.low > 1:
        return "it is slower"
    return "it helps" if ratio.open_below or ratio.high < 1 else "no difference beyond chance"


def changes(found: Mapping[str, Found]) -> Section:
    """(h)"""
    lines: list[str] = []
    parts, won = [], []
    for name, title in (("h-speed-changes", "Speeds change"), ("h-devices-leave", "Devices leave")):
        here = found.get(name)
        if not here:
            continue
        lines += [f"**{title}**", "", *entries(here)]
        theirs = here.best(taus(here))
        if theirs:
            lead = here.lead(OURS, theirs)
            parts.append(f"{title.lower()}: {lead_text(lead, theirs)}")
            won.append(lead.low > 0)
    source = "ADSP adapts to changes in the run"
    return lines, [Claim("h", source, "; ".join(parts), "yes" if all(won) else "no")] if parts else []


SECTIONS: Mapping[str, Callable[[Mapping[str, Found]], Section]] = {
    "a": models,
    "b": trends.varied("b"),
    "c": trends.varied("c"),
    "d": trends.varied("d"),
    "e": rates.section,
    "f": workloads,
    "g": weights,
    "h": changes,
    "i": staleness.section,
    "j": cycles.section,
    "k": allocated.section,
}
