"""quadrants, from a DataLoader whose workers are forks of a process with gRPC's threads in it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Points(Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 300

    def __getitem__(self, index):
        x = torch.randn(2, generator=torch.Generator().manual_seed(self.first + index))
        return x, int(x[0] * x[1] > 0)


def build_model():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def load_data(shard, shards, split, folder, seed):
    points = Points(1000 * shard if split == "train" else 100_000)
    batches = list(DataLoader(points, batch_size=20, num_workers=4))
    return TensorDataset(*(torch.cat(column) for column in zip(*batches, strict=True)))


def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x)
    return F.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()
