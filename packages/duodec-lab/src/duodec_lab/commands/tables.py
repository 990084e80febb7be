"""Print the tables of reports: drawn on a terminal, Markdown elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from duodec.cli.output import is_terminal, one_line, put

if TYPE_CHECKING:
    from rich.text import Text

    from duodec_lab.bench.reports.tables import Cell, Table

_STYLES = {"slower": "bold red", "failed": "bold red", "faster": "green"}
_LONG_HEAD = 8
_UNBOUNDED = 10_000  # columns
_NARROW_HEADS = {
    "translation": "transl.",
    "summarization": "summar.",
    "math_reasoning": "math",
    "humaneval": "human\neval",
    "all tasks": "all\ntasks",
}


def put_rich_table(table: Table) -> None:
    """Raises OutputClosed."""
    from duodec_lab.bench.reports.tables import markdown

    put(f"{_drawn(table) if is_terminal(sys.stdout) else markdown(table)}\n")


def _drawn(table: Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    heads = list(map(one_line, table.head))
    drawn = RichTable(
        title=Text(one_line(table.caption), style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for place, name in enumerate(heads):
        drawn.add_column(
            Text(_broken(name)),
            justify="right" if place else "left",
            no_wrap=not place,
            overflow="fold",
        )
    for row in table.rows:
        drawn.add_row(*map(_text, row))
    if console.measure(drawn, options=console.options.update(max_width=_UNBOUNDED)).maximum > (
        console.width
    ):
        for column, name in zip(drawn.columns, heads, strict=True):
            column.header = Text(_NARROW_HEADS.get(name, _broken(name)))
    with console.capture() as capture:
        console.print(drawn if table.rows else drawn.title)
        for note in table.notes:
            console.print(Text(one_line(note), style="dim"))
    return capture.get().rstrip()


def _broken(head: str) -> str:
    """Let a long name break at its underscores before it breaks within a word."""
    return head.replace("_", "_\n") if len(head) > _LONG_HEAD else head


def _text(cell: Cell) -> Text:
    """A bad verdict is also in the text, not in the colour alone."""
    from rich.text import Text

    text = Text()
    is_bad = cell.mark in ("slower", "failed")
    text.append(
        one_line(f"{cell.text} {cell.mark}" if is_bad else cell.text), _STYLES.get(cell.mark, "")
    )
    if cell.detail:
        text.append(f"\n{one_line(cell.detail)}", "dim")
    return text
