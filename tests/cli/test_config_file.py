"""One configuration file for all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duodec.cli import app


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "duodec" / "config.yaml"
    file.parent.mkdir()
    return file


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert app.run(["list", *arguments]) == 0
    return capsys.readouterr().out


def test_it_is_found_and_named_and_overridden(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(capsys).startswith("NAME")
    file.write_text("threads: 1  # of commands that have it\nlist:\n  json: true\n")
    assert json.loads(listed(capsys))["models"], "from its usual place"
    other = file.with_name("other.yaml")
    other.write_text("json: false\n")
    assert listed(capsys, "--config", str(other)).startswith("NAME")
    monkeypatch.setenv("DUODEC_CONFIG", str(other))
    assert listed(capsys).startswith("NAME")
    assert listed(capsys, "--json").startswith("{"), "the command line overrides it"


def test_a_commands_part_overrides_the_top(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("json: false\nlist: {json: true}\nps: {json: false}\n")
    assert listed(capsys).startswith("{")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thredas: 1", "has no option 'thredas' to set; did you mean threads?"),
        ("list: {jso: true}", "has no option 'jso' of list to set; did you mean json?"),
        ("lits: {json: true}", "has no command 'lits' to set; did you mean list?"),
        ("threads: 1\nthreads: 2", "sets threads twice"),
        ("serve:\n  port: 1\n  port: 2", "sets port twice"),
        ("- threads", "is not a list of options"),
    ],
)
def test_what_is_wrong_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file.write_text(text)
    assert app.run(["list"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_a_value_of_the_wrong_kind_names_the_option(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("generate: {max-tokens: many}")
    assert app.run(["generate", "hi"]) == 2
    assert "max-tokens" in capsys.readouterr().err
