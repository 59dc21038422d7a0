"""A model that counts: each local update with learning rate 1/1024 adds exactly that to each number.

So the model tells how many updates are in it, exactly, as long as all weights are 1.
"""

import torch
from torch import nn


class Counter(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(numbers))


def build_model(numbers=1000):
    return Counter(numbers)


def load_data(shard, shards, split, folder, seed):
    return torch.utils.data.TensorDataset(torch.zeros(64, 1))


def loss_and_metric(model, batch):
    return -model.count.sum(), model.count.detach()[0]
