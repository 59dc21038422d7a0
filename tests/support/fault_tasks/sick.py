"""quadrants, on a device that the environment makes sick.

SICK_AFTER, RAISE_AFTER, HANG_AFTER, SHRINK_AFTER: so many updates go well, then losses are NaN, the task
fails, one update takes 9 s, or the memory holds no more than 5 samples at a time.
BUSY_S: each update keeps Python busy for so long.
"""

import os
import time

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


def _after(name):
    return float(os.environ.get(name, "inf"))


def loss_and_metric(model, batch):
    global steps
    x, y = batch
    scores = model(x)
    loss = F.cross_entropy(scores, y)
    if model.training:
        steps += 1
        if steps > _after("SICK_AFTER"):
            loss = loss * float("nan")
        if steps > _after("RAISE_AFTER"):
            raise ValueError("the sensor is gone")
        if steps == _after("HANG_AFTER"):
            time.sleep(9)
        if steps > _after("SHRINK_AFTER") and len(x) > 5:
            torch.empty(10**15)
        end = time.monotonic() + float(os.environ.get("BUSY_S", "0"))
        while time.monotonic() < end:
            pass
    return loss, (scores.argmax(1) == y).float().mean()
