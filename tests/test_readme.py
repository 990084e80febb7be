"""What README and docs tell to type exists: commands, options, make targets, files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
import typer
from fakes import ROOT

from duodec.cli.app import app

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?m)(?:^ {4}|^\$ |&& |`)((?:[A-Z_]+=\S+ )*duodec [^`\n]+)")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in COMMAND.finditer(page.read_text("utf-8").replace("\\\n", " ")):
            yield page.name, match[1].partition("  #")[0].strip()


def options(name: str, sub: str | None) -> set[str]:
    group = typer.main.get_command(app)
    command = group.commands[name]  # type: ignore[attr-defined]
    if hasattr(command, "commands") and sub in command.commands:
        command = command.commands[sub]
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_every_command_and_option_exists(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words = words[words.index("duodec") + 1 :]
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    if words[0].startswith("-"):
        return
    assert words[0] in known, f"{page}: {line}"
    told = options(words[0], words[1] if len(words) > 1 else None)
    for word in words[1:]:
        if word == "--":
            break  # the rest is another program's
        if re.fullmatch(r"-{1,2}[a-zA-Z][\w-]*(=.*)?", word):
            assert word.partition("=")[0] in told, f"{page}: {word} in {line}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for page in PAGES:
        for name in re.findall(
            r"(?:`|^ {4}|\" )make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE
        ):
            assert name in targets, f"{page.name}: make {name}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_first_screen_names_no_methods_and_how_to_begin() -> None:
    words = README.read_text("utf-8")
    first = words.partition("## How do I use")[0]
    for needed in ("git clone", "make demo", "pip install", "duodec setup", "--gpu cuda"):
        assert needed in first
    named = [m for m in ("lookahead", "PEARL", "recycling", "suffix", "REST") if m in first]
    assert not named, "methods come after something ran"
    for asked in ("4090", "Ollama", "vLLM", "Open WebUI"):
        assert asked in words
