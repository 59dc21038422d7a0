"""The report of a run: one HTML file that needs nothing else.

Made from the run's folder: the event log (events.jsonl) and the effective config
(run.yaml). A demo's result.json adds relative speeds and wall time.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offbeat_cli import history as histories
from offbeat_cli import plots, report_plan
from offbeat_cli.history import History
from offbeat_cli.outcome import model_name
from offbeat_core import __version__
from offbeat_core.config import RunSettings, TargetSpec, read_yaml, validate
from offbeat_core.errors import OffbeatError

CSS = """
:root { color-scheme: light; }
body { font: 15px/1.55 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: #0f172a;
       background: #f8fafc; margin: 0; }
main { max-width: 880px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 17px; margin: 0 0 4px; }
.lead { color: #475569; margin: 0 0 20px; }
section { background: #fff; border: 1px solid #e2e8f0; border-radius: 10px; padding: 18px 22px;
          margin: 16px 0; }
section > p { color: #475569; margin: 0 0 10px; font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(125px, 1fr)); gap: 10px;
         margin: 16px 0; }
.tile { background: #fff; border: 1px solid #e2e8f0; border-radius: 10px; padding: 11px 14px; }
.tile b { display: block; font-size: 22px; line-height: 1.3; } .tile span { color: #64748b; font-size: 13px; }
.good b { color: #15803d; } .bad b { color: #b91c1c; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid #e2e8f0; white-space: nowrap; }
th { color: #475569; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.chosen td { font-weight: 600; color: #15803d; }
pre { background: #f1f5f9; border-radius: 8px; padding: 12px 14px; overflow-x: auto; font-size: 13px;
      margin: 8px 0; }
svg { width: 100%; height: auto; display: block; } .scroll { overflow-x: auto; }
summary { cursor: pointer; font-weight: 600; } footer { color: #94a3b8; font-size: 13px; }
"""


def write(folder: Path) -> Path:
    """Write folder/report.html and return its path. Raises OffbeatError if the folder holds no run."""
    history = histories.read(folder / "events.jsonl")
    path = folder / "report.html"
    text = page(history, _config(folder), _result(folder))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OffbeatError(f"{path}: {error.strerror}", "name a folder that you may write to") from error
    return path


def _config(folder: Path) -> tuple[str, RunSettings | None]:
    path = folder / "run.yaml"
    if not path.is_file():
        return "", None
    text = path.read_text(encoding="utf-8")
    return text, validate(RunSettings, read_yaml(path, "run.yaml"), str(path))


def _result(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def page(history: History, config: tuple[str, RunSettings | None], result: dict[str, Any]) -> str:
    """The whole HTML page."""
    text, settings = config
    name = settings.name if settings else history.run_id
    made = f"Offbeat {__version__} · {history.run_id} · {time.strftime('%Y-%m-%d %H:%M')}"
    body = [
        f"<h1>{_e(name)}</h1>",
        f'<p class="lead">{_e(_sentence(history, settings, result))}</p>',
        _tiles(history, settings.target if settings else None, result),
        *_sections(history, settings, result),
        _load(settings),
        _config_shown(text),
        f"<footer>{_e(made)}</footer>",
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_e(name)} · Offbeat</title><style>{CSS}</style></head>",
            "<body><main>",
            *body,
            "</main></body></html>",
            "",
        ]
    )


def _config_shown(text: str) -> str:
    if not text:
        return ""
    summary = "<summary>Effective configuration</summary>"
    return f"<section><details>{summary}<pre>{_e(text)}</pre></details></section>"


def _sentence(history: History, settings: RunSettings | None, result: dict[str, Any]) -> str:
    parts = [f"{len(history.devices)} devices"]
    if settings:
        parts.append(f"synchronized by {model_name(settings.sync.model)}")
    if result.get("commit_delay_s"):
        parts.append(f"{result['commit_delay_s']:g} s added to each commit's round trip")
    ended = history.message or history.outcome or "not ended"
    return f"{', '.join(parts)}. Run {history.outcome or 'not ended'}: {ended}."


def _tiles(history: History, target: TargetSpec | None, result: dict[str, Any]) -> str:
    tiles: list[tuple[str, str, str]] = []
    if target:
        reached = history.outcome == "reached"
        took = result.get("time_to_target_s") or history.trained_s
        goal = f"accuracy {target.accuracy:g}" if target.accuracy else f"loss {target.loss:g}"
        tiles.append(
            (f"{took:.1f} s" if reached else "not reached", f"to {goal}", "good" if reached else "bad")
        )
    if history.evaluations:
        best = max(point.metric for point in history.evaluations)
        tiles.append((f"{best:.4f}", f"best {history.metric_name}", ""))
        tiles.append((f"{min(point.loss for point in history.evaluations):.4f}", "lowest loss", ""))
    if history.rates and history.rates[-1].rate:
        last = history.rates[-1]
        tiles.append((f"{last.interval_s:.2f} s", f"between commits ({last.rate:.3g} a check period)", ""))
    waits = [device.share("wait") for device in history.devices.values() if device.seconds]
    if waits:
        tiles.append((f"{max(waits):.1%}", "most that a device waited", "good" if max(waits) <= 0.02 else ""))
    counts = [device.commits for device in history.devices.values() if device.commits]
    if counts:
        shown = f"{min(counts)} – {max(counts)}" if min(counts) != max(counts) else str(counts[0])
        tiles.append((shown, "commits per device", ""))
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile {kind}"><b>{_e(value)}</b><span>{_e(text)}</span></div>'
            for value, text, kind in tiles
        )
        + "</div>"
    )


def _sections(history: History, settings: RunSettings | None, result: dict[str, Any]) -> Iterator[str]:
    shaded = " The light band is the search." if any(rate.searching for rate in history.rates) else ""
    yield _section(
        "How good the model is",
        "Held-out data, evaluated while training goes on." + shaded
        if history.evaluations
        else "The devices' own training losses: no evaluator attended." + shaded,
        plots.quality(history, settings.target if settings else None),
    )
    yield _section(
        "Commits of each device",
        "Where lines lie on each other, devices commit equally often, whatever their speeds.",
        plots.commits(history),
    )
    yield _section(
        "Where each device's time went",
        "From its first training directive to the end of the run.",
        plots.time_shares(history),
        _devices(history, result),
    )
    if (found := report_plan.read(history)) is not None:
        changes = plots.local_updates(history) if found.changes else ""
        yield _section("Who trained how much", found.text, changes, _table(found.head, found.rows))
    if history.probes:
        yield _section(
            "The search of the commit rate",
            "Training goes on in each probe. A reward is the estimate when its probe ended; the search may "
            "judge by all of them together, so that the chosen one (green) need not be the highest.",
            plots.search(history),
            _probes(history),
        )


def _section(title: str, text: str, *content: str) -> str:
    return f"<section><h2>{_e(title)}</h2><p>{_e(text)}</p>{''.join(content)}</section>"


def _devices(history: History, result: dict[str, Any]) -> str:
    speeds = {worker["name"]: worker.get("speed") for worker in result.get("workers", ())}
    rows = []
    for device in sorted(history.devices.values(), key=lambda item: item.name):
        speed = speeds.get(device.name)
        rows.append(
            [
                device.name,
                f"{speed:g}" if speed else "-",
                f"{1 / device.step_s:.1f}" if device.step_s else "-",
                str(device.steps),
                str(device.commits),
                f"{device.steps / device.commits:.1f}" if device.commits else "-",
                *(f"{device.share(name):.2%}" for name in ("compute", "paced", "commit", "wait")),
                f"{device.commit_s:.3f}",
                f"{device.train_loss:.4f}",
            ]
        )
    head = [
        "device",
        "speed",
        "steps/s",
        "steps",
        "commits",
        "steps a commit",
        "compute",
        "paced",
        "commit",
        "wait",
        "commit s",
        "loss",
    ]
    return _table(head, rows)


def _probes(history: History) -> str:
    rows = [
        [
            str(number),
            f"{probe.rate:.3g}",
            f"{probe.interval_s:.2f}",
            f"{probe.start_s:.1f} – {probe.end_s:.1f}",
            f"{probe.loss_start:.4f}",
            f"{probe.loss_end:.4f}",
            f"{probe.reward:.4g}",
        ]
        for number, probe in enumerate(history.probes, start=1)
    ]
    marks = ["chosen" if probe.chosen else "" for probe in history.probes]
    return _table(["probe", "rate", "interval s", "time s", "loss at start", "at end", "reward"], rows, marks)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[str] = ()) -> str:
    shown = "".join(f"<th>{_e(name)}</th>" for name in head)
    lines = []
    for number, row in enumerate(rows):
        mark = f' class="{marks[number]}"' if marks and marks[number] else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>")
    body = "".join(lines)
    return f'<div class="scroll"><table><thead><tr>{shown}</tr></thead><tbody>{body}</tbody></table></div>'


def loading(task: str) -> str:
    """The three lines that load a run's model."""
    built_in = task in ("digits", "fashion-mnist")
    module = f"offbeat_worker.tasks.builtin.{task.replace('-', '_')}" if built_in else task
    return (
        f"from safetensors.torch import load_file; from {module} import build_model\n"
        "model = build_model()\n"
        'model.load_state_dict(load_file("model.safetensors"), strict=False)'
    )


def _load(settings: RunSettings | None) -> str:
    if settings is None:
        return ""
    note = (
        "In this folder: model.safetensors is the last model, best.safetensors the best that was evaluated."
    )
    return _section("Load the model", note, f"<pre>{_e(loading(settings.task.name))}</pre>")


def _e(text: object) -> str:
    return html.escape(str(text))
