"""Mobile edge learning with equal samples for all, the baseline; see `mel.py`."""

from __future__ import annotations

from offbeat_scheduler.allocation import Scheme
from offbeat_scheduler.models.mel import MEL, MELOptions


class MELEta(MEL):
    """Equal task allocation: each learner makes as many passes over its d/K samples as fit the cycle."""

    name = "mel-eta"
    scheme: Scheme = "eta"
    Options = MELOptions
