"""A plugin of pytest under which the suites of llama.cpp and vLLM run against `duodec serve`.

It runs in an environment of its own, without duodec: servers are processes of another Python. Tests
that want the same options share a server. What a suite imports of vLLM is absent, and says so.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import types
import zlib
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import anthropic
import httpx2 as httpx  # of the openai client
import openai
import pytest
import requests
from reasons import LLAMA_OPTIONS, LLAMA_USES, VLLM_OPTIONS

_START_S = 120
_OBEYING = "test_structured_output|test_namespace_tool"  # of a text that follows the request
_ABSENT = (
    "vllm", "torch", "transformers", "datasets", "schemathesis", "wget", "huggingface_hub", "PIL",
    "mteb", "safetensors",
)  # fmt: skip
_OF_TESTS = ("tests.models", "tests.conftest")  # vLLM's, of which these tests have no part
_RESULTS = Path(os.environ["PEER_RESULTS"])
_SMOLLM2, _REASONING, _WRONG, _EMBEDDER, _RERANKER, _SEEING = (
    os.environ[f"PEER_{name}"]
    for name in ("MODEL", "REASONING", "WRONG", "EMBEDDER", "RERANKER", "SEEING")
)
_refusals: list[tuple[int, str, str]] = []  # of the test that runs: status, path, what was said


class Servers:
    """`duodec serve` with some options, until others are wanted."""

    options: tuple[str, ...] | None = None
    port = 0
    process: subprocess.Popen[bytes] | None = None

    def use(self, *options: str) -> int:
        """The port of a server with these options."""
        if options != self.options:
            self.stop()
            self._start(options)
        return self.port

    def _start(self, options: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [
            os.environ["PEER_PYTHON"], "-m", "duodec", "serve", "--port", str(self.port), *options,
        ]  # fmt: skip
        with _RESULTS.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end_s = time.monotonic() + _START_S
        while not self._is_ready():
            assert time.monotonic() < end_s, "the server did not start"
            assert self.process.poll() is None, "the server ended; its log says why"
            time.sleep(0.2)
        self.options = options

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.options = None
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


SERVERS = Servers()


def refuse(option: str, why: str) -> None:
    """Skip a test, whose server needs an option that has no counterpart here."""
    pytest.skip(f"n/a: {option}: {why}")


# --- llama.cpp: its class of a server starts ours


def _adapt_llama(root: Path) -> None:
    sys.path.insert(0, str(root))
    import utils

    utils.ServerProcess.start = _start
    utils.ServerProcess.stop = lambda self: None
    utils.ServerPreset.load_all = staticmethod(lambda: None)  # which downloads models
    utils.download_file = lambda url: url  # of models, in whose place others are served
    _adapt_requests(utils.ServerProcess)
    # texts that other models write: only that they are texts is asserted
    utils.match_regex = lambda regex, text: isinstance(text, str)
    utils.re = types.SimpleNamespace(match=utils.match_regex, sub=re.sub)


def _start(self: Any, timeout_seconds: int = 0) -> None:
    for option, why in LLAMA_OPTIONS.items():
        if vars(self).get(option):
            refuse(option, why)
    options = _model(self)
    options += ["--alias", self.model_alias or "tinyllama-2"]
    if self.api_key:
        options += ["--api-key", self.api_key]
    if self.n_slots:
        options += ["--parallel", str(self.n_slots)]
    options += ["--context", str(min((self.n_ctx or 2048) // (self.n_slots or 1), 2048))]
    self.server_port = SERVERS.use(*options, *_draft(self))


def _model(server: Any) -> list[str]:
    """The options that name what stands in for a test's model."""
    wanted = f"{server.model_hf_repo} {server.chat_template_file}"
    if "tinygemma3" in wanted:
        if server.server_embeddings:
            refuse("server_embeddings", LLAMA_USES["server_embeddings"])
        return [
            "-m", f"{_SEEING}/model.gguf", "--mmproj", f"{_SEEING}/mmproj-model-f32.gguf",
            "--chat-template", f"{_SEEING}/template.jinja",
        ]  # fmt: skip
    if server.server_embeddings:
        if server.pooling == "none":
            refuse("pooling", LLAMA_USES["pooling"])
        return ["-m", _EMBEDDER]
    if server.server_reranking:
        return ["-m", _RERANKER]
    is_reasoning = re.search("DeepSeek-R1|Qwen3-0.6B", wanted)
    return ["-m", _REASONING if is_reasoning else _SMOLLM2]


def _draft(server: Any) -> list[str]:
    """Of the tests with and without a draft model, which always drafts, where there is one."""
    if server.model_alias != "stories15m-moe":
        return []
    if server.model_draft is None:
        return ["--draft", "none", "--method", "ar"]
    rates = vars(server).get("spec_synth_rates")
    if rates and any(rates):
        refuse("spec_synth_rates", "drafts are accepted if they are right, not by chance")
    # where no draft may be accepted, one that is never right
    return ["--draft", _WRONG if rates else "smollm2-draft", "--method", "sps"]


def _fingerprint(body: Any) -> None:
    """Theirs is a build of llama.cpp, of which the tests want the first letter; ours is null."""
    if isinstance(body, dict) and body.get("system_fingerprint", "") is None:
        body["system_fingerprint"] = "b"


def _adapt_requests(process: Any) -> None:
    stream, request, any_request = (
        process.make_stream_request, process.make_request, process.make_any_request,
    )  # fmt: skip

    def streamed(self: Any, *arguments: Any, **options: Any) -> Any:
        """A stream begins with OpenAI's empty content, theirs with null."""
        for number, event in enumerate(stream(self, *arguments, **options)):
            _fingerprint(event)
            for choice in event.get("choices", ()) if number == 0 else ():
                if choice.get("delta", {}).get("content") == "":
                    choice["delta"]["content"] = None
            yield event

    def requested(self: Any, method: str, path: str, data: Any = None, *more: Any, **o: Any) -> Any:
        """The tests of drafts ask /v1/completions in place of llama.cpp's own path."""
        if self.model_alias != "stories15m-moe":
            response = request(self, method, path, data, *more, **o)
            _fingerprint(response.body)
            return response
        data = {k: v for k, v in data.items() if k not in ("n_predict", "return_tokens")} | {
            "max_tokens": data.get("n_predict", self.n_predict), "return_token_ids": True,
        }  # fmt: skip
        response = request(self, method, "/v1/completions", data, *more, **o)
        for choice in response.body.get("choices", ()):
            response.body |= {"content": choice["text"], "tokens": choice["token_ids"]}
        return response

    def any_requested(
        self: Any, method: str, path: str, data: Any = None, *more: Any, **o: Any
    ) -> Any:
        """Whether a tool is called is the model's choice: one is expected, but after a result."""
        if data.get("tools") and "tool_choice" not in data:
            has_result = data["messages"][-1]["role"] == "tool"
            data = {**data, "tool_choice": "none" if has_result else "required"}
        return any_request(self, method, path, data, *more, **o)

    process.make_stream_request, process.make_request = streamed, requested
    process.make_any_request = any_requested


# --- vLLM: the class that its tests start a server with


class RemoteOpenAIServer:
    """What the tests use of vLLM's own."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(self, model: str, arguments: list[str], **options: Any) -> None:
        for option, why in VLLM_OPTIONS.items():
            if any(str(word).split("=")[0] == option for word in arguments):
                refuse(option, why)
        test = os.environ["PYTEST_CURRENT_TEST"]
        is_reasoning = "--reasoning-parser" in arguments and not re.search(_OBEYING, test)
        served = _REASONING if is_reasoning else _SMOLLM2
        options = ["-m", served, "--context", "4096"]
        if "pooling/" in test:
            is_ranking = re.search("rerank|cross-encoder|ms-marco", model, re.IGNORECASE)
            options = ["-m", _RERANKER if is_ranking else _EMBEDDER]
        self.model = model
        self.port = SERVERS.use(*options, "--alias", model)

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def url_root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._client(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._client(options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._client({"base_url": self.url_root, **options}))

    def _client(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0,
            "timeout": 60, **options,
        }  # fmt: skip


class Absent(MagicMock):
    """Something of a library that is not installed."""


class AbsentModule(types.ModuleType):
    __path__: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name=f"{self.__name__}.{name}")


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_absent = name.split(".")[0] in _ABSENT or name.startswith(_OF_TESTS)
        return ModuleSpec(name, self) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _adapt_vllm() -> None:
    """`tests.utils` and its relative spellings are ours."""
    module = AbsentModule("tests.utils")
    module.RemoteOpenAIServer = RemoteOpenAIServer  # type: ignore[attr-defined]
    module.ROCM_EXTRA_ARGS, module.ROCM_ENV_OVERRIDES = [], {}  # type: ignore[attr-defined]
    sys.modules["tests.utils"] = module


# --- hooks


def pytest_unconfigure(config: pytest.Config) -> None:
    SERVERS.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    _refusals.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    is_told = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
    if is_told:
        _write(item.nodeid, report.outcome, str(report.longrepr or ""))
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly:
        for item in session.items:
            _write(item.nodeid, "collected", "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome != "passed":
        _write(report.nodeid, report.outcome, str(report.longrepr))


def _write(test: str, outcome: str, words: str) -> None:
    found = {"test": test, "outcome": outcome, "words": words[-4000:], "refusals": _refusals[-20:]}
    with _RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def _note_refusals() -> None:
    """Remember the statuses of 400 and more that a test is answered with; ask this machine only."""

    def note(status: int, url: str, text: str) -> None:
        if status >= 400:
            _refusals.append((status, f"/{urlsplit(url).path.lstrip('/')}", text[:500]))

    request = requests.Session.request

    def requested(self: Any, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
            if url.endswith(".png"):
                return _picture(url)
            refuse("elsewhere", "what is elsewhere is not fetched for a test")
        response = request(self, method, url, *arguments, **options)
        if response.status_code >= 400:
            note(response.status_code, response.url, response.text)
        return response

    requests.Session.request = requested  # type: ignore[method-assign]
    send, send_async = httpx.Client.send, httpx.AsyncClient.send

    def sent(self: Any, sending: Any, **options: Any) -> Any:
        response = send(self, sending, **options)
        if response.status_code >= 400:
            note(response.status_code, str(sending.url), response.read().decode())
        return response

    async def sent_async(self: Any, sending: Any, **options: Any) -> Any:
        response = await send_async(self, sending, **options)
        if response.status_code >= 400:
            note(response.status_code, str(sending.url), (await response.aread()).decode())
        return response

    httpx.Client.send, httpx.AsyncClient.send = sent, sent_async  # type: ignore[method-assign]


def _picture(url: str) -> requests.Response:
    """A picture in place of one that is elsewhere: 32 by 32 pixels, another one of each address."""
    size, colour = 32, zlib.crc32(url.encode()).to_bytes(4, "big")
    rows = b"".join(
        b"\0" + b"".join(bytes((x * 8, y * 8, own)) for x, own in enumerate(colour * (size // 4)))
        for y in range(size)
    )

    def chunk(name: bytes, data: bytes) -> bytes:
        length, check = len(data).to_bytes(4, "big"), zlib.crc32(name + data).to_bytes(4, "big")
        return length + name + data + check

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    response = requests.Response()
    response.status_code, response.url = 200, url
    response._content = b"".join([
        b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)),
        chunk(b"IEND", b""),
    ])  # fmt: skip
    return response


# before any conftest imports what is adapted
sys.meta_path.insert(0, AbsentFinder())
_note_refusals()
if os.environ["PEER"] == "llama.cpp":
    _adapt_llama(Path(os.environ["PEER_ROOT"]))
else:
    _adapt_vllm()
