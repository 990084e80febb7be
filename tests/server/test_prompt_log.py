"""What clients say is kept in a file only where the operator asked for it."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import httpx
import pytest
from fakes.server import running

from duodec.errors import BadOption
from duodec.server.prompt_log import PromptLog
from duodec_lab.distill.prompts.collect import collect

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?"}]


def ask(url: str, content: str) -> int:
    messages = [ASKED[0], {"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": 2}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=240).status_code


def test_chats_are_kept_as_prompts_for_distill(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with running(prompt_log=str(path)) as server:
        for content in ("Größe?", "two", "three", "four"):
            assert ask(server.url, content) == 200
        assert httpx.post(f"{server.url}/v1/chat/completions", json={}, timeout=240).is_error
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(lines) == 4
    assert lines[0] == {"messages": ASKED}
    assert path.stat().st_mode & 0o077 == 0, "for its owner alone"
    assert ("Größe?",) in {one.turns for one in collect([path], None, 0).conversations}


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running() as server:
        assert ask(server.url, "one") == 200
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"cannot write .*another file with --prompt-log"):
        PromptLog(tmp_path / "nowhere" / "prompts.jsonl")


def test_a_log_that_fails_ends_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = PromptLog(tmp_path / "prompts.jsonl")

    def full(*arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(logging.getLogger("duodec.server"), "propagate", True)
    monkeypatch.setattr(Path, "open", full)
    kept.write(ASKED)
    kept.write(ASKED)
    (record,) = caplog.records
    assert "no longer kept" in record.getMessage()


def test_a_log_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"x" * 900)  # of an earlier server
    monkeypatch.setattr(logging.getLogger("duodec.server"), "propagate", True)
    kept = PromptLog(path, most_bytes=1100)
    for _ in range(20):
        kept.write(ASKED)
    assert 900 < path.stat().st_size <= 1100
    (record,) = caplog.records
    assert "no longer kept" in record.getMessage()
