"""Tuning alike for all: each family of synchronization models gets its best learning rate and options.

Successive halving with seeds of its own, the same for every family:

1. each option at each learning rate of the grid, with one seed;
2. as long as the best learning rate of a family is at an end of what was tried for that option, the
   grid goes on by a factor of two there, at most `WIDER` times;
3. if asked for, the rates a factor of sqrt(2) beside each family's best: a model may lose 5 % to one whose
   best rate happens to lie on the grid;
4. the best `KEPT` of a family with the other seeds too; the least mean is the family's best.

Pure: what a setting needs is asked of `measure`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

RATES = (0.1, 0.2, 0.4)
WIDER = 2
KEPT = 2

Measure = Callable[[Sequence["Setting"], Sequence[int]], Mapping["Setting", Sequence[float]]]
"""(settings, seeds) -> the score of each setting per seed; less is better."""


@dataclass(frozen=True)
class Setting:
    """A model with options, at a learning rate. `sync` is JSON, so that settings can be keys."""

    sync: str
    overlap: bool
    lr: float

    @classmethod
    def of(cls, sync: str | Mapping[str, Any], lr: float, *, overlap: bool = False) -> Setting:
        return cls(json.dumps(sync, sort_keys=True), overlap, lr)

    @property
    def label(self) -> str:
        """Unique among settings, and short enough for a table."""
        sync = json.loads(self.sync)
        if isinstance(sync, dict):
            ((name, options),) = sync.items()
            name = name.rpartition(":")[2]  # of a model in a file of its own: its class
            sync = f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in options.items())})"
        return f"{sync}{' overlapped' if self.overlap else ''} lr={self.lr:g}"


@dataclass(frozen=True)
class Tuned:
    """A family's best setting and how it was found.

    Args:
        tried: (setting, mean score, seeds) of all that were tried, the best first.
        at_end: is the best learning rate the last one that was tried on its side?
    """

    best: Setting
    tried: tuple[tuple[Setting, float, int], ...]
    at_end: bool


def tune(
    families: Mapping[str, Sequence[Setting]],
    measure: Measure,
    seeds: Sequence[int],
    rates: Sequence[float] = RATES,
    *,
    finer: bool = False,
) -> dict[str, Tuned]:
    """The best setting of each family.

    Args:
        families: the options of each, whatever their learning rate.
        seeds: at least one; none of them may be used to measure afterwards.
        finer: try the rates between those of the grid, too, on both sides of the best.
    """
    scores: dict[Setting, list[float]] = {}

    def learn(settings: Iterable[Setting], wanted: Sequence[int]) -> None:
        fresh = [setting for setting in dict.fromkeys(settings) if len(scores.get(setting, ())) < len(wanted)]
        if fresh:
            scores.update({setting: list(found) for setting, found in measure(fresh, wanted).items()})

    def tried(family: str) -> list[Setting]:
        mine = {replace(option, lr=0.0) for option in families[family]}
        return [setting for setting in scores if replace(setting, lr=0.0) in mine]

    def ranked(family: str) -> list[Setting]:
        """Best first; a mean over more seeds is believed before one over fewer."""
        return sorted(tried(family), key=lambda setting: (-len(scores[setting]), _mean(scores[setting])))

    learn(
        (replace(option, lr=rate) for options in families.values() for option in options for rate in rates),
        seeds[:1],
    )
    for _ in range(WIDER):
        learn(
            (further for family in families for further in _further(ranked(family)[0], tried(family))),
            seeds[:1],
        )
    if finer:
        learn((between for family in families for between in _beside(ranked(family)[0])), seeds[:1])
    learn((setting for family in families for setting in ranked(family)[:KEPT]), seeds)
    return {
        family: Tuned(
            best=ranked(family)[0],
            tried=tuple(
                (setting, _mean(scores[setting]), len(scores[setting])) for setting in ranked(family)
            ),
            at_end=bool(_further(ranked(family)[0], tried(family))),
        )
        for family in families
    }


def _further(best: Setting, tried: Iterable[Setting]) -> list[Setting]:
    """The next learning rate on the side where the best one has no neighbour; none where it has both."""
    rates = [setting.lr for setting in tried if replace(setting, lr=best.lr) == best]
    if best.lr == max(rates):
        return [replace(best, lr=2 * best.lr)]
    if best.lr == min(rates):
        return [replace(best, lr=best.lr / 2)]
    return []


def _beside(best: Setting) -> list[Setting]:
    """Half a step of the grid to each side, in three digits."""
    return [replace(best, lr=float(f"{best.lr * factor:.3g}")) for factor in (math.sqrt(0.5), math.sqrt(2))]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
