"""Fashion-MNIST: 60,000 pictures of clothes to train on, 10,000 held out, 28x28 pixels, 10 classes.

Source: Xiao, Rasul, Vollgraf, arXiv 1708.07747; github.com/zalandoresearch/fashion-mnist (MIT).

The four idx files are looked for in the data folder, then where Debian's package
dataset-fashion-mnist puts them, and else downloaded into the data folder.

Options: `architecture` (mlp or cnn), `hidden` (width of the MLP), `channels` (of the CNN's first layer),
`held_out` (evaluate on the first so many of the 10,000: they are in no order).
"""

import contextlib
import gzip
import hashlib
import logging
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

try:
    import fcntl
except ImportError:  # not on Windows: there, processes that start together may each download
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("fashion-mnist")

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
TIMEOUT_S = 20  # without a byte from a mirror
DOWNLOAD_LIMIT_BYTES = 64 * 1024 * 1024

# Size and SHA-256 of each file's content, uncompressed: Debian's archives differ from
# the official ones in gzip's header alone.
CONTENT = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def build_model(architecture: str = "mlp", hidden: int = 64, channels: int = 16) -> nn.Module:
    """Pictures (n, 28, 28) in 0..1 -> scores (n, 10)."""
    if architecture == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if architecture == "cnn":
        return nn.Sequential(
            nn.Unflatten(1, (1, 28)),
            nn.Conv2d(1, channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * 7 * 7, 10),
        )
    raise ValueError(f"architecture: '{architecture}' is not known\ngive mlp or cnn")


def load_data(split: str, folder: Path, held_out: int = 10_000) -> TensorDataset:
    """Items (picture (28, 28) uint8, class int64). Bytes, since floats would take 188 MB."""
    prefix = "t10k" if split == "test" else "train"
    pictures = _read_idx(_find(f"{prefix}-images-idx3-ubyte", folder), 3)
    labels = _read_idx(_find(f"{prefix}-labels-idx1-ubyte", folder), 1)
    if len(pictures) != len(labels):
        raise ValueError(
            f"{folder}: {len(pictures)} pictures but {len(labels)} labels ({prefix})\n"
            "replace the files, or remove them to have them downloaded again"
        )
    if split == "test":
        if held_out < 1:
            raise ValueError(f"held_out: {held_out} is not positive\ngive how many pictures to evaluate on")
        pictures, labels = pictures[:held_out], labels[:held_out]
    return TensorDataset(torch.from_numpy(pictures), torch.from_numpy(labels.astype(np.int64)))


def loss_and_metric(model: nn.Module, batch: list[torch.Tensor]) -> tuple[torch.Tensor, tuple]:
    """Cross entropy and accuracy over a batch."""
    pictures, labels = batch
    scores = model(pictures.float() / 255)
    accuracy = (scores.argmax(1) == labels).float().mean()
    return F.cross_entropy(scores, labels), ("accuracy", accuracy)


# ---- the files -----------------------------------------------------------------


def _find(name: str, folder: Path) -> Path:
    """Where the idx file `name` is; downloads it if it is nowhere."""
    found = _look(name, folder)
    if found:
        return found
    with _one_at_a_time(folder):
        return _look(name, folder) or _download(name, folder / "fashion-mnist")


def _look(name: str, folder: Path) -> Path | None:
    places = (folder / "fashion-mnist", folder, folder / "FashionMNIST" / "raw", DEBIAN_FOLDER)
    candidates = (place / file for place in places for file in (f"{name}.gz", name))
    return next((path for path in candidates if path.is_file()), None)


def _read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The unsigned bytes of an idx file as a writable array of its shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:4] != bytes((0, 0, 8, dimensions)):
            raise ValueError(f"does not begin as an idx file of {dimensions} dimensions")
        shape = np.frombuffer(content, ">u4", dimensions, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read: {error}\nreplace the file, or remove it to have it downloaded again"
        ) from error


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Of several processes that share a data folder one downloads; the others wait and find it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".fashion-mnist.lock", "w") as lock:
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise PermissionError(
            f"data: Fashion-MNIST is not in {folder}, and the folder cannot be written to\n{REMEDY}"
        ) from error


REMEDY = (
    "put the four idx files into the folder's subfolder fashion-mnist, "
    "or install Debian's package dataset-fashion-mnist"
)


def _download(name: str, folder: Path) -> Path:
    """Fetch one file, check it, and only then give it its name."""
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for mirror in MIRRORS:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                _fetch(f"{mirror}{name}.gz", file)
                file.flush()
                os.fsync(file.fileno())
            _verify(name, Path(temporary))
            os.chmod(temporary, 0o644)
            os.replace(temporary, folder / f"{name}.gz")
            return folder / f"{name}.gz"
        except (OSError, EOFError, ValueError) as error:
            reasons.append(f"{mirror.split('/')[2]}: {error}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    raise ConnectionError(
        f"data: Fashion-MNIST is not in {folder}, and downloading failed ({'; '.join(reasons)})\n{REMEDY}"
    )


def _fetch(url: str, file: BinaryIO) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        total = int(response.headers.get("Content-Length") or 0)
        log.info("downloading %s (%.1f MB)", url, total / 1e6)
        done, next_note = 0, 0.1
        while chunk := response.read(256 * 1024):
            file.write(chunk)
            done += len(chunk)
            if done > DOWNLOAD_LIMIT_BYTES:
                raise ValueError("the answer is too long")
            if total > 4e6 and done / total >= next_note:
                log.info("%d %% of %.1f MB", 100 * done / total, total / 1e6)
                next_note += 0.1
        if total and done != total:
            raise EOFError(f"the connection ended after {done} of {total} bytes")


def _verify(name: str, path: Path) -> None:
    size, expected = CONTENT[name]
    digest = hashlib.sha256()
    done = 0
    with gzip.open(path) as content:
        while chunk := content.read(1024 * 1024):
            digest.update(chunk)
            done += len(chunk)
            if done > size:
                break
    if digest.hexdigest() != expected:
        raise ValueError(f"{name}.gz: SHA-256 is {digest.hexdigest()}, not {expected}")
