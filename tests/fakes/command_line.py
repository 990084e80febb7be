"""Commands in this process, on table models, and in one of their own; parts of damaged files."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from fakes.decoding import LETTERS, Letters, noisy_text

from duodec.cli import app
from duodec.core.targets import Query, Scores, Target
from duodec.core.traits import TargetTraits
from duodec.llm import LLM
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import ResolvedPair
from duodec.testing import InlineDrafter, TableModel, TableTarget

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Watched(Target):
    """A target that calls `on_forward` with the number of each forward pass."""

    traits = TargetTraits(reads_in_chunks=True)
    target: TableTarget
    on_forward: Callable[[int], None] = lambda number: None
    num_forwards: int = 0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.num_forwards += 1
        self.on_forward(self.num_forwards)
        return self.target.score(queries)


@dataclass
class Cli:
    """Runs commands in this process, on table models."""

    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    num_context: int = 400
    on_forward: Callable[[int], None] = lambda number: None
    configs: list[EngineConfig] = field(default_factory=list)
    engine: LLM | None = None
    tokenizer: Letters = field(default_factory=Letters)

    def load(self, pair: ResolvedPair, *, on_warning: Callable[[str], None]) -> LLM:
        config = pair.config
        self.configs.append(config)
        model = TableModel(num_vocab=len(LETTERS) + 1)
        target = Watched(TableTarget(model), self.on_forward)
        draft = TableModel(num_vocab=model.num_vocab, noise=0.2).load()
        drafter = InlineDrafter(draft) if pair.draft else None
        store = noisy_text(len(LETTERS)) if config.datastore else None
        self.engine = LLM(
            target, self.tokenizer, config.context or self.num_context, drafter, store
        )
        return self.engine

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        stream = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        self.monkeypatch.setattr(sys, "stdin", stream)
        status = app.run(arguments)
        out, err = self.capture.readouterr()
        return status, out, err

    def answer(self, *arguments: str) -> dict[str, object]:
        status, out, _ = self("generate", "hello", "--json", *arguments)
        assert status == 0
        text, line, rest = out.rsplit("\n", 2)
        record: dict[str, object] = json.loads(line)
        assert (record["text"], rest) == (text, "")
        return record


MAIN = "from duodec.cli.app import main; main()"
IDLE = "from duodec.machine import busy; busy.NOTABLE = float('inf')"  # however busy others are


def duodec(*arguments: str, code: str = MAIN, **env: str) -> subprocess.CompletedProcess[str]:
    """The real program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=280,  # the first run may have to fetch the default target
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def one_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.stdout == ""
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("duodec: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr


class Terminal(io.StringIO):
    """Standard input with a person before it."""

    def isatty(self) -> bool:
        return True


def text_entry(key: str, value: str) -> bytes:
    sized = [struct.pack("<Q", len(text)) + text.encode() for text in (key, value)]
    return sized[0] + struct.pack("<I", 8) + sized[1]


def renamed(model: bytes, token: int) -> bytes:
    """The same model, one token of its vocabulary written otherwise."""
    key = b"tokenizer.ggml.tokens"
    at = model.index(key) + len(key) + 4 + 4 + 8  # array, of texts, how many
    for _ in range(token):
        at += 8 + int.from_bytes(model[at : at + 8], "little")
    length = int.from_bytes(model[at : at + 8], "little")
    return model[: at + 8] + b"X" * length + model[at + 8 + length :]
