"""The workloads: what is trained, how far, and where the search for a learning rate begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """What scenarios share that train the same.

    Args:
        task: as in a scenario. file: the user task file, relative to the scenarios; "": built in.
        about: in the document's table.
        target_loss: held-out, mean of the last `smooth` evaluations.
        limit_s: virtual seconds at heterogeneity 3.2, for any model.
        rates: where tuning begins.
    """

    key: str
    about: str
    task: dict[str, Any]
    batch: int
    target_loss: float
    limit_s: float
    rates: tuple[float, ...]
    file: str = ""
    weight_decay: float = 0.0
    smooth: int = 10

    @property
    def usual_rate(self) -> float:
        """Where nothing was tuned."""
        return self.rates[len(self.rates) // 2]


WORKLOADS = {
    workload.key: workload
    for workload in (
        Workload(
            "mlp",
            "Fashion-MNIST, 70,000 pictures of clothes; MLP 784-64-10",
            {"name": "fashion-mnist", "options": {"held_out": 1000}},
            batch=32,
            target_loss=0.5,
            limit_s=1500,
            rates=(0.1, 0.2, 0.4),
        ),
        Workload(
            "cnn",
            "Fashion-MNIST; a CNN of two convolutions (8 and 16 channels)",
            {
                "name": "fashion-mnist",
                "options": {"architecture": "cnn", "channels": 8, "held_out": 1000},
            },
            batch=32,
            target_loss=0.6,
            limit_s=600,
            rates=(0.1, 0.2, 0.4),
        ),
        Workload(
            "lstm",
            "Weekly CO2 at Mauna Loa, 2,284 values; LSTM-64 on windows of 100",
            {"name": "co2_lstm"},
            batch=32,
            target_loss=0.1,
            limit_s=600,
            rates=(0.1, 0.2),
            file="../tasks/co2_lstm.py",
        ),
        Workload(
            "svm",
            "Breast Cancer Wisconsin, 569 rows of 30 measurements; SVM, hinge loss, Gaussian kernel",
            {"name": "cells_svm"},
            batch=16,
            target_loss=0.1,
            limit_s=600,
            rates=(4.0, 8.0, 16.0),
            file="../tasks/cells_svm.py",
            weight_decay=1e-4,
        ),
    )
}
