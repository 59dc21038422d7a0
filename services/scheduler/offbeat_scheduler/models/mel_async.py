"""Asynchronous mobile edge learning: samples and passes that fill each learner's cycle; see `mel.py`."""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field

from offbeat_scheduler.allocation import Integer, Scheme
from offbeat_scheduler.models.mel import MEL, MELOptions


class MELAsync(MEL):
    """Learners make different numbers of passes; the solver keeps their spread, the staleness, least."""

    name = "mel-async"
    scheme: Scheme = "async"

    class Options(MELOptions):
        integer: Literal["maximal", "full-cycle"] = Field(
            "full-cycle",
            description="full-cycle: everybody works 98 % of the cycle, where that is possible; maximal: "
            "nobody could make one more pass, as always with more than 200 learners.",
        )

    @property
    def integer(self) -> Integer:
        return cast(MELAsync.Options, self.options).integer
