"""What is printed: widths, wrapping and tints on a terminal, and a pipe that is closed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import pytest
from fakes.command_line import ANSI, Cli

from duodec.cli import output
from duodec.cli.chat import slash
from duodec.cli.checks import Check
from duodec.cli.commands import doctor


@pytest.mark.parametrize(("no_colour", "code"), [("", "4;32"), ("1", "4")])
def test_accepted_drafts_are_tinted_on_a_terminal_only(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, no_colour: str, code: str
) -> None:
    # of its own accord `auto` may find that nothing pays where a forward pass takes no time
    arguments = ("generate", "hello", "--seed", "1", "--show-draft", "-q", "--method", "lookup")
    _, plain, err = cli(*arguments)
    assert "not a terminal" in err
    assert not ANSI.search(plain)
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("NO_COLOR", no_colour)
    _, tinted, _ = cli(*arguments)
    assert f"\x1b[{code}m" in tinted
    assert ANSI.sub("", tinted) == plain


def test_a_closed_pipe_ends_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from duodec.cli.app import main; main()",
         "generate", "Count.", "--method", "ar", "-t", "1", "-n", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == ""
        assert run.wait(60) == 141


@pytest.mark.parametrize("columns", [80, 100])
def test_no_table_is_wider_than_a_terminal_but_for_its_names(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("COLUMNS", str(columns))
    output.put_table(("NAME", "SIZE", "HERE"), [("x" * 60, "1 MB", "no: fetch it")])
    output.put_beside("ok    target  ", 14, "llama, " * 40)
    _, out, _ = cli("list")
    assert all(len(line) <= columns or " " not in line for line in out.splitlines())


@pytest.mark.parametrize("columns", [40, 80])
def test_long_lines_are_wrapped_at_words_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """All but those that are copied; off a terminal a line is a line."""
    words = (
        "  statistics of some thing or other " + "word " * 20 + "https://example.org/" + "x" * 60
    )
    command = "duodec generate " + "-m model " * 20
    monkeypatch.setenv("COLUMNS", str(columns))

    def said() -> str:
        output.say(words)
        output.say_dim(command, is_copied=True)
        slash.run("/?", cast(Any, None))
        return cli.capture.readouterr().err

    whole = said().splitlines()
    assert whole[:2] == [words, command]
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setenv("NO_COLOR", "1")
    lines = said().splitlines()
    assert command in lines
    rest = [line for line in lines if line != command]
    assert all(len(line) <= columns or " " not in line.strip() for line in rest)
    assert " ".join(" ".join(rest).split()) == " ".join(
        " ".join(line for line in whole if line != command).split()
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("  /set"))
    assert lines[at + 1].startswith(" " * 11), "it hangs right of the names"


def test_a_remedy_is_wrapped_and_a_command_in_it_is_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    command = "run: pip install " + "something " * 8 + "else"
    doctor._show(
        [Check("memory", "warn", "short", "close " * 20), Check("torch", "warn", "no", command)]
    )
    lines = cli.capture.readouterr().out.splitlines()
    assert f"{'':14}remedy: {command}" in lines
    assert all(len(line) <= 60 for line in lines if command not in line)
    assert sum(line.startswith(" " * 14 + "close") for line in lines) >= 1
