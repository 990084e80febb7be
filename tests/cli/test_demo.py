"""The demo: one prompt twice, the same text, and a ratio only where it can be trusted."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.decoding import LETTERS, Letters

from duodec import llm
from duodec.backends.paced import PacedTarget
from duodec.cli import app
from duodec.cli.commands import demo
from duodec.cli.completion import StreamedCompletion
from duodec.core.events import Finished
from duodec.core.round import Round, Stats
from duodec.core.targets import Launched, Query
from duodec.llm import LLM
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import ResolvedPair
from duodec.models import ollama
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=len(LETTERS) + 1, seed=7)


class Quiet:
    num_cores = 0.0


class Noisy:
    num_cores = 1.5


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    seen: list[EngineConfig] = []

    def load(pair: ResolvedPair, *, on_warning: Callable[[str], None]) -> LLM:
        config = pair.config
        seen.append(config)
        pace = config.pace_curve
        assert pace is not None
        drafter = InlineDrafter(replace(TABLE, noise=0.1).load())
        target = PacedTarget(TableTarget(TABLE), pace)
        return LLM(target, Letters(), 400, drafter)

    monkeypatch.setattr(llm, "load", load)
    monkeypatch.setattr(demo, "OtherPrograms", Quiet)
    return seen


def test_it_decodes_twice_at_the_pace_and_says_what_it_is(
    configs: list[EngineConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["demo", "--pace", "0.01", "-n", "24", "hello"]) == 0
    shown = capsys.readouterr()
    (config,) = configs
    assert config.pace == 0.01
    plain, drafted = shown.out.split("duodec, drafted text is underlined")
    assert plain.partition("Plain decoding")[2].strip() == drafted.strip() != ""
    assert "10 ms a forward pass: a stand-in for a larger model on a GPU" in shown.err
    assert "x, the same 24 tokens" in shown.err
    assert re.search(r"With your own model: \S+ run MODEL.gguf -md", shown.err)


def test_it_names_a_model_of_ollamas_and_a_command_that_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", [str(Path.cwd() / "place" / "bin" / "duodec")])
    model = ollama.OllamaModel("small:1b", Path("models"), ())
    monkeypatch.setattr(ollama, "installed", lambda: [model])
    assert demo._command() == f"{Path('place', 'bin', 'duodec')} run small:1b"


def test_a_busy_machine_gets_a_range(
    configs: list[EngineConfig], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(demo, "OtherPrograms", Noisy)
    assert app.run(["demo", "--pace", "0.01", "-n", "8", "hello"]) == 0
    err = capsys.readouterr().err
    assert re.search(r"with drafts: about [\d.]+ to [\d.]+ times, the same 8 tokens", err)
    assert "; other programs kept 1.5 cores busy" in err
    assert "x, the same" not in err


@pytest.mark.parametrize(
    ("faster", "accepted", "num_busy", "worth"),
    [(1.34, 0.06, 0.0, False), (1.05, 2.0, 0.0, False), (1.34, 2.0, 0.0, True),
     (1.34, 2.0, 1.5, None), (1.05, 0.06, 1.5, None), (math.nan, 2.0, 0.0, False)],
)  # fmt: skip
def test_drafts_pay_by_the_clock_and_by_what_was_accepted(
    faster: float, accepted: float, num_busy: float, worth: bool | None
) -> None:
    """A ratio alone is noise; one that was refused says nothing."""
    assert demo.is_worth(stats(1.0, 0), stats(faster, accepted), num_busy) is worth


def stats(speed: float, accepted: float) -> Stats:
    """Of a hundred passes, one of them the first, that accepted this many draft tokens each."""
    num_accepted = round(100 * accepted)
    extra = [num_accepted // 100 + (i < num_accepted % 100) for i in range(100)]
    rounds = tuple(Round((1,) * (n + 1), n, 4, 4, 1.0, 0.0, 1.0) for n in extra)
    num_later = sum(len(r.tokens) for r in rounds[1:])
    return Stats(4, rounds, 0.0, 0.0, num_later / speed)


@pytest.mark.parametrize("worth", [True, False, None])
def test_a_slower_target_is_shown_first(
    worth: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paces: list[str | None] = []

    def compare(prompt: str, max_tokens: int, pace: str | None) -> bool | None:
        paces.append(pace)
        return True if pace else worth

    monkeypatch.setattr(demo, "compare", compare)
    assert app.run(["demo"]) == 0
    assert paces == ["0.05", None]
    told = "drafts bring little on this processor alone" in capsys.readouterr().err
    assert told is (worth is False)


def test_no_ratio_is_told_where_nothing_was_accepted() -> None:
    plain, drafted = (
        StreamedCompletion("auto", (1,), Finished("", (1,) * 100, "length", stats(speed, 0)), False)
        for speed in (1.0, 1.34)
    )
    words = demo.result_line(plain, drafted, 0.0)
    assert words.endswith("with drafts, the same 100 tokens; no draft was accepted")


def test_make_demo_runs_it_without_what_only_tests_need() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("demo:"))
    assert "setup-use" in lines[start]
    assert lines[start + 1].endswith("duodec demo")


def test_an_interrupted_demo_decodes_no_second_time(
    configs: list[EngineConfig], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    launch, numbers = PacedTarget.launch, count(1)

    def interrupting(self: PacedTarget, queries: Sequence[Query]) -> Launched:
        if next(numbers) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return launch(self, queries)

    monkeypatch.setattr(PacedTarget, "launch", interrupting)
    assert app.run(["demo", "--pace", "0.01", "-n", "24", "hello"]) == 130
    shown = capsys.readouterr()
    assert "drafted text" not in shown.err
    assert shown.err.strip().splitlines()[-1] == "interrupted"
