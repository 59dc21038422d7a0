"""Is a tumour benign? A support vector machine with a Gaussian kernel, on 30 measurements of cell nuclei.

Data: Breast Cancer Wisconsin (569 rows), shipped with scikit-learn. Every fifth row is held out (114).

The kernel is approximated by random Fourier features (Rahimi and Recht, NIPS 2007), the same on every device.
What is trained is a linear classifier on them, by the hinge loss; labels are -1 and 1. The weight decay that
makes the margin wide is the run's.
"""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.utils.data import TensorDataset


class KernelMachine(nn.Module):
    """Rows (n, 30), standardised -> scores (n,)."""

    def __init__(self, features, gamma):
        super().__init__()
        stream = np.random.RandomState(0)  # its stream is the same in every release of numpy
        directions = stream.standard_normal((30, features)) * np.sqrt(2 * gamma)
        phases = stream.uniform(0, 2 * np.pi, features)
        self.directions = nn.Parameter(torch.tensor(directions, dtype=torch.float32), requires_grad=False)
        self.phases = nn.Parameter(torch.tensor(phases, dtype=torch.float32), requires_grad=False)
        self.classifier = nn.Linear(features, 1)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, rows):
        features = torch.cos(rows @ self.directions + self.phases) * (2 / self.phases.numel()) ** 0.5
        return self.classifier(features).squeeze(1)


def build_model(features=500, gamma=0.02):
    return KernelMachine(features, gamma)


def load_data(split):
    cells = load_breast_cancer()
    rows = (cells.data - cells.data.mean(0)) / cells.data.std(0)
    held_out = np.arange(len(rows)) % 5 == 0
    chosen = held_out if split == "test" else ~held_out
    return TensorDataset(
        torch.tensor(rows[chosen], dtype=torch.float32),
        torch.tensor(cells.target[chosen] * 2 - 1, dtype=torch.int64),
    )


def loss_and_metric(model, batch):
    rows, labels = batch
    scores = model(rows)
    hinge = torch.clamp(1 - labels * scores, min=0).mean()
    return hinge, ("accuracy", (scores * labels > 0).float().mean())
