"""Decode greedily with a program in a process of its own: a server, or a package of another Python.

A decoder answers a chat of one message, and tells when each piece of its text came.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

import psutil

from benchmarks.cpu.obtain import Unavailable, last_line
from benchmarks.serving.servers import Served
from benchmarks.serving.serving import ask

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Completion:
    """A text, and when its pieces came: seconds since the request."""

    num_tokens: int
    pieces: Sequence[tuple[float, str]]

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def first_s(self) -> float:
        """Of the first piece with text. Raises Unavailable for an empty text."""
        for second, text in self.pieces:
            if text:
                return second
        raise Unavailable("it answered with an empty text")

    @property
    def rate(self) -> float:
        """Tokens a second after the first piece, whose share of the tokens is that of its text.
        Raises Unavailable where nothing came after it."""
        texts = [(second, text) for second, text in self.pieces if text]
        if len(texts) < 2 or texts[-1][0] <= texts[0][0]:
            raise Unavailable("its text came in one piece")
        later = 1 - len(texts[0][1]) / len(self.text)
        return self.num_tokens * later / (texts[-1][0] - texts[0][0])


class Decoder(Protocol):
    """A program that is ready."""

    def complete(self, prompt: str, max_tokens: int) -> Completion: ...

    @property
    def peak_bytes(self) -> int:
        """The most memory that its processes have taken, pages of the mapped file among it."""


@dataclass(frozen=True)
class Server:
    """A server of OpenAI's chat completions."""

    served: Served
    body: dict[str, Any] = field(default_factory=dict)  # of each request

    def complete(self, prompt: str, max_tokens: int) -> Completion:
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **self.body}
        found = asyncio.run(ask(self.served, body, "chat/completions"))
        pieces = [(second - found.begin_s, text) for second, text in found.pieces]
        return Completion(found.num_tokens, pieces)

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.served.pid)


@contextmanager
def server(
    started: AbstractContextManager[Served], body: dict[str, Any] | None = None
) -> Iterator[Server]:
    """Raises Unavailable where it does not start, or stops."""
    try:
        with started as served:
            yield Server(served, body or {})
    except (SystemExit, OSError) as error:
        raise Unavailable(last_line(str(error))) from error


@dataclass(frozen=True)
class Worker:
    """worker.py in the Python of another environment."""

    process: subprocess.Popen[str]
    log: IO[str]

    def complete(self, prompt: str, max_tokens: int) -> Completion:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"prompt": prompt, "max_tokens": max_tokens}))
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Unavailable(self._reason()) from error
        return Completion(**self.next())

    def next(self) -> dict[str, Any]:
        """What it says next. Raises Unavailable where it has ended."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise Unavailable(self._reason())
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def peak_bytes(self) -> int:
        return peak_bytes(self.process.pid)

    def _reason(self) -> str:
        status = self.process.wait(60)
        self.log.seek(0)
        return f"ended with {status}: {last_line(self.log.read())}"


@contextmanager
def worker(
    python: Path, engine: str, settings: dict[str, Any], **variables: str
) -> Iterator[Worker]:
    """An engine of worker.py with its settings. Raises Unavailable where it does not start."""
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    command = [str(python), str(WORKER), engine, json.dumps(settings)]
    with (
        TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(
            command, env={**kept, "HF_HUB_OFFLINE": "1", **variables}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ) as process,
    ):  # fmt: skip
        try:
            found = Worker(process, log)
            found.next()  # it is ready
            yield found
        finally:
            process.kill()


def peak_bytes(pid: int) -> int:
    """The most memory of a process, and of each of its children that run: resident pages."""
    try:
        process = psutil.Process(pid)
        return sum(_peak(one) for one in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def _peak(process: psutil.Process) -> int:
    try:
        words = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    except OSError:  # it has ended, or the system has no such file
        return 0
    (line,) = (line for line in words.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10
