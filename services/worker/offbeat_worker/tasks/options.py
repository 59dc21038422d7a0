"""A run's options for a task: they travel as text, and arrive in the type that a parameter expects."""

from __future__ import annotations

import inspect
from typing import Any

from offbeat_core.errors import OffbeatError

_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def converted(value: Any, name: str, parameter: inspect.Parameter | None) -> Any:
    """An option's value for a parameter: its annotation decides, else the type of its default.

    Text where nothing is said becomes a number or a truth value if it reads like one.
    Raises OffbeatError if the text can't be what the parameter expects.
    """
    if not isinstance(value, str):
        return value
    kind = _kind(parameter)
    if kind == "str":
        return value
    if kind is None:
        return _guess(value)
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        return _BOOLEANS[value.lower()]
    except (ValueError, KeyError):
        expected = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        raise OffbeatError(f"task.options.{name}: '{value}' is not {expected}", f"give {expected}") from None


def _kind(parameter: inspect.Parameter | None) -> str | None:
    if parameter is None:
        return None
    annotation = parameter.annotation
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if written in ("str", "int", "float", "bool"):
        return written
    default = type(parameter.default).__name__
    # A default of 0 may well stand for a number like 0.5: only an annotation insists on whole ones.
    return default if default in ("str", "bool") else None


def _guess(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return _BOOLEANS.get(text.lower(), text) if text.lower() in ("true", "false") else text
