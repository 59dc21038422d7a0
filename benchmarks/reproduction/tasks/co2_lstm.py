"""How will the carbon dioxide in the air change over the coming weeks? Windows of 100 weekly values, LSTM-64.

co2.csv: weekly means at Mauna Loa, 1958 to 2001: 2,284 weeks, of which 59 have no value (filled linearly).
Source: Keeling and Whorf, Scripps Institution of Oceanography, 2004, public domain; the copy is that of
statsmodels, put here so that nothing has to be installed or downloaded.

A window is 100 values less its last one. To foretell: the change from that last value to the one `ahead`
weeks later. The last fifth of the time is held out, and no training window reaches into it.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

WINDOW = 100
MONTH = 4  # weeks that the LSTM reads at a time
SCALE = 3.0  # ppm: about the standard deviation of a change over 10 weeks


class Forecaster(nn.Module):
    """Windows (n, 100) -> change ahead (n,), both in units of SCALE."""

    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(MONTH, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, windows):
        states, _ = self.lstm(windows.unflatten(1, (WINDOW // MONTH, MONTH)))
        return self.head(states[:, -1]).squeeze(1)


def build_model(hidden=64):
    return Forecaster(hidden)


def load_data(split, ahead=10):
    values = _weekly()
    starts = np.arange(len(values) - WINDOW - ahead + 1)
    border = len(values) * 4 // 5
    chosen = starts[starts >= border] if split == "test" else starts[starts + WINDOW + ahead <= border]
    windows = values[chosen[:, None] + np.arange(WINDOW)]
    last = windows[:, -1:]
    change = values[chosen + WINDOW - 1 + ahead] - last[:, 0]
    return TensorDataset(
        torch.tensor((windows - last) / SCALE, dtype=torch.float32),
        torch.tensor(change / SCALE, dtype=torch.float32),
    )


def loss_and_metric(model, batch):
    windows, change = batch
    foretold = model(windows)
    direction = ((foretold > 0) == (change > 0)).float().mean()
    return F.mse_loss(foretold, change), ("accuracy", direction)


def _weekly():
    """The series without gaps, float64."""
    lines = Path(__file__).with_name("co2.csv").read_text().splitlines()[1:]
    values = np.array([float(line.split(",")[1] or "nan") for line in lines])
    weeks = np.arange(len(values))
    known = ~np.isnan(values)
    return np.interp(weeks, weeks[known], values[known])
