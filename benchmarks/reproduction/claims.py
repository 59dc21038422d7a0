"""What the source says, beside what came out here, and whether that is the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.reproduction.found import Ratio
from benchmarks.reproduction.markdown import percent

SHARE_MARGIN = 0.05
"""Shares of time within five points are the same."""
TREND_MARGIN = 0.02
"""A lead that falls by no more than that between two points has not fallen."""


@dataclass(frozen=True)
class Claim:
    """One line of the summary; `verdict` is yes, no, or what holds instead."""

    letter: str
    source: str
    here: str
    verdict: str

    @property
    def sentence(self) -> str:
        return f"**The source:** {self.source}. **Here:** {self.here}. **The same?** {self.verdict}."


def lead_text(lead: Ratio, theirs: str) -> str:
    sign = "more than " if lead.open_above else "at most " if lead.open_below else ""
    return (
        f"{sign}{100 * lead.mean:.1f} % less time than {theirs} [{100 * lead.low:.1f}, {100 * lead.high:.1f}]"
    )


def reaches(lead: Ratio, bar: float) -> str:
    """Is a lead as large as the source's?"""
    if lead.open_below:
        return "no: ADSP did not reach the target with every seed"
    if lead.mean >= bar:
        return "yes"
    return "within the interval" if lead.high >= bar else "no, less"


def share(letter: str, source: str, of: str, here: float, low: float, high: float) -> Claim:
    """A share of time, which the source gives as low to high."""
    near = low - SHARE_MARGIN <= here <= high + SHARE_MARGIN
    verdict = "yes" if near else "no, less" if here < low else "no, more"
    return Claim(letter, source, f"{of} {percent(here)}", verdict)


def grows(letter: str, source: str, what: str, points: Sequence[tuple[float, Ratio]]) -> Claim | None:
    """Does the lead grow with what was varied? None with fewer than two points."""
    if len(points) < 2:
        return None
    leads = [lead.mean for _, lead in points]
    here = f"{what}: " + ", ".join(
        f"{x:g}: {100 * lead:.0f} %" for (x, _), lead in zip(points, leads, strict=True)
    )
    steadily = all(later >= earlier - TREND_MARGIN for earlier, later in itertools.pairwise(leads))
    if leads[-1] > leads[0] + TREND_MARGIN:
        verdict = "yes" if steadily else "in the end, but not steadily"
    else:
        verdict = "no" if leads[-1] < leads[0] - TREND_MARGIN else "no: it stays the same"
    return Claim(letter, source, here, verdict)
