"""Run servers as separate processes: ours, and llama.cpp's, or a fork's, with the same file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import TypeVar

import httpx

_START_S = 300.0
_MOST_TOLD = 2000  # characters of a log
_T = TypeVar("_T")

_OURS = "from duodec.cli.app import main; main()"
_LLAMA = """
import sys, time
import xllamacpp
path, context, slots, threads = sys.argv[1], *map(int, sys.argv[2:5])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.kv_unified = slots * context, slots, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.port, params.n_gpu_layers, params.verbosity = 0, 0, 0
exec(sys.argv[5])
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
print(xllamacpp.get_system_info(), flush=True)
time.sleep(1e9)
"""


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    url: str
    pid: int
    log: Path
    words: str = ""  # its description of itself

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def counters(self) -> dict[str, float]:
        """The values of /metrics, by name and labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=60, verify=False).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}


@contextmanager
def ours(*options: str) -> Iterator[Served]:
    """`duodec serve` with these options, on a free port; its log goes to a file."""
    command = [sys.executable, "-c", _OURS, "serve", "--port", "0", "--log-format", "json"]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file, _process([*command, *options], stderr=file) as process:
            url = _found(lambda: _first_url(log.read_text()), process)
            _found(lambda: _is_ready(url) or None, process)
            yield Served(url, process.pid, log)


@contextmanager
def llama_cpp(
    python: Path, model: Path, *, num_context: int, num_slots: int, num_threads: int,
    lines: str = "",
) -> Iterator[Served]:  # fmt: skip
    """llama.cpp's server, as xllamacpp of another environment starts it; ``lines`` of Python may
    set more of its ``params``."""
    numbers = (num_context, num_slots, num_threads)
    command = [str(python), "-c", _LLAMA, str(model), *map(str, numbers), lines]
    with (
        TemporaryDirectory() as folder,
        (Path(folder) / "log").open("wb") as file,
        _process(command, stdout=subprocess.PIPE, stderr=file) as process,
    ):
        assert process.stdout is not None
        url, words = (process.stdout.readline().decode().strip() for _ in range(2))
        yield Served(url, process.pid, Path(folder) / "log", words)


@contextmanager
def native(program: Path, *options: str) -> Iterator[Served]:
    """`llama-server` of a build of llama.cpp, or of a fork of it, on a free port; its log goes to a
    file, whose end a SystemExit tells if it does not start."""
    with TemporaryDirectory() as folder:
        port, log = _free_port(), Path(folder) / "log"
        version = subprocess.run([str(program), "--version"], capture_output=True, text=True)
        words = " ".join(f"{version.stdout} {version.stderr}".split())
        url, command = f"http://127.0.0.1:{port}", [str(program), "--port", str(port), *options]
        with (
            log.open("wb") as file,
            _process(command, stdout=file, stderr=subprocess.STDOUT) as process,
        ):
            try:
                _found(lambda: _is_ready(url) or None, process)
            except SystemExit as error:
                end = log.read_text(errors="replace")[-_MOST_TOLD:]
                raise SystemExit(f"{error}\n{end}") from error
            yield Served(url, process.pid, log, words)


@contextmanager
def _process(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=env, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:  # it has ended; its log says why
        return False


def _first_url(log: str) -> str | None:
    _, _, rest = log.partition(" at ")
    url, comma, _ = rest.partition(",")
    return url if comma else None


def _found(look: Callable[[], _T | None], process: subprocess.Popen[bytes]) -> _T:
    end_s = perf_counter() + _START_S
    while perf_counter() < end_s and process.poll() is None:
        if (found := look()) is not None:
            return found
        sleep(0.1)
    raise SystemExit("the server did not start; try the command by hand")
