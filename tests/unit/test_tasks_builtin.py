"""The tasks that Offbeat ships: written as a user's own is, with data that is checked."""

import ast
import functools
import gzip
import hashlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from offbeat_core.errors import OffbeatError
from offbeat_worker import tasks
from offbeat_worker.tasks.files import BUILTIN

REAL_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def test_naming_the_tasks_is_cheap_and_digests_are_of_the_files() -> None:
    script = (
        "import sys; from offbeat_worker import tasks; print(tasks.available([]));"
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in BUILTIN.items()}
    assert ast.literal_eval(done.stdout) == expected
    assert set(expected) == {"digits", "fashion-mnist"}
    assert tasks.load("digits", []).digest == expected["digits"]


@pytest.mark.parametrize("path", BUILTIN.values(), ids=BUILTIN)
def test_a_built_in_task_has_no_special_rights(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not {name for name in imported if name.startswith("offbeat")}
    assert "pickle" not in imported


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models so small are slower with more threads, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- digits ----------------------------------------------------------------------


def test_held_out_digits_are_the_same_on_each_device_and_apart_from_the_others(tmp_path: Path) -> None:
    task = tasks.load("digits", [])
    held_out = [
        task.load_data(shard, 3, "test", tmp_path, seed).tensors[0]
        for shard, seed in ((0, 1), (2, 1), (1, 99))
    ]
    assert torch.equal(held_out[0], held_out[1])
    assert torch.equal(held_out[0], held_out[2])
    train = task.load_data(0, 1, "train", tmp_path, 1).tensors[0]
    assert len(held_out[0]) == 360
    assert len(train) == 1437
    assert 0 <= train.min() < train.max() == 1


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.3"])
def test_shards_of_digits_are_disjoint_and_complete(partition: str, tmp_path: Path) -> None:
    task = tasks.load("digits", [])
    whole = task.load_data(0, 1, "train", tmp_path, 5, partition).tensors
    shards = [task.load_data(shard, 4, "train", tmp_path, 5, partition).tensors for shard in range(4)]

    def rows(x: torch.Tensor, y: torch.Tensor) -> list[tuple[float, ...]]:
        return sorted((*pixels, label) for pixels, label in zip(x.tolist(), y.tolist(), strict=True))

    together = sorted(row for shard in shards for row in rows(*shard))
    assert together == rows(*whole)
    again = task.load_data(2, 4, "train", tmp_path, 5, partition).tensors
    assert torch.equal(again[0], shards[2][0])


def test_dirichlet_shards_of_digits_differ_in_their_mixture(tmp_path: Path) -> None:
    task = tasks.load("digits", [])

    def largest_share(partition: str) -> float:
        labels = task.load_data(0, 3, "train", tmp_path, 1, partition).tensors[1]
        return float(labels.bincount(minlength=10).max() / len(labels))

    assert largest_share("iid") < 0.15 < 0.3 < largest_share("dirichlet:0.05")


@pytest.mark.parametrize("options", [{}, {"hidden": "32"}, {"architecture": "cnn"}])
def test_digits_learn(options: dict[str, str], tmp_path: Path) -> None:
    task = tasks.load("digits", [])
    torch.manual_seed(1)
    model = task.build_model(**options)
    pixels, labels = task.load_data(0, 1, "train", tmp_path, 1, **options).tensors
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    chance = torch.Generator().manual_seed(1)
    for _ in range(200):
        chosen = torch.randint(len(labels), (32,), generator=chance)
        optimizer.zero_grad()
        loss, _ = task.loss_and_metric(model, [pixels[chosen], labels[chosen]], **options)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        _, metric = task.loss_and_metric(model, task.load_data(0, 1, "test", tmp_path, 1).tensors)
    assert float(metric["accuracy"]) > 0.88


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(OffbeatError) as caught:
        tasks.load("digits", []).build_model(architecture="transformer")
    assert str(caught.value) == ("task 'digits': architecture: 'transformer' is not known\ngive mlp or cnn")


# ---- Fashion-MNIST ---------------------------------------------------------------


def idx(values: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.astype(np.uint8).tobytes()


@pytest.fixture
def contents() -> dict[str, bytes]:
    """A Fashion-MNIST of 20 and 10 pictures."""
    chance = np.random.default_rng(1)
    return {
        f"{prefix}-{kind}": idx(chance.integers(0, upto, (count, *shape)))
        for prefix, count in (("train", 20), ("t10k", 10))
        for kind, upto, shape in (("images-idx3-ubyte", 256, (28, 28)), ("labels-idx1-ubyte", 10, ()))
    }


@pytest.fixture
def task(contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> tasks.Task:
    """The task where Debian's package is not installed and no mirror can be reached."""
    task = tasks.load("fashion-mnist", [])
    module = module_of(task)
    monkeypatch.setattr(module, "DEBIAN_FOLDER", Path("/nowhere"))
    monkeypatch.setattr(module, "MIRRORS", ("http://127.0.0.1:9/",))
    monkeypatch.setattr(
        module,
        "CONTENT",
        {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()},
    )
    return task


def module_of(task: tasks.Task) -> ModuleType:
    return sys.modules[task.functions["load_data"].function.__module__]


class Mirror:
    """A web server with archives; counts what is fetched."""

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.announce_more = 0
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.fetched.append(self.path[1:])
                archive = mirror.archives.get(self.path[1:])
                if archive is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(archive) + mirror.announce_more))
                self.end_headers()
                self.wfile.write(archive)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def mirror(contents: dict[str, bytes]) -> Iterator[Mirror]:
    mirror = Mirror()
    mirror.archives = {f"{name}.gz": gzip.compress(content) for name, content in contents.items()}
    thread = threading.Thread(target=functools.partial(mirror.server.serve_forever, poll_interval=0.01))
    thread.start()
    yield mirror
    mirror.server.shutdown()
    thread.join()
    mirror.server.server_close()


def packed(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def unpacked(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("place", [".", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("put", [packed, unpacked])
def test_idx_files_in_the_data_folder_are_used(
    put: Callable[[Path, dict[str, bytes]], None],
    place: str,
    task: tasks.Task,
    contents: dict[str, bytes],
    tmp_path: Path,
) -> None:
    put(tmp_path / place, contents)
    train = task.load_data(0, 1, "train", tmp_path, 1)
    test = task.load_data(0, 1, "test", tmp_path, 1)
    assert (len(train), len(test)) == (20, 10)
    pictures, labels = train.tensors
    raw = np.frombuffer(contents["train-images-idx3-ubyte"][16:], np.uint8).reshape(20, 28, 28)
    assert np.array_equal(pictures.numpy(), raw)
    assert labels.tolist() == list(contents["train-labels-idx1-ubyte"][8:])
    tasks.check(task, tmp_path, shards=2)


def test_a_data_folder_wins_over_debians_package(
    task: tasks.Task, contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path / "debian", contents)
    monkeypatch.setattr(module_of(task), "DEBIAN_FOLDER", tmp_path / "debian")
    assert len(task.load_data(0, 1, "train", tmp_path / "own", 1)) == 20
    other = {name: idx(np.zeros((3, 28, 28) if "images" in name else 3)) for name in contents}
    packed(tmp_path / "own", other)
    assert len(task.load_data(0, 1, "train", tmp_path / "own", 1)) == 3


def test_what_is_nowhere_is_downloaded_once_and_checked(
    task: tasks.Task, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of(task), "MIRRORS", ("http://127.0.0.1:9/", mirror.url))
    folder = tmp_path / "not" / "there" / "yet"
    results: list[int] = []
    devices = [
        threading.Thread(target=lambda: results.append(len(task.load_data(0, 1, "train", folder, 1))))
        for _ in range(4)
    ]
    for device in devices:
        device.start()
    for device in devices:
        device.join()
    assert results == [20] * 4
    assert sorted(mirror.fetched) == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    assert {path.name for path in (folder / "fashion-mnist").iterdir()} == set(mirror.fetched)


@pytest.mark.parametrize("fault", ["wrong content", "cut off", "not an archive", "too long", "missing"])
def test_a_bad_download_leaves_nothing_and_says_what_to_do(
    fault: str, task: tasks.Task, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(task)
    monkeypatch.setattr(module, "MIRRORS", (mirror.url,))
    name = "train-images-idx3-ubyte.gz"
    if fault == "wrong content":
        mirror.archives[name] = gzip.compress(idx(np.zeros((20, 28, 28))))
    elif fault == "cut off":
        mirror.announce_more = 100
    elif fault == "not an archive":
        mirror.archives[name] = b"<html>log in to this network first</html>"
    elif fault == "too long":
        monkeypatch.setattr(module, "DOWNLOAD_LIMIT_BYTES", 100)
    else:
        del mirror.archives[name]
    with pytest.raises(OffbeatError) as caught:
        task.load_data(0, 1, "train", tmp_path, 1)
    assert f"Fashion-MNIST is not in {tmp_path / 'fashion-mnist'}, and downloading failed" in str(
        caught.value
    )
    assert "put the four idx files into" in caught.value.remedy
    assert list((tmp_path / "fashion-mnist").iterdir()) == []


def test_offline_the_error_names_the_folder_and_the_remedy(task: tasks.Task, tmp_path: Path) -> None:
    with pytest.raises(OffbeatError) as caught:
        task.load_data(0, 1, "test", tmp_path, 1)
    message = str(caught.value)
    assert message.count("\n") == 1
    assert message.startswith(f"task 'fashion-mnist': data: Fashion-MNIST is not in {tmp_path}/fashion-mnist")
    assert "dataset-fashion-mnist" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-images-idx3-ubyte.gz", b"\x1f\x8b but no archive"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"x" * 1000)[:-20]),
        ("train-images-idx3-ubyte", b"GIF89a"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\0\0\0\x14" + b"\0\0\0\x1c" * 2 + b"short"),
        ("train-images-idx3-ubyte", b"\0\0"),
        ("train-labels-idx1-ubyte", idx(np.zeros(7))),
    ],
)
def test_a_damaged_file_is_named(
    name: str, content: bytes, task: tasks.Task, contents: dict[str, bytes], tmp_path: Path
) -> None:
    unpacked(tmp_path, {key: value for key, value in contents.items() if not name.startswith(key)})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OffbeatError, match=r"cannot be read|20 pictures but 7 labels") as caught:
        task.load_data(0, 1, "train", tmp_path, 1)
    assert str(tmp_path) in str(caught.value)
    assert "downloaded again" in caught.value.remedy


@pytest.mark.skipif(
    not REAL_FASHION_MNIST.exists() and not os.environ.get("OFFBEAT_CI"),
    reason="needs Debian's package dataset-fashion-mnist",
)
def test_debians_fashion_mnist_is_found_and_is_the_official_one(tmp_path: Path) -> None:
    task = tasks.load("fashion-mnist", [])
    report = tasks.check(task, tmp_path, shards=3, partition="dirichlet:0.5")
    assert report.test_samples == 10_000
    assert sum(len(task.load_data(k, 3, "train", tmp_path, 1)) for k in range(3)) == 60_000
    assert list(tmp_path.iterdir()) == []
    module = module_of(task)
    for name in module.CONTENT:
        module._verify(name, REAL_FASHION_MNIST / f"{name}.gz")


def test_the_cnn_takes_fashion_mnists_pictures(
    task: tasks.Task, contents: dict[str, bytes], tmp_path: Path
) -> None:
    packed(tmp_path, contents)
    report = tasks.check(task, tmp_path, options={"architecture": "cnn"})
    assert 20_000 < report.parameters < 40_000
