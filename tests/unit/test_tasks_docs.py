"""docs/tasks.md does what it says: its code runs, its files are valid, its commands exist."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
import yaml
from safetensors.torch import load_file, save_file

from offbeat_cli.main import app
from offbeat_core.config import RunSettings, WorkerSettings, load_service_settings, service_parser
from offbeat_worker import tasks

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "tasks.md").read_text(encoding="utf-8")
EXAMPLE = REPOSITORY / "examples" / "cells" / "cells.py"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)


def blocks(language: str, containing: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language and containing in text]


def the_block(language: str, containing: str) -> str:
    (text,) = blocks(language, containing)
    return text


def command(start: str) -> list[list[str]]:
    return [shlex.split(line) for line in COMMANDS if line.startswith(start)]


def test_every_block_and_command_is_looked_at_here() -> None:
    assert sorted(kind for kind, _ in BLOCKS) == ["console"] * 6 + ["python"] * 4 + ["yaml"] * 3
    assert len(COMMANDS) == 7


# ---- the task ------------------------------------------------------------------


def test_the_file_shown_is_the_file_that_is_shipped() -> None:
    assert the_block("python", "def build_model") == EXAMPLE.read_text(encoding="utf-8")


def test_trying_the_task_prints_what_the_page_shows() -> None:
    (arguments,) = command("python -m offbeat_worker.tasks")
    done = subprocess.run(
        [sys.executable, *arguments[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    shown = the_block("console", "offbeat_worker.tasks").splitlines()[1:]
    printed = done.stdout.splitlines()
    assert printed[:-1] == shown[:-1]
    # The loss of an untrained model may differ in its last digits from machine to machine.
    numbers = [[float(n) for n in re.findall(r"\d+\.\d+", line)] for line in (printed[-1], shown[-1])]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.2)


def test_the_example_learns_what_the_demo_is_told_to_reach() -> None:
    task = tasks.load("cells", [EXAMPLE])
    target = float(command("offbeat demo")[0][-1])
    torch.manual_seed(1)
    model = task.build_model()
    x, y = task.load_data(0, 1, "train", EXAMPLE.parent, 1).tensors
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    chance = torch.Generator().manual_seed(1)
    for _ in range(400):
        chosen = torch.randint(len(y), (32,), generator=chance)
        optimizer.zero_grad()
        task.loss_and_metric(model, [x[chosen], y[chosen]])[0].backward()
        optimizer.step()
    held_out = task.load_data(0, 1, "test", EXAMPLE.parent, 1).tensors
    assert tasks.as_number(task.loss_and_metric(model.eval(), held_out)[1]["accuracy"]) > target


def test_without_shard_offbeat_divides_the_example_as_the_page_says(tmp_path: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    begin, end = text.index("def load_data"), text.index("def loss_and_metric")
    path = tmp_path / "cells.py"
    path.write_text(text[:begin] + the_block("python", "def load_data(split, folder)") + "\n\n" + text[end:])
    shutil.copy(EXAMPLE.with_suffix(".csv"), tmp_path)
    task = tasks.load("cells", [path])
    everything = task.load_data(0, 1, "train", tmp_path, 1).tensors[0].tolist()
    for partition in ("iid", *re.findall(r"dirichlet:[\d.]+", PAGE)):
        shards = [task.load_data(k, 3, "train", tmp_path, 1, partition).tensors[0] for k in range(3)]
        assert sorted(torch.cat(shards).tolist()) == sorted(everything)
    whole = tasks.load("cells", [EXAMPLE])
    for split, samples in (("train", 455), ("test", 114)):
        one, other = (t.load_data(0, 1, split, tmp_path, 1).tensors for t in (task, whole))
        assert len(one[0]) == samples
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


# ---- the model ------------------------------------------------------------------


def test_a_runs_model_is_loaded_in_three_lines_and_an_own_one_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    task = tasks.load("cells", [EXAMPLE])
    trained = {
        name: torch.rand_like(tensor)
        for name, tensor in task.build_model().state_dict().items()
        if tensor.is_floating_point()  # integer buffers stay on the devices
    }
    save_file(trained, "model.safetensors")
    loading = the_block("python", "model.safetensors")
    assert len(loading.splitlines()) == 3
    names: dict[str, Any] = {}
    exec(loading, names)
    sys.modules.pop("cells")
    loaded = names["model"].state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in trained.items())
    x = task.load_data(0, 1, "test", tmp_path, 1).tensors[0]
    assert names["model"].eval()(x).argmax(1).shape == (114,)

    exec(the_block("python", "start.safetensors"), names)
    assert load_file("start.safetensors").keys() >= trained.keys()


# ---- configuration and commands ------------------------------------------------------


def test_the_workers_file_is_valid_and_names_the_task(tmp_path: Path) -> None:
    (arguments,) = command("offbeat-worker")
    (tmp_path / arguments[2]).write_text(the_block("yaml", "shards:"))
    parser = service_parser(WorkerSettings, "offbeat-worker", "")
    given = parser.parse_args([arguments[1], str(tmp_path / arguments[2])])
    settings = load_service_settings(WorkerSettings, given, {})
    assert [path.name for path in settings.tasks] == ["cells.py"]
    assert settings.shards == 3


@pytest.mark.parametrize("text", blocks("yaml", "workers:"))
def test_the_runs_are_valid_and_their_options_are_the_tasks(text: str) -> None:
    run = RunSettings.model_validate(yaml.safe_load(text))
    task = tasks.load(run.task.name, [EXAMPLE])
    tasks.check(task, EXAMPLE.parent, options=run.task.options, partition=run.task.partition)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("offbeat ")])
def test_the_commands_options_exist(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    group = typer.main.get_command(app)
    group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
    for option, value in itertools.pairwise(arguments):
        if option == "--task":
            assert (REPOSITORY / value).samefile(EXAMPLE)
        if option == "--task-option":
            key, _, given = value.partition("=")
            tasks.check(tasks.load("cells", [EXAMPLE]), EXAMPLE.parent, options={key: given})


def test_compose_mounts_what_the_page_says(tmp_path: Path) -> None:
    (copying,) = (line for line in COMMANDS if line.startswith("mkdir"))
    shutil.copytree(EXAMPLE.parent, tmp_path / "examples" / "cells")
    subprocess.run(copying, shell=True, cwd=tmp_path, check=True)
    compose = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
    (starting,) = (line for line in COMMANDS if "docker compose" in line)
    variables = dict(word.split("=") for word in shlex.split(starting) if "=" in word)
    assert "${TASKS_FOLDER:-./tasks}:/tasks:ro" in compose
    assert (tmp_path / variables["OFFBEAT_TASKS"].removeprefix("/")).is_file()
    assert all(f"${{{name}" in compose for name in variables)
    task = tasks.load("cells", [tmp_path / "tasks" / "cells.py"])
    assert tasks.check(task, tmp_path / "no-data-folder").train_samples == 455
