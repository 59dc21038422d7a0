"""Tables and numbers of the document."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table's lines; all columns but the first are right-aligned where all of them are numbers."""
    numeric = [
        all(row[column][:1] in "0123456789->+" for row in rows if row[column]) for column in range(len(head))
    ]
    rule = ["---:" if is_number and column else "---" for column, is_number in enumerate(numeric)]
    return [_line(head), _line(rule), *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    """0.624 -> 62 %."""
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def together(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
