"""Writes the scenario files: `python -m benchmarks.reproduction scenarios`. A test fails for a stale one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.reproduction.build import build

FOLDER = Path(__file__).with_name("scenarios")
HEAD = """\
# {about}
# Run it alone: offbeat simulate benchmarks/reproduction/scenarios/{name}.yaml
# Written by `python -m benchmarks.reproduction scenarios`; learning rates are those that tuning chose.
"""


def text(name: str, content: Mapping[str, Any], about: str) -> str:
    """A scenario's YAML: one line per field, and per device group and entry."""
    lines = [HEAD.format(name=name, about=about)]
    for key, value in content.items():
        if key in ("devices", "compare"):
            lines.append(f"{key}:")
            lines += [f"  - {_flow(item)}" for item in value]
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """In YAML's flow style, of which JSON's strings are a part."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return format(value, ".6f").rstrip("0").removesuffix(".") if value % 1 else f"{value:.1f}"
    word = str(value)
    plain = not isinstance(value, str) or (
        word.replace("-", "").replace("_", "").isalnum() and not word[0].isdigit()
    )
    return word if plain else json.dumps(word)


def write(abouts: Mapping[str, str]) -> list[Path]:
    """Write them all; returns the files that changed. Files of scenarios that are no more go."""
    FOLDER.mkdir(exist_ok=True)
    changed = []
    made = build()
    for name, content in made.items():
        path = FOLDER / f"{name}.yaml"
        fresh = text(name, content, abouts[name])
        if not path.exists() or path.read_text(encoding="utf-8") != fresh:
            path.write_text(fresh, encoding="utf-8")
            changed.append(path)
    for path in FOLDER.glob("*.yaml"):
        if path.stem not in made:
            path.unlink()
            changed.append(path)
    return changed
