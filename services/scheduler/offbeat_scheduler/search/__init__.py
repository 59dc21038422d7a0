"""Commit-rate search: how long a worker trains between two commits.

A search is told how fast the fleet is and how the loss falls; it says for how long to
commit at what interval (a `Segment`). Training goes on all the while, so a search wastes
nothing but the difference between rates. Pure, like everything that decides.
"""

from offbeat_scheduler.search.base import FixedRate, Search, Segment
from offbeat_scheduler.search.formula import FormulaSearch
from offbeat_scheduler.search.pace import Pace, measure
from offbeat_scheduler.search.progress import Terms
from offbeat_scheduler.search.robust import RobustSearch
from offbeat_scheduler.search.source import SourceSearch

__all__ = [
    "FixedRate",
    "FormulaSearch",
    "Pace",
    "RobustSearch",
    "Search",
    "Segment",
    "SourceSearch",
    "Terms",
    "measure",
]
