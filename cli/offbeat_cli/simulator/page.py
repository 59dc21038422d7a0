"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from offbeat_cli.report import CSS
from offbeat_cli.simulator.compare import Comparison, EntryResult
from offbeat_cli.simulator.table import HEAD, cells, goal
from offbeat_core import __version__

EXPLAINED = {
    "quality": (
        "How good the model is",
        "Held-out data against virtual time: a thin line per seed, a bold one for their mean.",
    ),
    "times": (
        "Time to the target",
        "The mean over seeds, each seed as a dot, and the 95 % interval of the mean (bootstrap).",
    ),
    "shares": (
        "Where the devices' time went",
        "Computing; its own commits, where training stands still for them; waiting for others: at a gate, "
        "for a round, at rest.",
    ),
}


def page(comparison: Comparison, plots: Mapping[str, str], scenario_text: str) -> str:
    """The whole page.

    Args:
        plots: SVG elements by name.
        scenario_text: the scenario's file.
    """
    scenario = comparison.scenario
    devices = len(scenario.virtual_devices())
    lead = (
        f"{devices} devices, H = {scenario.heterogeneity:.2f}, task {scenario.task.name}, {goal(scenario)}, "
        f"{len(scenario.seeds)} paired seeds. "
        + ("Commits travel while training goes on, where the model can." if scenario.overlap else "")
    )
    sections = [
        f"<section><h2>{_e(title)}</h2><p>{_e(text)}</p>{plots[name]}</section>"
        for name, (title, text) in EXPLAINED.items()
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_e(scenario.name)} · Offbeat</title><style>{CSS}</style></head>",
            f'<body><main><h1>{_e(scenario.name)}</h1><p class="lead">{_e(lead)}</p>',
            f"<section><h2>Results</h2>{_table(comparison.results)}</section>",
            *sections,
            f"<section><details><summary>Scenario</summary><pre>{_e(scenario_text)}</pre></details></section>",
            f"<footer>Offbeat {_e(__version__)}, offbeat simulate</footer>",
            "</main></body></html>",
            "",
        ]
    )


def _table(results: Sequence[EntryResult]) -> str:
    best = min((result.time_s for result in results if result.reached), default=None)
    head = "".join(f"<th>{_e(name)}</th>" for name in HEAD)
    rows = []
    for result in results:
        mark = ' class="chosen"' if result.reached and result.time_s == best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{_e(cell)}</td>" for cell in cells(result)) + "</tr>")
    body = "".join(rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _e(text: object) -> str:
    return html.escape(str(text))
