"""quadrants, on a device whose arithmetic breaks: on one shard the loss becomes NaN after some updates."""

import os

import torch
from torch import nn
from torch.nn import functional as F

steps = 0


def build_model():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def load_data(shard, shards, split, folder, seed):
    generator = torch.Generator().manual_seed(shard if split == "train" else 1000)
    x = torch.randn(300, 2, generator=generator)
    return torch.utils.data.TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def loss_and_metric(model, batch):
    global steps
    x, y = batch
    scores = model(x)
    loss = F.cross_entropy(scores, y)
    if model.training:
        steps += 1
        if steps > int(os.environ.get("SICK_AFTER", "1000000000")):
            loss = loss * float("nan")
    return loss, (scores.argmax(1) == y).float().mean()
