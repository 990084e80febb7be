"""Print a report's table: by rich on a terminal, as Markdown elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from duodec.cli.output import is_terminal, put

if TYPE_CHECKING:
    from rich.text import Text

    from duodec.bench.tables import Cell, Table

_STYLES = {"slower": "bold red", "failed": "bold red", "faster": "green"}
_LONG_HEAD = 8


def one_line(text: str) -> str:
    """Text from a file, without characters that move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


def put_rich_table(table: Table) -> None:
    """Raises OutputClosed."""
    from duodec.bench.tables import markdown

    put(f"{_drawn(table) if is_terminal(sys.stdout) else markdown(table)}\n")


def _drawn(table: Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=Text(one_line(table.caption), style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in table.head:
        is_first = not drawn.columns
        drawn.add_column(
            Text(_broken(one_line(name))),
            justify="left" if is_first else "right",
            no_wrap=is_first,
            overflow="fold",
        )
    for row in table.rows:
        drawn.add_row(*map(_text, row))
    console = Console(file=sys.stdout, highlight=False)
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
