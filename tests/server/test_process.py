"""`duodec serve` as a process: how it begins, how it ends, and what it says."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import psutil
import pytest
from fakes import TESTS
from fakes.server import until

import duodec
from duodec.cli.config_file import read_options
from duodec.errors import BadOption

httpx = pytest.importorskip("httpx")

# the real command, its models replaced by tables
PROGRAM = """
import sys
from dataclasses import replace
from fakes.server import Slowed, engine_on_tables
from pathlib import Path
from duodec import llm
from duodec.cli import app
from duodec.errors import ModelUnreadable
from duodec.loading import resolve
from duodec.loading.backends import TargetFiles, named
from duodec.models import ModelFile

resolve_real = resolve.resolve_target

def resolve_target(config):
    if config.target == "broken":
        raise ModelUnreadable("broken.gguf is a picture; pass a model")
    return resolve_real(config)

def resolve_pair(config):
    file = ModelFile(Path(config.target), config.target, "table", None, None)
    return resolve.ResolvedPair(config, named("llama.cpp"), TargetFiles(file))

def load(pair, *, on_warning, taken_bytes):
    config = pair.config
    loaded = engine_on_tables(num_context=config.context or 4000).loaded
    target = Slowed(loaded.target, 0.01)
    return llm.LLM(replace(loaded, target=target, num_slots=config.num_slots))

llm.load = load
resolve.resolve_target, resolve.resolve_pair = resolve_target, resolve_pair
sys.exit(app.run(["serve", *sys.argv[1:]]))
"""


class Process:
    """A server that was started with these options, and its log."""

    def __init__(self, *options: str, program: str = PROGRAM, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *options],
            cwd=TESTS, env={**os.environ, **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def url(self) -> str:
        until(lambda: bool(self.lines), 60)
        return self.lines[0].split(" at ")[1].split(",")[0]

    def wait_ready(self) -> httpx.Client:
        http = httpx.Client(base_url=self.url, timeout=30)
        until(lambda: http.get("/health").status_code == 200, 60)
        return http

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return status


@contextmanager
def serving(*options: str, program: str = PROGRAM, **env: str) -> Iterator[Process]:
    process = Process("--port", "0", *options, program=program, **env)
    try:
        yield process
    finally:
        process.process.kill()
        process.wait()
        for stream in (process.process.stdout, process.process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0_after_the_answers_in_work(number: int) -> None:
    with serving("--log-format", "json") as server, closing(server.wait_ready()) as http:
        body: Any = {"messages": [{"role": "user", "content": "hi"}], "stream": True,
                     "max_tokens": 50}  # fmt: skip
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(number)
            text = "\n".join(lines)
        assert server.wait() == 0
    assert text.rstrip().endswith("data: [DONE]")
    assert '"finish_reason":"length"' in text
    records = [json.loads(line) for line in server.lines]
    ready = next(r for r in records if r["message"] == "ready")
    assert ready["model"] == "smollm2"
    asked = [r for r in records if r.get("path") == "/v1/chat/completions"]
    assert [(r["status"], r["tokens"], r["finish"]) for r in asked] == [(200, 50, "length")]
    assert asked[0]["id"].startswith("req-")


_BEGUN = """
import sys
sys.argv[:1] = ["duodec", "serve"]
from duodec.__main__ import main
print("begun", flush=True)
main()
"""
_SMALL = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.02, 0.3, 1.0, 2.0, 3.0])
def test_a_signal_ends_it_with_status_0_while_it_begins(number: int, after_s: float) -> None:
    options = ("-m", str(_SMALL), "--draft", "none", "--context", "128")
    with serving(*options, program=_BEGUN) as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "begun\n"
        sleep(after_s)
        assert server.end(number) == 0
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_python_ends_changes_nothing(number: int) -> None:
    late = "import atexit, time, duodec.__main__\ndef end():\n print('ending', flush=True)\n"
    late += " time.sleep(0.5)\natexit.register(end)\nmain()"
    options = ("-m", str(_SMALL), "--draft", "none", "--context", "128")
    with serving(*options, program=_BEGUN.replace("main()", late)) as server:
        server.wait_ready().close()
        server.process.send_signal(number)
        assert server.process.stdout is not None
        assert [server.process.stdout.readline() for _ in range(2)] == ["begun\n", "ending\n"]
        server.process.send_signal(number)
        assert server.wait() == 0
    assert not any("Traceback" in line for line in server.lines), server.lines


@pytest.mark.slow
def test_sigint_ends_it_where_a_shell_ignores_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as of a script's job in the background
    try:
        with serving() as server:
            server.wait_ready().close()
            assert server.end(signal.SIGINT) == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_who_comes_while_the_last_answers_end_is_told_to_come_back() -> None:
    body: Any = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "stream": True}
    with serving() as server, closing(server.wait_ready()) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            refused = httpx.post(f"{server.url}/v1/chat/completions", json=body)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "unavailable"
            assert refused.headers["retry-after"]
            assert '"finish_reason":"length"' in "".join(lines)
        assert server.wait() == 0
        log = "\n".join(server.lines)
        assert re.search(
            r"requests that may finish within \d+ s: 1; a second signal ends them", log
        )


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once() -> None:
    body: Any = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3000,
        "stream": True,
    }
    with serving() as server, closing(server.wait_ready()) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()  # the client goes with it
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            begin_s = perf_counter()
            assert server.end(signal.SIGTERM) == 0
        assert perf_counter() - begin_s < 8


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving("--port", str(port)) as server:
            assert server.wait() == 2
    (line,) = server.lines
    assert f"port {port} of 127.0.0.1 is taken" in line
    assert "--port" in line


def test_a_model_that_does_not_load_is_one_clear_line() -> None:
    with serving("-m", "broken") as server:
        assert server.wait() == 2
    assert server.lines[-1] == "duodec: broken.gguf is a picture; pass a model"
    assert not any("Traceback" in line for line in server.lines)


def test_options_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("# ours\nalias: from-file\nctx-size: 123\napi-key: [one, two]\n")
    with serving("--config", str(file), DUODEC_ALIAS="from-env") as server:
        with closing(server.wait_ready()) as http:
            assert http.get("/v1/models").status_code == 401
            headers = {"Authorization": "Bearer two"}
            (model,) = http.get("/v1/models", headers=headers).json()["data"]
        assert (model["id"], model["max_model_len"]) == ("from-env", 123)
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: 1\nnonsense\n", "line 2"),
        ("nonsense\n", "not a list of options"),
        ("api-key: one\napi_key: two\n", "sets api_key twice"),
    ],
)
def test_a_file_that_is_wrong_says_what_is(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(BadOption, match=words):
        read_options(file)
    with pytest.raises(BadOption, match="cannot read"):
        read_options(tmp_path / "none")


def test_a_files_values_are_words_as_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: 0123\nn-gpu-layers: 0\nexact: true\noverride-tensor: a=CPU\n")
    assert read_options(file)[""] == {
        "api_key": "0123",
        "gpu_layers": "0",
        "exact": "true",
        "override_tensor": "a=CPU",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parallel", "0"), "parallel is 0"),
        (("--host", "300.1.2.3"), "host is '300.1.2.3'"),
        (("--log-format", "xml"), "log-format is 'xml'"),
        (("--method", "magic"), "unknown method 'magic'"),
        (("--timeout", "-1"), "timeout is -1"),
    ],
)
def test_bad_options_are_one_clear_line(options: tuple[str, ...], words: str) -> None:
    with serving(*options) as server:
        assert server.wait() == 2
    (line,) = server.lines
    assert words in line


def test_who_listens_everywhere_is_warned() -> None:
    with serving("--host", "0.0.0.0") as server:
        server.wait_ready().close()
        assert "--api-key" in server.lines[1]
        assert server.end(signal.SIGTERM) == 0


def test_a_closed_stdout_is_no_error() -> None:
    """As `duodec serve >&-` in a shell."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" --port 0 >&-', sys.executable, PROGRAM],
        cwd=TESTS, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process:
        try:
            lines = [process.stderr.readline(), process.stderr.readline()]
            process.send_signal(signal.SIGTERM)
            lines += process.stderr.readlines()
            status = process.wait(60)
        finally:
            process.kill()
    assert (status, "ready" in lines[1]) == (0, True), lines
    assert not any("Traceback" in line for line in lines)


_TOKENIZING = """\
    tokenize = type(engine.tokenizer).tokenize
    def slowly(self, text, **options):
        __import__("time").sleep(60 if len(text) > 30 else 0)
        return tokenize(self, text, **options)
    type(engine.tokenizer).tokenize = slowly
    return engine
"""
_COMPUTING = """\
    score = engine.target.score
    def slowly(queries):
        __import__("time").sleep(60 if any(len(query.text) > 30 for query in queries) else 0)
        return score(queries)
    engine.target.score = slowly
    return engine
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "counter", "most_s"),
    [(_TOKENIZING, "num_requests_preparing", 10), (_COMPUTING, "num_requests_running", 20)],
)
def test_the_end_leaves_what_cannot_be_interrupted(work: str, counter: str, most_s: float) -> None:
    """A library's tokenizer, or a forward pass, is busy with a client's request."""
    slow = PROGRAM.replace("    return engine\n", work)
    with serving("--grace", "1", program=slow) as server, closing(server.wait_ready()) as http:
        asking = Thread(target=lambda: http.post("/v1/completions", json={"prompt": "a" * 99}))
        asking.start()
        until(lambda: f"{counter} 1.0" in http.get("/metrics").text)
        begin_s = perf_counter()
        assert server.end(signal.SIGTERM) == 0
        assert perf_counter() - begin_s < most_s
        asking.join()
    assert not any("Traceback" in line for line in server.lines)


# --- signals, whatever the server does

_LOADING = """\
    print("loading", flush=True)
    __import__("time").sleep(60)
"""
_BLOCKING = """
from duodec.server.service import Service
Service.props = lambda service, name: {}
"""
_IN_PYTHON = "exec('while True: pass')"
_IN_C = "sum(__import__('itertools').repeat(1))"  # which holds Python's lock and hears no signal
_GRACE_S, _MOST_S = 1, 7.5  # what docs/server.md says, and a moment


def _working(work: str) -> str:
    """The program, in which this work takes a minute, or for ever."""
    if work == "loading":
        return PROGRAM.replace("    return engine\n", _LOADING + "    return engine\n")
    blocking = _BLOCKING.format(_IN_C if work == "blocked in C" else _IN_PYTHON)
    prefill = PROGRAM.replace("    return engine\n", _COMPUTING)
    program = prefill if work == "prefill" else PROGRAM
    return program.replace("\nllm.load,", f"{blocking}llm.load,")


@contextmanager
def _busy_with(work: str) -> Iterator[Process]:
    """A server in the midst of this work."""
    long = {"max_tokens": 3000, "prompt": "a" * (99 if work == "prefill" else 1)}
    with serving("--grace", str(_GRACE_S), program=_working(work)) as server:
        if work == "loading":
            assert server.process.stdout is not None
            assert server.process.stdout.readline() == "loading\n"
            yield server
            return
        with closing(server.wait_ready()) as http:
            if work in ("decoding", "prefill"):
                asking = Thread(target=lambda: _ignored(http, "POST", "/v1/completions", long))
                asking.start()
                until(lambda: "num_requests_running 1.0" in http.get("/metrics").text)
                yield server
            elif work.startswith("blocked"):
                asking = Thread(target=lambda: _ignored(http, "GET", "/props", None))
                asking.start()
                until(lambda: _is_blocked(server))
                yield server
            else:
                yield server
                return
            server.process.kill()
            asking.join()


def _ignored(http: httpx.Client, method: str, path: str, body: Any) -> None:
    with suppress(httpx.TransportError):
        http.request(method, path, json=body)


def _is_blocked(server: Process) -> bool:
    try:
        httpx.get(f"{server.url}/health", timeout=0.5)
    except httpx.TimeoutException:
        return True
    return False


_WORKS = ("idle", "loading", "decoding", "prefill", "blocked in Python", "blocked in C")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "number"),
    [*((work, signal.SIGTERM) for work in _WORKS), ("decoding", signal.SIGHUP),
     ("blocked in C", signal.SIGINT)],
)  # fmt: skip
def test_one_signal_ends_it_within_its_time_whatever_it_does(work: str, number: int) -> None:
    with _busy_with(work) as server:
        begin_s = perf_counter()
        assert server.end(number) == 0
        assert perf_counter() - begin_s < _MOST_S
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
@pytest.mark.parametrize("work", _WORKS[1:])
def test_a_second_signal_ends_it_at_once_whatever_it_does(work: str) -> None:
    with _busy_with(work) as server:
        server.process.send_signal(signal.SIGTERM)
        sleep(0.1)
        begin_s = perf_counter()
        assert server.end(signal.SIGINT) == 0
        assert perf_counter() - begin_s < 0.5
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
def test_the_processes_that_it_started_end_with_it() -> None:
    blocked = _BEGUN.replace("main()", f"{_BLOCKING.format(_IN_C)}main()")
    options = ("-m", str(_SMALL), "--draft", str(_SMALL), "--context", "128")
    with serving(*options, program=blocked) as server, closing(server.wait_ready()) as http:
        body = {"prompt": "Once", "max_tokens": 20, "structured_outputs": {"regex": "[a-z ]+"}}
        assert http.post("/v1/completions", json=body).status_code == 200
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) > 1, "a drafter, and what tries grammars"
        asking = Thread(target=lambda: _ignored(http, "GET", "/props", None))
        asking.start()
        until(lambda: _is_blocked(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.end(signal.SIGTERM) == 0
        asking.join()
        until(lambda: not any(child.is_running() for child in children), 5)


@pytest.mark.slow
def test_a_terminal_that_closes_ends_no_server_that_ignores_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with serving() as server, closing(server.wait_ready()) as http:
            server.process.send_signal(signal.SIGHUP)
            sleep(0.3)
            assert http.get("/health").status_code == 200
            assert server.end(signal.SIGTERM) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
