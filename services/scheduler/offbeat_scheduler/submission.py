"""A run as the operator submits it: read, checked as a whole, and given an id."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from offbeat_core.config import RunSettings, Settings, parse_yaml, read_yaml, validate
from offbeat_core.errors import OffbeatError
from offbeat_scheduler.hub import MakeModel

MAX_YAML_CHARACTERS = 256 * 1024
SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True)
class Submission:
    """Settings that hold, and as YAML with every default written out."""

    settings: RunSettings
    effective_yaml: str


def read_run(text: str, make_model: MakeModel, source: str = "run") -> Submission:
    """Raises OffbeatError that names the field, the value and the remedy."""
    if len(text) > MAX_YAML_CHARACTERS:
        raise OffbeatError(f"{source}: {len(text)} characters are more than a run file can have")
    return _check(parse_yaml(text, source), make_model, source)


def read_run_file(path: Path, make_model: MakeModel) -> Submission:
    """The same from a file. Raises OffbeatError that names it."""
    return _check(read_yaml(path, "run"), make_model, str(path))


def _check(values: dict[str, object], make_model: MakeModel, source: str) -> Submission:
    settings = validate(RunSettings, values, source)
    if "name" not in values:
        settings = settings.model_copy(update={"name": settings.task.name})
    try:
        model = make_model(settings.sync, settings)
    except OffbeatError:
        raise
    except Exception as error:
        raise OffbeatError(
            f"{source}: sync: '{settings.sync.model}' can't be made: {type(error).__name__}: {error}",
            "this is a mistake in the model; give another, or correct it",
        ) from error
    # A replay of the run can so tell whether it has the same model.
    settings = settings.model_copy(update={"sync": settings.sync.model_copy(update={"digest": model.digest})})
    sync = settings.sync.model_copy(update={"options": _shown(model.options)})
    shown = settings.model_copy(update={"sync": sync}).model_dump(mode="json")
    return Submission(settings, yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))


def _shown(options: Settings) -> dict[str, object]:
    """A model's options with their defaults; as given where not all can be given together."""
    whole = options.model_dump(mode="json")
    try:
        type(options).model_validate(whole)
    except ValidationError:
        return options.model_dump(mode="json", exclude_unset=True)
    return whole


def make_run_id(name: str, chance: random.Random) -> str:
    """The run's name and a short suffix, so that a name can be used again."""
    return f"{name}-{''.join(chance.choice(SUFFIX_LETTERS) for _ in range(5))}"
