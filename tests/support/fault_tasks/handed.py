"""The quadrants, as a file that only their owner has: a device without it can train on what it is dealt."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def build_model(hidden=16):
    return nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def load_data(split, folder):
    x = np.load(folder / "points.npy") if split == "train" else np.random.default_rng(1).normal(size=(300, 2))
    points = torch.from_numpy(x.astype(np.float32))
    return TensorDataset(points, (points[:, 0] * points[:, 1] > 0).long())


def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x[:, :2])
    return F.cross_entropy(scores, y), ("accuracy", (scores.argmax(1) == y).float().mean())
