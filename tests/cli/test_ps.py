"""Servers of this machine are listed, and only those that run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.server import running

from duodec.cli import app
from duodec.cli.commands import ps


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    return tmp_path / "servers"


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert app.run(["ps", "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["servers"]
    return found


def test_a_server_is_listed_while_it_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    with running() as server, ps.announced("tables", server.url):
        (found,) = listed(capsys)
        assert (found["model"], found["url"], found["state"]) == ("tables", server.url, "ready")
        assert app.run(["ps"]) == 0
        assert server.url in capsys.readouterr().out
    assert listed(capsys) == []
    assert app.run(["ps"]) == 0
    assert "no server runs" in capsys.readouterr().err


def test_what_a_killed_server_left_is_removed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    file = folder / "1.json"
    file.write_text(json.dumps({"model": "m", "url": "http://x", "pid": 1, "started_s": 5.0}))
    (folder / "2.json").write_text("{")
    assert listed(capsys) == []
    assert not file.exists(), "this number is another process's by now"


def test_one_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with ps.announced("gone", "http://127.0.0.1:9"):
        assert [one["state"] for one in listed(capsys)] == ["no response"]
