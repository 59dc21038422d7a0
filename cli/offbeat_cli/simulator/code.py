"""A digest of the code that a simulation runs, so that figures of an older code are not taken for its own.

What counts is the meaning, not the text: comments, docstrings and the layout of lines change nothing. Looked
at are the modules that the simulator and the synchronization model import, directly or not, among
Offbeat's own; so a change in one model leaves the finished runs of the others valid.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

OURS = ("offbeat_core", "offbeat_ps", "offbeat_scheduler", "offbeat_worker", "offbeat_cli")
ROOTS = ("offbeat_cli.simulator.driver", "offbeat_cli.simulator.torch_workload", "offbeat_cli.simulator.job")
NUMBERS = ("torch", "numpy", "scipy")
"""Another version of these may compute other numbers."""


def digest_of(model: type) -> str:
    """The digest for simulations under this synchronization model; it may stand in a user's own file."""
    found = dict(_closure(ROOTS))
    source = inspect.getsourcefile(model)
    if model.__module__.partition(".")[0] in OURS:
        found |= _closure((model.__module__,))
    elif source is not None:
        found |= _meanings(model.__module__, Path(source), {})
    lines = [f"{name} {found[name]}" for name in sorted(found)]
    lines += [f"{name} {version(name)}" for name in NUMBERS]
    lines.append(f"python {sys.version_info[0]}.{sys.version_info[1]}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def _closure(roots: tuple[str, ...]) -> dict[str, str]:
    """Module name -> digest, of these modules and of all of ours that they import."""
    found: dict[str, str] = {}
    for root in roots:
        path = _path(root)
        if path is not None:
            _meanings(root, path, found)
    return found


def _meanings(name: str, path: Path, found: dict[str, str]) -> dict[str, str]:
    pending = [(name, path)]
    while pending:
        name, path = pending.pop()
        if name in found:
            continue
        tree = ast.parse(path.read_bytes())
        found[name] = _digest(tree)
        for imported in _imports(tree):
            other = _path(imported) if imported not in found else None
            if other is not None:
                pending.append((imported, other))
    return found


def _digest(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names of our modules that are imported anywhere; of `from a import b` both a and a.b may be one."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] in OURS)


def _path(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None
