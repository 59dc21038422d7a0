"""The example files are those that the models make, are valid, and show every key."""

import re
from pathlib import Path

import pytest
import yaml

from offbeat_cli.examples import MODELS, text
from offbeat_cli.simulator import sync_models
from offbeat_core.config import (
    ParameterServerSettings,
    RunSettings,
    SchedulerSettings,
    WorkerSettings,
    service_parser,
    validate,
)
from offbeat_core.errors import OffbeatError

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.mark.parametrize("kind", MODELS)
def test_the_committed_example_is_fresh(kind):
    committed = (EXAMPLES / f"{kind}.yaml").read_text(encoding="utf-8")
    assert committed == text(kind), "make it anew: python -m offbeat_cli.examples deploy/examples"


@pytest.mark.parametrize("kind", MODELS)
def test_an_example_is_valid_and_sets_what_it_says(kind):
    model, _, chosen = MODELS[kind]
    values = yaml.safe_load(text(kind))
    validate(model, values, kind)
    assert set(values) == set(chosen)


@pytest.mark.parametrize("kind", MODELS)
def test_an_example_shows_every_key_with_its_default(kind):
    model, _, _ = MODELS[kind]
    # Taking # away from each key that has a value gives the defaults.
    uncommented = re.sub(r"^( *)#(\w+: .+)$", r"\1\2", text(kind), flags=re.MULTILINE)
    shown = re.findall(r"^#?([a-z_]+):", text(kind), flags=re.MULTILINE)
    assert shown == list(model.model_fields)
    validate(model, yaml.safe_load(uncommented), kind)


def test_a_block_that_is_commented_out_can_be_taken_in_at_once():
    block = re.search(r"^#converged:\n(?:#.*\n)+", text("run"), flags=re.MULTILINE)[0]
    taken = "\n".join(line[1:] for line in block.splitlines())
    assert yaml.safe_load(taken) == {"converged": {"variance": None, "window": 10}}


def test_the_run_names_every_synchronization_model():
    words = set(re.findall(r"[a-z-]+", text("run")))
    assert set(sync_models.names()) <= words
    assert set(sync_models.names()) <= set(re.findall(r"`([a-z-]+)`", README.read_text(encoding="utf-8")))


def test_an_unknown_kind_is_an_error_with_a_proposal():
    with pytest.raises(OffbeatError, match=r"did you mean 'scheduler'\?"):
        text("schedular")


def test_the_runs_shown_in_the_docs_are_valid():
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        validate(RunSettings, {"task": "digits", **yaml.safe_load(block)}, block)


def test_the_options_shown_in_the_docs_exist():
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text(encoding="utf-8")
    services = {
        "offbeat-scheduler": SchedulerSettings,
        "offbeat-ps": ParameterServerSettings,
        "offbeat-worker": WorkerSettings,
    }
    seen = 0
    for command, rest in re.findall(r"^(offbeat-\w+) +(--.*)$", page, flags=re.MULTILINE):
        parser = service_parser(services[command], command, "")
        parser.parse_args(rest.split())  # ends the test where one is unknown
        seen += 1
    assert seen >= 4
