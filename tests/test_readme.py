"""README's first screen, and the links and make targets of README and docs."""

from __future__ import annotations

import re

from fakes import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


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
    first = words.partition("## Your model")[0]
    assert first != words
    for needed in (
        "clone of this repository",
        "make demo",
        "pip install",
        "duodec setup",
        "--gpu cuda",
    ):
        assert needed in first
    named = [m for m in ("lookahead", "PEARL", "recycling", "suffix", "REST") if m in first]
    assert not named, "methods come after something ran"
    for asked in ("4090", "Ollama", "vLLM", "Open WebUI"):
        assert asked in words


def test_the_readme_is_read_in_a_minute_and_shows_a_run_and_what_was_measured() -> None:
    words = README.read_text("utf-8")
    assert len(words.splitlines()) < 120
    assert len(re.findall(r"(?m)^\|(?: ?--- ?\|)+$", words)) == 1, "one table"
    assert re.search(r"(?m)^\$ make demo$", words)
    assert "python -m benchmarks simulated" in words
    assert "Never yet run on a GPU" in words
