"""`duodec run`: it generates where there is a prompt, and chats where there is none."""

from __future__ import annotations

import json
import sys

import pytest
from fakes.command_line import Cli, Terminal

from duodec.cli import app
from duodec.cli.commands import chat


def test_run_completes_a_prompt_or_chats(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain, _ = cli("generate", "hello", "--seed", "1", "-n", "20")
    arguments = ("--seed", "1", "-n", "20")
    assert cli("run", "smollm2", "hello", *arguments)[1] == plain
    assert cli("run", "smollm2", "-p", "hello", *arguments)[1] == plain
    assert cli("run", "smollm2", *arguments, stdin="hello\n")[1] == plain
    assert {config.target for config in cli.configs} == {"smollm2"}
    lines = iter(["hello", "/undo", "/bye"])
    monkeypatch.setattr(chat, "terminal_reader", lambda: lambda prompt: next(lines))
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert app.run(["run", "smollm2-draft", *arguments]) == 0
    out, err = cli.capture.readouterr()
    assert out == plain, "the tables are the same"
    assert "taken back: hello" in err
    assert cli.configs[-1].target == "smollm2-draft"


def test_run_has_the_options_of_generate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = str(cli.answer("-n", "20", "--seed", "1")["text"])
    arguments = ("run", "smollm2", "hello", "-n", "20", "--seed", "1", "--json", "--stop", whole[9])
    status, out, _ = cli(*arguments)
    assert status == 0
    assert json.loads(out.splitlines()[-1])["text"] == whole[: whole.find(whole[9])]
    for refused, words in (
        (("--regex", "(a", "--json-schema", "{}"), "--json-schema and --regex exclude each other"),
        (("--json-schema", "/nowhere/schema.json"), "/nowhere/schema.json cannot be read"),
    ):
        status, _, err = cli("run", "smollm2", "hello", *refused)
        assert (status, words in err) == (2, True)
    monkeypatch.setattr(chat, "terminal_reader", lambda: lambda prompt: "/bye")
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert app.run(["run", "smollm2", "--json", "--stop", "x"]) == 0
    err = cli.capture.readouterr().err
    assert "--json has no effect in a chat" in err
    assert "--stop has no effect in a chat" in err
    assert "--regex" not in err
