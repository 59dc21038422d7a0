"""Synchronous mobile edge learning: the same number of passes for all, over samples by speed; see `mel.py`.

Source: Mohammad, Sorour, "Adaptive Task Allocation for Mobile Edge Learning", arXiv 1811.03748.
"""

from __future__ import annotations

from offbeat_scheduler.allocation import Scheme
from offbeat_scheduler.models.mel import MEL, MELOptions


class MELSync(MEL):
    """No staleness; what the whole number of passes leaves of the cycle is idle."""

    name = "mel-sync"
    scheme: Scheme = "sync"
    Options = MELOptions
