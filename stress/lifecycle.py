"""Start and stop servers at bad moments, and leave them: nothing hangs, fails or stays behind.

    python -m stress.lifecycle signals --num 200
    python -m stress.lifecycle works --num 3
    python -m stress.lifecycle disconnects --num 5000
    python -m stress.lifecycle cache
    python -m stress.lifecycle clock

Each prints what it saw, and ends with status 1 where something is wrong. The model is the shipped
draft, so that it is the server that works.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, sleep
from typing import Annotated

import httpx
import psutil
import typer
from benchmarks.serving.servers import Served, ours

import duodec
from stress.attack import memory_mb
from stress.attackers import explosive

app = typer.Typer(add_completion=False)
_MODEL = str(Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf")
_OPTIONS = ("-m", _MODEL, "--draft", "none", "--context", "256")
_LONGEST_S = 15.0  # from a signal to the end of a server with nothing in work
_CHILDREN_S = 3.0  # in which those that it started end
_CLIENTS = 16
_BEGUN = """
import sys
sys.argv[:1] = ["duodec", "serve"]
from duodec.__main__ import main
print("begun", flush=True)
main()
"""
_GRACE_S, _MOST_S = 1, 7.0  # of a server that is at work, and what docs/server.md says of its end
_AT_ONCE_S = 1.0  # from a second signal
_BLOCKED = """
from duodec.server.service import Service
Service.props = lambda service, name: {}
"""
_PROMPT = "The quick brown fox jumps over the lazy dog. " * 400
_SCHEMA = {"max_tokens": 1, "prompt": "a", "structured_outputs": {"json": explosive(0)}}
_WORKS: dict[str, tuple[str, str | None, dict[str, object] | None]] = {
    "idle": ("", None, None),
    "decoding": ("", "/v1/completions", {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}),
    "a long prefill": ("", "/v1/completions", {"prompt": _PROMPT, "max_tokens": 1}),
    "compiling a grammar": ("", "/v1/completions", _SCHEMA),
    "a loop blocked in Python": (_BLOCKED.format("exec('while True: pass')"), "/props", None),
    "a loop blocked in C": (
        _BLOCKED.format("sum(__import__('itertools').repeat(1))"),
        "/props",
        None,
    ),
}  # what is patched, what is requested then, and its body
_JUMPING = """
import random, sys, time
plain, dice = time.time, random.Random(1)
time.time = lambda: plain() + dice.choice((-1e9, -86400, -3600, 0, 0, 3600, 86400, 1e9))
from duodec.cli.app import main
main()
"""


def _ask(url: str, seed: int = 1, **fields: object) -> str:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "seed": seed, "temperature": 0.8}
    response = httpx.post(f"{url}/v1/completions", json={**body, **fields}, timeout=120)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


@app.command()
def signals(
    num: Annotated[int, typer.Option(help="Starts.")] = 200,
    longest_s: Annotated[float, typer.Option(help="Before the signal.")] = 6.0,
    seed: int = 1,
) -> None:
    """End servers by one or two signals at random moments, from the first on."""
    dice, ended, wrong = random.Random(seed), Counter[str](), 0
    slowest_s = 0.0
    for i in range(num):
        after_s, second_s = dice.random() * longest_s, dice.choice((None, None, 0.01, 0.3))
        number = dice.choice((signal.SIGINT, signal.SIGTERM))
        command = [sys.executable, "-c", _BEGUN, "--port", "0", *_OPTIONS]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sleep(after_s)
            begin_s = perf_counter()
            process.send_signal(number)
            if second_s is not None:
                sleep(second_s)
                process.send_signal(number)
            try:
                _, err = process.communicate(timeout=_LONGEST_S)
                status = str(process.returncode)
            except subprocess.TimeoutExpired:
                process.kill()
                err, status = process.communicate()[1], "hung"
        slowest_s = max(slowest_s, perf_counter() - begin_s)
        moment = "served" if b" ready " in err else "loading" if b"serving" in err else "importing"
        ended[f"{moment}: {status}"] += 1
        end_s = perf_counter() + _CHILDREN_S
        while (stayed := _running(process.pid)) and perf_counter() < end_s:
            sleep(0.05)
        is_wrong = status != "0" or b"Traceback" in err or bool(stayed)
        wrong += is_wrong
        if is_wrong:
            print("FAILED", i, number, round(after_s, 2), second_s, status, err[-500:], stayed)
    print(json.dumps({"starts": num, "ended": ended, "wrong": wrong, "slowest_s": slowest_s}))
    raise SystemExit(min(wrong, 1))


@app.command()
def works(
    num: Annotated[int, typer.Option(help="Servers for each kind of work.")] = 3, seed: int = 1
) -> None:
    """End servers that are at work by one or two signals: status 0, in time, nothing left."""
    dice, wrong = random.Random(seed), 0
    slowest_s: dict[str, float] = {}
    for name, (patch, path, body) in _WORKS.items():
        for i in range(num):
            number = dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
            ended = _ended_at_work(patch, path, body, number, num_signals=1 + i % 2)
            slowest_s[name] = max(slowest_s.get(name, 0.0), ended.seconds)
            if not ended.is_right:
                wrong += 1
                print("FAILED", name, ended)
    print(json.dumps({"servers": num * len(_WORKS), "wrong": wrong, "slowest_s": slowest_s}))
    raise SystemExit(min(wrong, 1))


@dataclass(frozen=True)
class _Ended:
    """How a server that was at work ended, this long after the last of its signals."""

    number: int
    num_signals: int
    status: int | None
    seconds: float
    err: str
    stayed: tuple[str, ...]  # processes that it left

    @property
    def is_right(self) -> bool:
        most_s = _MOST_S if self.num_signals == 1 else _AT_ONCE_S
        is_clean = "Traceback" not in self.err and not self.stayed
        return self.status == 0 and self.seconds <= most_s and is_clean


def _ended_at_work(
    patch: str, path: str | None, body: object, number: int, num_signals: int
) -> _Ended:
    program = _BEGUN.replace("main()", f"{patch}main()")
    options = ("--port", "0", "--grace", str(_GRACE_S), "-m", _MODEL, "--draft", _MODEL)
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *options], stdout=subprocess.DEVNULL, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        read = Path(log.name).read_text
        try:
            while " ready " not in read():
                assert process.poll() is None, read()
                sleep(0.1)
            url = read().split(" at ")[1].split(",")[0]
            if path is not None:
                Thread(target=_leave_request, args=(url + path, body), daemon=True).start()
                sleep(1.0)  # it is at work
            for _ in range(num_signals):
                begin_s = perf_counter()
                process.send_signal(number)
                sleep(0.05 if num_signals > 1 else 0)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LONGEST_S)
            seconds, status = perf_counter() - begin_s, process.poll()
            end_s = perf_counter() + _CHILDREN_S
            while (stayed := _running(process.pid)) and perf_counter() < end_s:
                sleep(0.05)
            names = tuple(map(str, stayed))
            return _Ended(number, num_signals, status, seconds, read()[-500:], names)
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _leave_request(url: str, body: object) -> None:
    with suppress(httpx.TransportError):
        if body is None:
            httpx.get(url, timeout=60)
        else:
            httpx.post(url, json=body, timeout=60)


def _running(session: int) -> list[psutil.Process]:
    """The processes of a session that have not ended, whoever has yet to hear of it."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            is_own = os.getsid(process.pid) == session
            if is_own and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@app.command()
def disconnects(num: Annotated[int, typer.Option(help="Clients that leave.")] = 5000) -> None:
    """Leave in the middle of requests of all kinds; the server is then as it was before."""
    with ours(*_OPTIONS) as served:
        texts = [_ask(served.url, seed) for seed in range(4)]
        asyncio.run(_leave(served, num // 10))  # buffers have grown, threads have begun
        before = _state(served)
        begin_s = perf_counter()
        asyncio.run(_leave(served, num))
        seconds = perf_counter() - begin_s
        sleep(2)
        after = _state(served)
        same = [_ask(served.url, seed) for seed in range(4)] == texts
        refused = {k: v for k, v in served.counters().items() if "requests_refused_total" in k}
        log = served.log.read_text()
    is_right = (
        same and after["files"] <= before["files"] + 4 and after["threads"] <= before["threads"] + 4
        and after["memory_mb"] <= 1.05 * before["memory_mb"] and after["in work"] == 0
        and "Traceback" not in log and not any('"5' in name for name in refused)
    )  # fmt: skip
    print(json.dumps({"left": num, "seconds": round(seconds, 1), "before": before, "after": after,
                      "same": same, "refused": refused}))  # fmt: skip
    raise SystemExit(not is_right)


def _state(served: Served) -> dict[str, float]:
    process, counters = psutil.Process(served.pid), served.counters()
    kinds = ("preparing", "running", "waiting")
    return {
        "files": process.num_fds(), "threads": process.num_threads(),
        "memory_mb": round(memory_mb(served), 1),
        "in work": sum(counters[f"duodec:num_requests_{kind}"] for kind in kinds),
    }  # fmt: skip


async def _leave(served: Served, num: int) -> None:
    numbers = iter(range(num))

    async def client() -> None:
        for number in numbers:
            await _left(served.address, number)

    await asyncio.gather(*(client() for _ in range(_CLIENTS)))


async def _left(address: tuple[str, int], number: int) -> None:
    """A request whose client leaves: while it sends, is answered, or has more in its pipeline."""
    dice = random.Random(number)
    body = json.dumps({
        "prompt": "Once upon a time", "max_tokens": 200, "stream": dice.random() < 0.6,
        "n": dice.choice((1, 1, 3)),
    }).encode()  # fmt: skip
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    data = head % len(body) + body
    if dice.random() < 0.2:
        data += data
    elif dice.random() < 0.2:
        data = data[: dice.randrange(len(data))]
    _, writer = await asyncio.open_connection(*address)
    with suppress(ConnectionError):
        writer.write(data)
        await asyncio.sleep(dice.random() * dice.choice((0.0, 0.03, 0.3)))
    writer.transport.abort()


@app.command()
def cache(num: Annotated[int, typer.Option(help="Servers.")] = 2) -> None:
    """Start servers at once on one new cache: all of them serve, and the same."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["DUODEC_CACHE"] = folder
        logs = [Path(folder) / f"log-{i}" for i in range(num)]
        for log in logs:
            file = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "duodec", "serve", "--port", "0", *_OPTIONS], stderr=file
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        end_s = perf_counter() + 400
        while not all(b" ready " in log.read_bytes() for log in logs):
            assert perf_counter() < end_s, [log.read_text() for log in logs]
            sleep(0.2)
        urls = [log.read_text().split(" at ")[1].split(",")[0] for log in logs]
        texts = {_ask(url) for url in urls}
    print(json.dumps({"servers": num, "texts": len(texts)}))
    raise SystemExit(len(texts) != 1)


@app.command()
def clock(num: Annotated[int, typer.Option(help="Requests.")] = 50) -> None:
    """Serve while the clock jumps by seconds, days and decades."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", _JUMPING, "serve", "--port", "0", *_OPTIONS], stderr=file
            )
        try:
            while b" ready " not in log.read_bytes():
                assert process.poll() is None, log.read_text()
                sleep(0.2)
            url = log.read_text().split(" at ")[1].split(",")[0]
            texts = Counter(_ask(url, max_tokens=20) for _ in range(num))
            begin_s = perf_counter()
        finally:
            process.terminate()
            status = process.wait(60)
        is_right = len(texts) == 1 and status == 0 and "Traceback" not in log.read_text()
    ended_s = round(perf_counter() - begin_s, 1)
    print(json.dumps({"requests": num, "texts": len(texts), "status": status, "ended_s": ended_s}))
    raise SystemExit(not is_right)


if __name__ == "__main__":
    app()
