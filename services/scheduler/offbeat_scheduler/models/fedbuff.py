"""FedBuff: nobody waits, and every K updates enter the model together.

Source: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022: K = 10, and
an update of staleness s counts 1/sqrt(1 + s) times. *Ours*: K is half the fleet unless it is given,
for the source's fleets are larger; and the server's rate is K/M, with which one commit of each of the M
devices counts 1/M: the source tunes it, and so should you. More is not possible: see `docs/models.md`.
"""

from __future__ import annotations

from typing import Literal, cast

from pydantic import Field

from offbeat_core.config import MOST_32, Settings
from offbeat_scheduler.models.barrier import longest_s, window_s
from offbeat_scheduler.sync import Fleet, Fold, Plan, Steps, SyncModel


class FedBuff(SyncModel):
    """Commit after tau local updates into a buffer of K."""

    name = "fedbuff"
    short_option = "k"

    class Options(Settings):
        k: int | None = Field(
            None,
            ge=1,
            le=MOST_32,
            description="Commits that enter together. Default: half as many as devices.",
        )
        tau: int = Field(8, ge=1, le=MOST_32, description="Local updates in a commit.")
        server_rate: float | None = Field(
            None, gt=0, description="Multiplies the mean of the K updates; K/M at most, which is the default."
        )
        staleness_power: float = Field(
            0.5,
            ge=0,
            description="p: an update of staleness s counts (1 + s)^-p times. 0: each counts fully.",
        )
        weight: Literal["equal", "samples", "per_step"] = Field(
            "equal", description="What a commit counts among the K: equal, samples, or per_step as in asp."
        )
        overlap: bool = Field(
            False,
            description="Go on training while a commit travels. false: wait for the fresh model, as in the "
            "source.",
        )

    def decide(self, fleet: Fleet) -> Plan:
        options = cast(FedBuff.Options, self.options)
        devices = max(1, len(fleet.devices))
        k = options.k or (devices + 1) // 2
        most = k / devices
        notes: tuple[str, ...] = ()
        if options.server_rate is not None and options.server_rate > most + 1e-9:
            notes = (
                f"server_rate: {options.server_rate:g} is taken as K/M = {most:.3g}: more would diverge",
            )
        interval_s = longest_s(fleet, options.tau)
        return Plan(
            triggers={name: Steps(options.tau) for name in fleet.devices},
            fold=Fold(
                when="every_k",
                weight=options.weight,
                every_k=k,
                server_rate=options.server_rate or most,
                staleness_power=options.staleness_power,
            ),
            overlap=options.overlap,
            membership_window_s=window_s(self.run.check_period_s, interval_s),
            interval_s=interval_s,
            notes=notes,
        )
