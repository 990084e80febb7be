"""Servers of this machine are listed, and only those that run."""

from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import psutil
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


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ('{"status": "loading"}', "loading"),
        ('{"status": "shutting down"}', "shutting down"),
        ("busy", "error 503"),
        ("[]", "error 503"),
    ],
)
def test_the_state_is_what_the_server_says(
    body: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        with ps.announced("m", f"http://127.0.0.1:{server.server_port}"):
            assert [one["state"] for one in listed(capsys)] == [state]


def test_a_server_is_stopped_by_its_port(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (_announce(folder, "m", f"http://127.0.0.1:{port}") for port in (8011, 18011))
    try:
        assert app.run(["stop", "011"]) == 2
        assert app.run(["stop", "8011"]) == 0
        assert "stopped m at http://127.0.0.1:8011" in capsys.readouterr().err
        assert not psutil.pid_exists(one.pid)
        assert other.poll() is None
    finally:
        for process in (one, other):
            process.kill()
            process.wait()


def _announce(folder: Path, model: str, url: str = "") -> subprocess.Popen[bytes]:
    """A process that says it serves a model."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started_s = psutil.Process(process.pid).create_time()
    record = {
        "model": model,
        "url": url or f"http://{process.pid}",
        "pid": process.pid,
        "started_s": started_s,
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{process.pid}.json").write_text(json.dumps(record))
    return process


def test_a_server_is_stopped_by_its_models_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["stop"]) == 2
    assert "no server runs; start one with `duodec serve`" in capsys.readouterr().err
    names = ("one", "other", "twin", "twin")
    one, other, twin, last = processes = [_announce(folder, name) for name in names]
    try:
        assert app.run(["stop"]) == 2
        said = capsys.readouterr().err
        assert all(
            f"{name} at http://{p.pid}" in said for name, p in zip(names, processes, strict=True)
        )
        assert app.run(["stop", "twin"]) == 2
        said = capsys.readouterr().err
        assert f"twin at http://{twin.pid}" in said
        assert f"one at http://{one.pid}" not in said
        assert app.run(["stop", f"http://{twin.pid}"]) == 0
        assert not psutil.pid_exists(twin.pid)
        assert app.run(["stop", "third"]) == 2
        said = capsys.readouterr().err
        assert "no server of third runs; " in said
        assert f"one at http://{one.pid}" in said
        assert app.run(["stop", "one"]) == 0
        assert "stopped one" in capsys.readouterr().err
        assert not psutil.pid_exists(one.pid)
        assert other.poll() is None
        assert last.poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
