"""`duodec vllm` starts vLLM's own server, and OpenAI's client talks to it as to any other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
from fakes import ROOT

_START_S = 240.0

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is missing; run make test-vllm"),
    pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="needs the repository"),
    pytest.mark.timeout(400),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Its address and process."""
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.vllm.checkpoint", "smollm2"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log"
    command = [
        str(Path(sys.executable).parent / "duodec"), "vllm",
        made.stdout.split()[-1], "--draft", "smollm2-draft",
        "--cores", str(cores[-1]), "--on-fault", "refuse", "-k", "4", "--",
        "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024",
        "--max-num-seqs", "4", "--served-model-name", "small",
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(cores[0]),
    }  # fmt: skip
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        end = perf_counter() + _START_S
        while not _answers(address):
            assert running.poll() is None, log.read_text()[-3000:]
            assert perf_counter() < end, log.read_text()[-3000:]
            sleep(0.5)
        yield address, running.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def test_the_openai_client_is_answered_and_drafts_are_counted(server: tuple[str, int]) -> None:
    import openai

    address, _ = server
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "Count from one to twenty in words."}],
            temperature=0,
            max_tokens=48,
        )
        pieces = client.completions.create(
            model="small", prompt="Once upon a time", temperature=0.8, max_tokens=16, stream=True
        )
        assert "".join(piece.choices[0].text for piece in pieces)
    assert answer.choices[0].message.content
    sleep(1.0)  # counters are told twice a second
    with urlopen(f"{address}/metrics", timeout=10) as found:
        text = found.read().decode()
    assert "vllm:spec_decode_num_draft_tokens_total" in text
    assert any(
        line.startswith("duodec:steps_total") and float(line.split()[-1]) > 10
        for line in text.splitlines()
    )


def test_the_drafter_dies_with_the_server(server: tuple[str, int]) -> None:
    """The last test of this server: it kills it."""
    _, pid = server
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    drafters = [p for p in family if any("duodec-vllm" in word for word in p.cmdline())]
    assert len(drafters) == 1
    for process in family:
        if process not in drafters:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    gone, _ = psutil.wait_procs(drafters, timeout=10)
    assert gone == drafters
