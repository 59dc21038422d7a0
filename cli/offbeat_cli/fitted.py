"""A table that fits its terminal: columns of less importance are left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 1
NARROWEST = 6  # of the first column, which is cut where even the others that must stay have no room


@dataclass(frozen=True)
class Column:
    """Args:
    title: its head.
    importance: those with the least go first; None: it stays.
    right: numbers stand right.
    """

    title: str
    importance: int | None = None
    right: bool = True
    cells: list[Text] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max(cell_len(self.title), *(cell.cell_len for cell in self.cells), 0)


class FittedTable:
    """Columns in the order in which they are shown; the first names what a row is about."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def add(self, *cells: str | Text) -> None:
        for column, cell in zip(self._columns, cells, strict=True):
            column.cells.append(Text(cell) if isinstance(cell, str) else cell)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._fitting(options.max_width)
        rest = sum(column.width + GAP for column in shown[1:])
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in shown:
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=True,
                max_width=max(NARROWEST, options.max_width - rest) if column is shown[0] else None,
            )
        for cells in zip(*(column.cells for column in shown), strict=True):
            table.add_row(*cells)
        yield table

    def _fitting(self, width: int) -> list[Column]:
        shown = list(self._columns)
        while sum(column.width + GAP for column in shown) - GAP > width:
            least = min(
                (column for column in shown if column.importance is not None),
                key=lambda column: column.importance or 0,
                default=None,
            )
            if least is None:
                break
            shown.remove(least)
        return shown
