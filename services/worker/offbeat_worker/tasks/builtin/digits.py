"""Handwritten digits: 1,797 real scans of 8x8 pixels, shipped with scikit-learn (no download).

Every fifth scan is held out (360); the others (1,437) are for training.

Options: `architecture` (mlp or cnn), `hidden` (width of the MLP).
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def build_model(architecture: str = "mlp", hidden: int = 64) -> nn.Module:
    """Pixels (n, 64) in 0..1 -> scores (n, 10)."""
    if architecture == "mlp":
        return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if architecture == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )
    raise ValueError(f"architecture: '{architecture}' is not known\ngive mlp or cnn")


def load_data(split: str) -> TensorDataset:
    """Items (pixels (64,) float32 in 0..1, digit int64)."""
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    held_out = torch.arange(len(labels)) % 5 == 0
    chosen = held_out if split == "test" else ~held_out
    return TensorDataset(pixels[chosen], labels[chosen])


def loss_and_metric(model: nn.Module, batch: list[torch.Tensor]) -> tuple[torch.Tensor, tuple]:
    """Cross entropy and accuracy over a batch."""
    pixels, labels = batch
    scores = model(pixels)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return F.cross_entropy(scores, labels), ("accuracy", accuracy)
