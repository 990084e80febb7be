"""Completions on a terminal: Markdown is rendered, words wrap, and no text is lost."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from duodec.cli import markdown
from duodec.cli.chat.slash_completer import SlashCompleter
from duodec.cli.markdown import MarkdownWriter, num_finished, writer_for
from duodec.cli.output import CompletionWriter
from duodec.core.events import Segment

TEXT = """# Title

A **bold** word and <b>tags</b>, in a paragraph that is longer than the terminal is wide.

```python
def f():

    return 1
```

1. one
2. two
"""
_CURSOR_UP = "\x1b[1A"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """No fixture: pytest gives each phase a stdout of its own."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(markdown, "REFRESH_S", 0.0)
    return stream


def written(stream: Terminal, step: int) -> str:
    """What stays on the terminal: lines that were drawn over do not."""
    writer = MarkdownWriter(stream)
    for at in range(0, len(TEXT), step):
        writer.write([Segment(TEXT[at : at + step], None)])
    writer.end()
    screen: list[str] = [""]
    row = 0
    for part in re.split(r"(\x1b\[1A|\x1b\[2K|\n|\r|\x1b\[[?0-9;]*[a-zA-Z])", stream.getvalue()):
        if part == "\n":
            row += 1
            screen += [""] * (row + 1 - len(screen))
        elif part == _CURSOR_UP:
            row -= 1
        elif part == "\x1b[2K":
            screen[row] = ""
        elif not part.startswith("\x1b") and part != "\r":
            screen[row] += part
    return "\n".join(line.rstrip() for line in screen).strip()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_text_is_rendered_whole_whatever_its_pieces(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    shown = written(terminal(monkeypatch), step)
    assert "**" not in shown
    assert "```" not in shown
    for words in ("Title", "A bold word and <b>tags</b>", "def f():", "return 1", "1 one", "2 two"):
        assert shown.count(words) == 1, shown
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.index("Title") < shown.index("bold") < shown.index("def f") < shown.index("two")


def test_blocks_end_at_empty_lines_outside_of_code() -> None:
    assert num_finished("one\ntwo") == 0
    assert num_finished("one\n\ntwo") == len("one\n\n")
    assert num_finished("```\none\n\ntwo") == 0
    assert num_finished("```\none\n\ntwo\n```\n\n") == len("```\none\n\ntwo\n```\n\n")


def test_pipes_get_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    assert isinstance(writer_for(show_draft=False, is_plain=False), MarkdownWriter)
    assert not isinstance(writer_for(show_draft=False, is_plain=True), MarkdownWriter)
    assert not isinstance(writer_for(show_draft=True, is_plain=False), MarkdownWriter)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(writer_for(show_draft=False, is_plain=False)) is CompletionWriter


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/mo", {"/model"}),
        ("/model sm", {"smollm2", "smollm2-draft"}),
        ("/set temp", {"temperature"}),
        ("/set method pea", {"pearl"}),
        ("/draft o", {"on", "off"}),
        ("/by", {"/bye"}),
        ("hello /mo", set()),
    ],
)
def test_slash_commands_and_models_are_completed(line: str, found: set[str]) -> None:
    completer = SlashCompleter()
    completions = completer.get_completions(Document(line), CompleteEvent())
    assert {completion.text for completion in completions} == found


def test_files_are_completed(tmp_path: Path) -> None:
    (tmp_path / "talk.json").touch()
    line = Document(f"/load {tmp_path}/ta")
    (completion,) = SlashCompleter().get_completions(line, CompleteEvent())
    assert completion.text == "lk.json"
