"""Commands on table models, and files that are no models."""

from __future__ import annotations

import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.command_line import Cli, renamed, text_entry

from duodec import llm
from duodec.models import resolve


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    cli = Cli(capsys, monkeypatch)
    monkeypatch.setattr(llm, "load", cli.load)
    before = signal.getsignal(signal.SIGINT)
    yield cli
    assert signal.getsignal(signal.SIGINT) is before, "the handler of Ctrl-C was left behind"


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    draft = resolve("smollm2-draft").path.read_bytes()
    (folder / "text.gguf").write_text("no model")
    (folder / "truncated.gguf").write_bytes(draft[: len(draft) // 2])
    architecture = text_entry("general.architecture", "bert")
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    (folder / "bert.gguf").write_bytes(head + architecture + bytes(64))
    (folder / "renamed.gguf").write_bytes(renamed(draft, 4096))
    return folder
