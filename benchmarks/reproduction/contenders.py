"""Which synchronization models take part, each option with the learning rate that tuning found for it.

`tune` makes benchmarks/results/reproduction/tuning.json (see tuned.py); the scenarios are written with its
choices, so that a model is compared at its own best rate wherever it appears.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks import harness

RESULTS = harness.RESULTS / "reproduction"
TUNING = RESULTS / "tuning.json"


@dataclass(frozen=True)
class Contender:
    """One model with its options, as scenarios name it.

    Args:
        key: in this program. family: which others it is an option of.
        sync: as in a scenario.
    """

    key: str
    label: str
    family: str
    sync: str | dict[str, Any]

    @property
    def model(self) -> str:
        return self.sync if isinstance(self.sync, str) else next(iter(self.sync))


def _option(family: str, shown: str, name: str, values: tuple[int, ...]) -> list[Contender]:
    return [
        Contender(f"{family}-{value}", f"{shown}({value})", family, {family: {name: value}})
        for value in values
    ]


CONTENDERS = {
    contender.key: contender
    for contender in (
        Contender("bsp", "BSP", "bsp", "bsp"),
        *_option("ssp", "SSP", "staleness", (3, 40)),
        Contender("asp", "ASP", "asp", "asp"),
        *_option("fixed-adacomm", "Fixed ADACOMM", "tau", (4, 8, 16, 40)),
        Contender("adacomm", "ADACOMM", "adacomm", {"adacomm": {"tau0": 20}}),
        Contender("batchtune-bsp", "BatchTune BSP", "batchtune-bsp", "batchtune-bsp"),
        *_option("batchtune-fixed-adacomm", "BatchTune Fixed ADACOMM", "tau", (4, 16)),
        Contender("fedavg", "FedAvg(half, 8)", "fedavg", {"fedavg": {"fraction": 0.5, "tau": 8}}),
        *_option("fedbuff", "FedBuff", "tau", (2, 8)),
        *_option("fedcompass", "FedCompass", "max_steps", (8, 20)),
        Contender("adsp", "ADSP", "adsp", "adsp"),
        Contender(
            "adsp-per-step", "ADSP, weight per step", "adsp-per-step", {"adsp": {"weight": "per_step"}}
        ),
    )
}
ALL = tuple(key for key in CONTENDERS if key != "adsp-per-step")
"""All models, each with its usual weights."""


def of_family(family: str) -> tuple[str, ...]:
    """Keys of the family's options."""
    return tuple(key for key, contender in CONTENDERS.items() if contender.family == family)


def tuned() -> dict[str, Any]:
    """What `tune` wrote: workload -> contender's key -> {"lr", "at_end", "tried"}."""
    if not TUNING.exists():
        return {}
    content: dict[str, Any] = json.loads(TUNING.read_text(encoding="utf-8"))
    return content["workloads"]  # type: ignore[no-any-return]


def rate(choices: dict[str, Any], workload: str, key: str, otherwise: float) -> float:
    """The tuned learning rate; `otherwise` where that contender was never tuned."""
    return float(choices.get(workload, {}).get(key, {}).get("lr", otherwise))
