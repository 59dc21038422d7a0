"""A task that counts its own steps where others can see them: one 8-byte counter in a shared file.

The option `counter_folder` says where; the benchmark reads it by a clock of its own.
"""

import mmap
import struct
from pathlib import Path

import torch
from torch import nn

_counter = None


def build_model(width: int = 512):
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 10))


def load_data(shard, shards, split, folder, seed, counter_folder=""):
    global _counter
    if split == "train" and counter_folder:
        path = Path(counter_folder) / f"shard-{shard}"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            _counter = mmap.mmap(file.fileno(), 8)
    generator = torch.Generator().manual_seed(shard + 1000 * (split == "test"))
    x = torch.randn(2000, 256, generator=generator)
    y = (x[:, :10]).argmax(dim=1)
    return torch.utils.data.TensorDataset(x, y)


def loss_and_metric(model, batch):
    x, y = batch
    if _counter is not None and model.training:
        _counter[:] = struct.pack("<q", struct.unpack("<q", _counter[:])[0] + 1)
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), (scores.argmax(dim=1) == y).float().mean().item()
