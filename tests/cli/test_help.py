"""The help of every command: a screen with --help, everything with --help-all; the version."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from fakes.command_line import Cli

from duodec.cli.app import app, run
from duodec.methods.registry import METHODS

_SCREEN = 40  # lines
ROOT: Any = typer.main.get_command(app)


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name)


ALL = sorted(commands(ROOT))


def command_of(names: tuple[str, ...]) -> Any:
    found = ROOT
    for name in names:
        found = found.commands[name]
    return found


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_help_fits_on_a_screen(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*names, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(('duodec', *names))}")
    assert len(lines) <= _SCREEN
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line], "nothing is cut"
    for required in (p for p in command_of(names).params if p.required):
        is_option = required.opts[0].startswith("-")
        name = required.opts[0] if is_option else required.metavar or required.name.upper()
        assert any(name in line for line in lines[3:]), "what must be given is shown"


@pytest.mark.parametrize("names", [names for names in ALL if names], ids=" ".join)
def test_help_all_shows_every_option(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_of(names)
    if hasattr(command, "commands"):
        return
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*names, "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: {' '.join(('duodec', *names))}"), "as --help does"
    assert max(map(len, shown.splitlines())) <= 80
    for parameter in command.params:
        words = " ".join((parameter.help or "").split())
        assert words in " ".join(shown.split()), f"the help of {parameter.name} is cut"
    for parameter in command.params:
        for flag in (f for f in parameter.opts if f.startswith("-")):
            assert flag in shown
    if "method" in {parameter.name for parameter in command.params}:
        assert "Decode autoregressively" in shown


def test_the_commands_have_a_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ROOT.commands:
        assert re.search(rf"^  {name} +\w.*\n(  \S|\n)", shown, re.MULTILINE), name


def test_every_command_has_the_common_options() -> None:
    for names in ALL:
        command = command_of(names)
        if not hasattr(command, "commands"):
            flags = {flag for parameter in command.params for flag in parameter.opts}
            assert {"--config", "--log-level", "--help-all"} <= flags, names


@pytest.mark.parametrize("names", [names for names in ALL if names], ids=" ".join)
def test_examples_are_the_commands_own_and_can_be_typed(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if names == ("datastore",):
        return
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "--help-all"):
        assert run([*names, flag]) == 0
        shown = capsys.readouterr().out.replace("\\\n", " ")
        found = re.search(r"^Examples\n((?:  .*\n)+)", shown, re.MULTILINE)
        assert found, "there are examples"
        lines = [line for line in found[1].splitlines() if not line.startswith("  #")]
        wanted = {" ".join(("duodec", *names)), " ".join(("duodec", names[-1]))}
        for line in lines:
            assert any(f"{command} " in f"{line} " for command in wanted), line
            shlex.split(line, comments=True)


def test_help_teaches_without_loading_what_generates() -> None:
    unused = ("llama_cpp", "prompt_toolkit", "huggingface_hub", "scipy", "jinja2", "duodec.llm",
              "duodec.scheduler.scheduler", "duodec.loading.load")  # fmt: skip
    script = (
        "import sys; from duodec.cli.app import run; run(['generate', '--help-all']);"
        f"assert not [n for n in sys.modules if n.startswith({unused!r})]"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    for words in ("Examples", "default: 256", "--show-draft", *METHODS):
        assert words in run.stdout


def test_version_and_bare_call(cli: Cli) -> None:
    assert cli("--version")[1].startswith("duodec 1.")
    status, out, _ = cli()
    assert status == 0
    assert "Usage" in out


def test_help_names_what_datastore_does(cli: Cli) -> None:
    _, out, _ = cli("--help")
    assert "Build datastores of text" in out
    assert "list datastores" not in out


@pytest.mark.parametrize("group", ["cache", "datastore"])
def test_the_help_of_a_group_is_whole(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0
    whole = capsys.readouterr().out
    assert run([group, "--help-all"]) == 0
    assert capsys.readouterr().out == whole


def test_a_default_of_zero_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["bench", "--help-all"]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--temperature X [^\[]*\[default: 0\.0\]", lines)
    assert re.search(r"--seed N [^\[]*\[default: 0\]", lines)
    assert "[default: False]" not in lines
