"""A user's own task: one file; what is wrong with it is told by the user's own line."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from offbeat_core.errors import OffbeatError
from offbeat_worker import tasks

HEAD = """\
import torch
from torch import nn
from torch.utils.data import TensorDataset
"""
BUILD = """
def build_model():
    return nn.Linear(3, 2)
"""
LOAD = """
def load_data(shard, shards, split, folder, seed):
    x = torch.arange(60.0).reshape(20, 3)
    y = torch.arange(20) % 2
    if split == "test":
        return TensorDataset(x[:5], y[:5])
    return TensorDataset(x[5:][shard::shards], y[5:][shard::shards])
"""
LOAD_ALL = """
def load_data(split):
    x = torch.arange(60.0).reshape(20, 3)
    return TensorDataset(x, torch.arange(20) % 2)
"""
LOSS = """
def loss_and_metric(model, batch):
    x, y = batch
    scores = model(x)
    return nn.functional.cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a task's file of four parts, or of what is given instead; returns its path."""

    def write(
        name: str = "mine.py", *, head: str = HEAD, build: str = BUILD, load: str = LOAD, loss: str = LOSS
    ) -> Path:
        path = tmp_path / name
        path.write_text(head + build + load + loss)
        return path

    return write


def line_of(path: Path, text: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def error_of(action: Callable[[], object]) -> OffbeatError:
    with pytest.raises(OffbeatError) as caught:
        action()
    lines = str(caught.value).splitlines()
    assert len(lines) == 2, f"a problem and a remedy, not: {lines}"
    assert "Traceback" not in str(caught.value)
    return caught.value


def check_error(path: Path, **options: object) -> OffbeatError:
    return error_of(lambda: tasks.check(tasks.load(path.stem, [path]), path.parent, options=options))


# ---- what works ------------------------------------------------------------------


def test_the_documented_signature_divides_by_itself_and_holds_out_everything(write: Write) -> None:
    path = write()
    task = tasks.load("mine", [path])
    shards = [task.load_data(shard, 4, "train", path.parent, 1).tensors[0] for shard in range(4)]
    assert [len(shard) for shard in shards] == [4, 4, 4, 3]
    assert sorted(torch.cat(shards)[:, 0].tolist()) == [3.0 * n for n in range(5, 20)]
    assert len(task.load_data(3, 4, "test", path.parent, 1)) == 5
    report = tasks.check(task, path.parent, shards=4)
    assert (report.parameters, report.train_samples, report.test_samples) == (8, 4, 5)
    assert set(report.metrics) == {"metric"}


def test_all_of_the_held_out_data_is_asked_for_whatever_the_shard(write: Write) -> None:
    path = write(load=LOAD.replace("x[:5], y[:5]", "x[shard::shards], y[shard::shards]"))
    task = tasks.load("mine", [path])
    assert len(task.load_data(1, 4, "test", path.parent, 1)) == 20


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5"])
@pytest.mark.parametrize(
    "returned",
    [
        "TensorDataset(x, y)",
        "list(zip(x, y))",
        "Rows(x, targets=y.tolist())",
        "Rows(x, labels=y)",
        "torch.utils.data.Subset(TensorDataset(x, y), range(20))",
    ],
)
def test_without_shard_in_its_signature_offbeat_divides(write: Write, returned: str, partition: str) -> None:
    rows = """
class Rows(torch.utils.data.Dataset):
    def __init__(self, x, **labels):
        self.x = x
        vars(self).update(labels)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index], 0
"""
    load = LOAD_ALL.replace("TensorDataset(x, torch.arange(20) % 2)", returned).replace(
        "    return", "    y = torch.arange(20) % 2\n    return"
    )
    path = write(load=rows + load)
    task = tasks.load("mine", [path])
    shards = [task.load_data(shard, 3, "train", path.parent, 7, partition) for shard in range(3)]
    starts = [float(shard[index][0][0]) for shard in shards for index in range(len(shard))]
    assert sorted(starts) == [3.0 * n for n in range(20)]
    assert all(len(shard) > 0 for shard in shards)
    assert len(task.load_data(0, 3, "test", path.parent, 7, partition)) == 20


def test_a_task_that_takes_the_partition_gets_it(write: Write) -> None:
    load = LOAD.replace("seed)", "seed, partition)").replace("[shard::shards]", "[:len(partition)]")
    path = write(load=load)
    task = tasks.load("mine", [path])
    assert len(task.load_data(0, 2, "train", path.parent, 1, "dirichlet:1")) == len("dirichlet:1")
    assert len(task.load_data(0, 2, "train", path.parent, 1)) == len("iid")


def test_options_reach_the_functions_that_take_them_in_their_types(write: Write) -> None:
    path = write(
        head=HEAD + "seen = {}\n",
        build=BUILD.replace("()", "(hidden: int = 4, note='', deep=False)").replace(
            "return", "seen.update(hidden=hidden, note=note, deep=deep)\n    return"
        ),
        load=LOAD.replace("seed)", "seed, *, noise=0)").replace(
            "    x =", "    seen['noise'] = noise\n    x ="
        ),
        loss=LOSS.replace("batch)", "batch, smoothing=0.0, kind=None)").replace(
            "    x, y", "    seen.update(smoothing=smoothing, kind=kind)\n    x, y"
        ),
    )
    task = tasks.load("mine", [path])
    seen = task.functions["build_model"].function.__globals__["seen"]
    given = {"hidden": "8", "note": "12", "deep": "true", "noise": "0.5", "smoothing": "1e-1", "kind": "abc"}
    tasks.check(task, path.parent, options=given)
    assert seen == {
        "hidden": 8, "note": "12", "deep": True, "noise": 0.5, "smoothing": 0.1, "kind": "abc"
    }  # fmt: skip
    tasks.check(task, path.parent, options={"hidden": 8, "deep": False})
    assert seen["hidden"] == 8
    assert seen["deep"] is False


def test_a_function_with_keywords_takes_every_option(write: Write) -> None:
    path = write(build=BUILD.replace("()", "(**options)").replace("(3, 2)", "(3, options['classes'])"))
    assert tasks.load("mine", [path]).build_model(classes="5").out_features == 5


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("0.5", {"metric": 0.5}),
        ("1", {"metric": 1.0}),
        ("torch.tensor(0.25)", {"metric": 0.25}),
        ("('accuracy', 0.5)", {"accuracy": 0.5}),
        ("['f1', torch.tensor([0.5])]", {"f1": 0.5}),
        ("{'accuracy': 0.5, 'f1': 0.75}", {"accuracy": 0.5, "f1": 0.75}),
    ],
)
def test_a_metric_is_a_number_with_or_without_a_name(
    metric: str, expected: dict[str, float], write: Write
) -> None:
    path = write(loss=LOSS.replace("(scores.argmax(1) == y).float().mean()", metric))
    task = tasks.load("mine", [path])
    report = tasks.check(task, path.parent)
    assert report.metrics == expected
    assert list(report.metrics) == list(expected)  # the first is the one that a target means


def test_dataclasses_and_a_path_beside_the_file_work(write: Write) -> None:
    path = write(
        head="from __future__ import annotations\nfrom dataclasses import dataclass\n"
        + "from pathlib import Path\n"
        + HEAD
        + "\n@dataclass\nclass Size:\n    inner: int = 3\n",
        build=BUILD.replace(
            "nn.Linear(3, 2)", "nn.Linear(Size().inner, int(Path(__file__).with_name('n').read_text()))"
        ),
    )
    path.with_name("n").write_text("2")
    assert tasks.check(tasks.load("mine", [path]), path.parent).parameters == 8


def test_the_digest_is_of_the_files_bytes_and_of_what_was_run(write: Write) -> None:
    path = write()
    digest = tasks.available([path])["mine"]
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    task = tasks.load("mine", [path])
    assert task.digest == digest
    path.write_text(path.read_text() + "\n# edited\n")
    assert task.digest == digest
    assert tasks.load("mine", [path]).digest == tasks.available([path])["mine"] != digest
    assert not path.with_name("__pycache__").exists()


def test_checking_leaves_model_gradients_buffers_and_chance_as_they_were(write: Write) -> None:
    path = write(
        build=BUILD.replace(
            "nn.Linear(3, 2)", "nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))"
        )
    )
    task = tasks.load("mine", [path])
    model = task.build_model().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chance = torch.random.get_rng_state()
    tasks.check_batch(task, model, task.load_data(0, 1, "train", path.parent, 1))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(chance, torch.random.get_rng_state())
    assert not model.training


# ---- what is wrong with files and names -----------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    error = error_of(lambda: tasks.available([tmp_path / "gone.py"]))
    assert error.problem == f"tasks: {tmp_path}/gone.py: cannot be read: No such file or directory"


@pytest.mark.parametrize("name", ["task.txt", "my task.py", "_mine.py", "a.b.py"])
def test_a_file_whose_name_cannot_be_a_tasks_is_refused(name: str, write: Write) -> None:
    path = write(name)
    assert str(path) in error_of(lambda: tasks.available([path])).problem


@pytest.mark.parametrize("name", ["digits.py", "fashion-mnist.py", "fashion_mnist.py", "Digits.py"])
def test_a_file_named_like_a_built_in_task_is_refused(name: str, write: Write) -> None:
    path = write(name)
    error = error_of(lambda: tasks.available([path]))
    assert "is built in" in error.problem
    assert "another name" in error.remedy


def test_two_files_of_one_name_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [write("mine.py"), write("other/mine.py")]
    error = error_of(lambda: tasks.load("mine", paths))
    assert all(str(path) in error.problem for path in paths)


def test_an_unknown_name_lists_the_known_ones(write: Write) -> None:
    error = error_of(lambda: tasks.load("mnist", [write()]))
    assert error.problem == "task: 'mnist' is not known on this device"
    assert "digits, fashion-mnist, mine" in error.remedy


# ---- what is wrong inside a file ---------------------------------------------------


def test_a_syntax_error_is_found_before_anything_runs(write: Write) -> None:
    path = write(loss=LOSS.replace("def loss_and_metric(model, batch):", "def loss_and_metric(model, batch)"))
    for action in (lambda: tasks.available([path]), lambda: tasks.load("mine", [path])):
        problem = error_of(action).problem
        assert problem.startswith(f"{path}:{line_of(path, 'def loss_and_metric')}: ")
        assert "def loss_and_metric(model, batch)" in problem


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"PK\x03\x04\x00\x00")
    assert str(path) in error_of(lambda: tasks.available([path])).problem


def test_a_module_that_is_not_installed_is_named_with_how_to_install_it(write: Write) -> None:
    path = write(head=HEAD + "import numpy\nimport no_such_package.inner\n")
    error = error_of(lambda: tasks.load("mine", [path]))
    assert error.problem.startswith(f"{path}:{line_of(path, 'no_such_package')}: ")
    assert "'no_such_package'" in error.problem
    assert "pip install no_such_package " in error.remedy


@pytest.mark.parametrize("statement", ["from torch import no_such_name", "1 / 0", "raise SystemExit(3)"])
def test_an_error_while_the_file_runs_is_told_by_its_line(statement: str, write: Write) -> None:
    path = write(head=HEAD + statement + "\n")
    assert error_of(lambda: tasks.load("mine", [path])).problem.startswith(f"{path}:4: ")


@pytest.mark.parametrize("function", ["build_model", "load_data", "loss_and_metric"])
@pytest.mark.parametrize("instead", ["", "{} = 3\n"])
def test_a_missing_function_is_named(function: str, instead: str, write: Write) -> None:
    part = {"build_model": "build", "load_data": "load", "loss_and_metric": "loss"}[function]
    path = write(**{part: instead.format(function)})
    error = error_of(lambda: tasks.load("mine", [path]))
    assert f"{path}: {function} is" in error.problem
    assert f"def {function}(" in error.remedy


@pytest.mark.parametrize(
    ("part", "signature", "problem"),
    [
        ("load", "load_data(shard, shards, folder, seed)", "must take 'split'"),
        ("load", "load_data(shard, split)", "both 'shard' and 'shards'"),
        ("load", "load_data(split, /, folder)", "'split' must be passable by name"),
        ("loss", "loss_and_metric(batch)", "must take a model and a batch"),
        ("loss", "loss_and_metric()", "must take a model and a batch"),
    ],
)
def test_a_wrong_signature_is_told_at_the_functions_line(
    part: str, signature: str, problem: str, write: Write
) -> None:
    path = write(**{part: f"\ndef {signature}:\n    pass\n"})
    error = error_of(lambda: tasks.load("mine", [path]))
    assert error.problem.startswith(f"{path}:{line_of(path, 'def ' + signature)}: ")
    assert problem in error.problem


@pytest.mark.parametrize(
    ("part", "signature", "missing"),
    [
        ("build", "build_model(width)", "width"),
        ("load", "load_data(shard, n_shards, split, shards)", "n_shards"),
        ("loss", "loss_and_metric(model, batch, device)", "device"),
    ],
)
def test_an_argument_that_the_run_does_not_give_is_named(
    part: str, signature: str, missing: str, write: Write
) -> None:
    path = write(**{part: f"\ndef {signature}:\n    pass\n"})
    error = check_error(path)
    assert error.problem.startswith(f"{path}:{line_of(path, 'def ' + signature)}: ")
    assert f"needs '{missing}'" in error.problem


@pytest.mark.parametrize(
    ("part", "line", "said"),
    [
        ("build", "    return nn.Linear(3, 2) + 1", "build_model: TypeError: "),
        (
            "load",
            "    raise FileNotFoundError(f'no rows.csv in {folder}')",
            "load_data: FileNotFoundError: no rows",
        ),
        ("loss", "    return model(batch[0][:, :2]), 0", "loss_and_metric: RuntimeError: "),
        ("loss", "    exit(1)", "loss_and_metric: SystemExit: 1"),
    ],
)
def test_an_error_inside_a_function_is_told_by_the_users_own_line(
    part: str, line: str, said: str, write: Write
) -> None:
    first = {
        "build": "def build_model():",
        "load": "def load_data(shard, shards, split, folder, seed):",
        "loss": "def loss_and_metric(model, batch):",
    }[part]
    path = write(**{part: f"\n{first}\n{line}\n"})
    assert check_error(path).problem.startswith(f"{path}:{line_of(path, line)}: {said}")


def test_of_a_message_of_two_lines_the_second_is_the_remedy(write: Write) -> None:
    path = write(
        load="\ndef load_data(split):\n    raise ValueError('no rows\\nput rows.csv there\\nand more')\n"
    )
    error = check_error(path)
    assert error.problem.endswith("load_data: ValueError: no rows")
    assert error.remedy == "put rows.csv there"


# ---- what is wrong with what a function returns -----------------------------------------


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("None", "returned None, not a torch.nn.Module"),
        ("nn.Linear", "returned a type, not a torch.nn.Module"),
        ("nn.Linear(3, 2).requires_grad_(False)", "no parameter to train"),
        ("nn.LazyLinear(2)", "'weight' has no shape yet"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(returned: str, problem: str, write: Write) -> None:
    path = write(build=BUILD.replace("nn.Linear(3, 2)", returned))
    error = check_error(path)
    assert error.problem.startswith(f"{path}:{line_of(path, 'def build_model')}: build_model")
    assert problem in error.problem


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("None", "returned None for split 'train', shard 0 of 1"),
        ("(x, y)", "returned a tuple"),
        ("{'x': x}", "returned a dict"),
        ("iter([(x, y)])", "not a data set"),
        ("torch.utils.data.DataLoader(TensorDataset(x, y))", "returned a DataLoader"),
        ("Stream()", "returned a Stream"),
        ("TensorDataset(x[:0], y[:0])", "returned nothing for split 'train'"),
        ("[]", "returned nothing for split 'train'"),
    ],
)
@pytest.mark.parametrize("load", [LOAD, LOAD_ALL])
def test_data_that_cannot_be_indexed_or_is_empty_is_refused(
    load: str, returned: str, problem: str, write: Write
) -> None:
    head = (
        HEAD + "\nclass Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        yield 1\n"
    )
    last = load.strip().splitlines()[-1]
    body = load.replace(last, f"    y = torch.arange(20) % 2\n    return {returned}")
    path = write(head=head, load=body)
    error = check_error(path)
    assert error.problem.startswith(f"{path}:{line_of(path, 'def load_data')}: load_data")
    assert problem in error.problem


def test_an_empty_held_out_split_is_found_by_the_check(write: Write) -> None:
    path = write(load=LOAD.replace("x[:5], y[:5]", "x[:0], y[:0]"))
    assert "returned nothing for split 'test'" in check_error(path).problem


def test_more_shards_than_samples_is_an_error_for_those_who_get_none(write: Write) -> None:
    path = write(load=LOAD_ALL)
    task = tasks.load("mine", [path])
    assert len(task.load_data(19, 25, "train", path.parent, 1)) == 1
    error = error_of(lambda: task.load_data(20, 25, "train", path.parent, 1))
    assert error.problem == "shard: 20 of 25 is empty: task 'mine' has 20 samples"


def test_dirichlet_where_the_task_divides_by_itself_is_refused(write: Write) -> None:
    path = write()
    task = tasks.load("mine", [path])
    error = error_of(lambda: task.load_data(0, 2, "train", path.parent, 1, "dirichlet:0.5"))
    assert error.problem.startswith(f"{path}:{line_of(path, 'def load_data')}: partition: 'dirichlet:0.5'")
    assert "leave shard and shards out" in error.remedy


@pytest.mark.parametrize("labels", ["torch.rand(20)", "torch.zeros(20, 2).long()"])
def test_dirichlet_without_classes_is_refused(labels: str, write: Write) -> None:
    path = write(load=LOAD_ALL.replace("torch.arange(20) % 2", labels))
    task = tasks.load("mine", [path])
    error = error_of(lambda: task.load_data(0, 2, "train", path.parent, 1, "dirichlet:0.5"))
    assert "needs one class per sample" in error.problem
    assert len(task.load_data(0, 2, "train", path.parent, 1)) == 10


def test_items_that_make_no_batch_are_told(write: Write) -> None:
    path = write(load="\ndef load_data(split):\n    return [(torch.zeros(n + 1), 0) for n in range(4)]\n")
    error = check_error(path)
    assert error.problem.startswith(f"{path}:{line_of(path, 'def load_data')}: load_data: items can't")


def test_an_error_in_a_data_sets_own_code_is_told_by_its_line(write: Write) -> None:
    path = write(
        load="""
class Rows:
    def __len__(self):
        return 3
    def __getitem__(self, index):
        return self.rows[index]

def load_data(split):
    return Rows()
"""
    )
    assert check_error(path).problem.startswith(f"{path}:{line_of(path, 'self.rows')}: ")


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("loss", "returned a tensor of shape [] (float32), not (loss, metric)"),
        ("None", "returned None, not (loss, metric)"),
        ("(loss, 0, 1)", "returned a tuple, not (loss, metric)"),
        ("(loss.item(), 0)", "the loss is a float, not a floating-point tensor"),
        ("(loss.long(), 0)", "the loss is a tensor of shape [] (int64)"),
        ("(loss.repeat(4), 0)", "the loss is a tensor of shape [4] (float32)"),
        ("(loss.detach(), 0)", "no gradient leads from the loss"),
        ("(torch.ones((), requires_grad=True) * 2, 0)", "no gradient leads from the loss"),
        ("(loss * float('nan'), 0)", "the loss of the first batch is nan"),
        ("(loss + float('inf'), 0)", "the loss of the first batch is inf"),
        ("(loss, None)", "the metric 'metric' is None, not a number"),
        ("(loss, {})", "the metric is empty"),
        ("(loss, scores)", "the metric 'metric' is a tensor of shape"),
        ("(loss, ('accuracy', 'high'))", "the metric 'accuracy' is a str"),
        ("(loss, ('accuracy', float('nan')))", "the metric 'accuracy' of the first batch is nan"),
    ],
)
def test_a_loss_or_metric_of_the_wrong_kind_is_refused_at_once(
    returned: str, problem: str, write: Write
) -> None:
    last = LOSS.strip().splitlines()[-1]
    path = write(
        loss=LOSS.replace(last, f"    loss = nn.functional.cross_entropy(scores, y)\n    return {returned}")
    )
    error = check_error(path)
    assert error.problem.startswith(f"{path}:{line_of(path, 'def loss_and_metric')}: loss_and_metric")
    assert problem in error.problem


# ---- what is wrong with options -----------------------------------------------------------


def test_an_option_that_no_function_takes_lists_the_known_ones(write: Write) -> None:
    path = write(build=BUILD.replace("()", "(hidden=3)"), loss=LOSS.replace("batch)", "batch, smoothing=0)"))
    error = check_error(path, hiden=3)
    assert error.problem == "task.options.hiden: none of the functions of task 'mine' takes it"
    assert error.remedy == "known there: hidden, smoothing"


def test_an_option_may_not_be_called_like_what_the_run_gives(write: Write) -> None:
    path = write(build=BUILD.replace("()", "(seed=3)"))
    assert check_error(path, seed=3).problem == "task.options.seed: the run itself sets it"


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ("n: int = 3", "2.5", "a whole number"),
        ("n: float = 3", "x", "a number"),
        ("n=True", "2", "true or false"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(
    parameter: str, value: str, expected: str, write: Write
) -> None:
    path = write(build=BUILD.replace("()", f"({parameter})"))
    error = check_error(path, n=value)
    assert error.problem == f"task.options.n: '{value}' is not {expected}"


# ---- the command ----------------------------------------------------------------------------


def run_command(*arguments: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    import sys
    from unittest import mock

    from offbeat_core.errors import guard
    from offbeat_worker.tasks.__main__ import main

    with mock.patch.object(sys, "argv", ["tasks", *arguments]):
        code = guard(main)
    return (code, *capfd.readouterr())


def test_the_command_says_what_it_found(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(build=BUILD.replace("()", "(n=2)").replace("3, 2", "3, n"))
    code, out, _ = run_command(str(path), "--shards", "4", "--shard", "3", "--option", "n=3", capfd=capfd)
    assert code == 0
    assert "12 to train" in out
    assert "3 in shard 3 of 4, 5 held out" in out
    assert hashlib.sha256(path.read_bytes()).hexdigest() in out


@pytest.mark.parametrize(
    "arguments",
    [["--shard", "3", "--shards", "2"], ["--option", "n"], ["--batch", "0"], ["--partition", "dirichlet"]],
)
def test_the_command_refuses_bad_values_in_a_line_or_two(
    arguments: list[str], write: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(load=LOAD_ALL)
    code, out, err = run_command(str(path), *arguments, capfd=capfd)
    assert (code, out) == (1, "")
    assert arguments[0].strip("-") in err
    assert err.count("\n") <= 2
