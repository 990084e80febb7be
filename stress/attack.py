"""Attack a server while a client streams: does the client feel it, does anything stay?

New clients stream the same answers: alone, while the attacks of `attackers` go on, and alone again.
The two parts without attackers count as one: a server that has answered the same questions before
drafts what it said, several tokens at once, and so has longer times between events. Another client
asks /health all the time. At the end a line a criterion: the same texts, the time between a
client's events, /health, memory.

    python -m stress.attack [--only slow_loris]
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Thread
from time import perf_counter, sleep
from typing import Annotated, Any

import httpx
import numpy as np
import psutil
import typer
from benchmarks import RESULTS
from benchmarks.serving.servers import Served, ours

from duodec_lab.bench.card import environment
from stress.attackers import ATTACKS, unexpected

_MOST_SLOWER = 3.0  # p99 between two events, with attackers and without
_MOST_HEALTH_S = 0.1
_MOST_MORE_MB = 300  # of memory, at any time
_PAUSE_S = 0.25  # of an attacker
_NUM_TOKENS = 48
_QUESTIONS = (
    "Why is the sky blue?", "Write a poem about the sea.", "How do I boil an egg?",
    "Name the planets.", "What is a prime number?", "Tell me a story of a fox.",
)  # fmt: skip


@dataclass
class Part:
    """What the clients saw for some time."""

    texts: list[str] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)  # two events with text of an answer
    first_s: list[float] = field(default_factory=list)  # from the request to the first of them
    health_s: list[float] = field(default_factory=list)
    num_unhealthy: int = 0
    cpu: dict[str, float] = field(default_factory=dict)  # seconds by process, and the wall's
    loop_s: float = 0.0  # the event loop's longest delay in the last minute, by the server itself

    def plus(self, other: Part) -> Part:
        """Both as one."""
        return Part(
            self.texts + other.texts,
            self.between_s + other.between_s,
            self.first_s + other.first_s,
            self.health_s + other.health_s,
            self.num_unhealthy + other.num_unhealthy,
            {name: self.cpu[name] + other.cpu[name] for name in self.cpu},
            max(self.loop_s, other.loop_s),
        )

    def figures(self) -> dict[str, float]:
        def ms(values: list[float], share: float) -> float:
            return round(1e3 * float(np.percentile(values, share)), 1)

        return {
            "answers": len(self.texts),
            "between_p50_ms": ms(self.between_s, 50),
            "between_p99_ms": ms(self.between_s, 99),
            "first_p50_ms": ms(self.first_s, 50),
            "first_p99_ms": ms(self.first_s, 99),
            "health_p50_ms": ms(self.health_s, 50),
            "health_p99_ms": ms(self.health_s, 99),
            "health_max_ms": ms(self.health_s, 100),
            "loop_max_ms": round(1e3 * self.loop_s, 1),
            "unhealthy": self.num_unhealthy,
            **self.cpu,
        }


def part(served: Served, num_answers: int) -> Part:
    """Stream so many answers, and ask for the server's health meanwhile."""
    found, before, begin_s = Part(), _cpu(served), perf_counter()
    with _asking_health(served, found):
        for i in range(num_answers):  # verify=False: quicker, without TLS
            with httpx.Client(base_url=served.url, timeout=120, verify=False) as http:
                _stream(http, i % len(_QUESTIONS), found)
    found.cpu = {
        "server_cpu_s": round(_cpu(served) - before, 1),
        "wall_s": round(perf_counter() - begin_s, 1),
    }
    found.loop_s = served.counters()["duodec:event_loop_delay_max_seconds"]
    print(json.dumps(found.figures()), flush=True)
    return found


def _stream(http: httpx.Client, number: int, found: Part) -> None:
    body = {
        "messages": [{"role": "user", "content": _QUESTIONS[number]}], "seed": number,
        "temperature": 0.7, "max_tokens": _NUM_TOKENS, "stream": True,
    }  # fmt: skip
    begin_s, text = perf_counter(), ""
    times: list[float] = []
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            found.texts.append(f"{response.status_code} {response.read()!r}")
            sleep(0.2)
            return
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                new = "".join(c["delta"].get("content") or "" for c in chunk["choices"])
                if not new:  # the role, at once, and the end
                    continue
                if not times:
                    found.first_s.append(perf_counter() - begin_s)
                times.append(perf_counter())
                text += new
    found.texts.append(text)
    found.between_s += [b - a for a, b in pairwise(times)]


_HEALTH = """
import json, socket, sys, time
host, port = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
while True:
    time.sleep(0.05)
    begin_s = time.perf_counter()
    with socket.create_connection((host, port), timeout=30) as sock:
        sock.sendall(b"GET /health HTTP/1.1\\r\\nHost: [::1]\\r\\nConnection: close\\r\\n\\r\\n")
        is_well = sock.recv(4096).startswith(b"HTTP/1.1 200")
    print(json.dumps([time.perf_counter() - begin_s, is_well]), flush=True)
"""


@contextmanager
def _asking_health(served: Served, found: Part) -> Iterator[None]:
    """Over a connection of its own each time, as a load balancer does; in a process of its own,
    which waits for nothing that the other client does."""
    command = [sys.executable, "-c", _HEALTH, *map(str, served.address)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        lines: list[str] = []
        reading = Thread(target=lambda: lines.extend(process.stdout or ()))
        reading.start()
        try:
            yield
        finally:
            process.terminate()
            reading.join()
    answers = [json.loads(line) for line in lines if line.endswith("]\n")]
    found.health_s = [seconds for seconds, _ in answers]
    found.num_unhealthy = sum(not is_well for _, is_well in answers)


def _cpu(served: Served) -> float:
    process = psutil.Process(served.pid)
    own = process.cpu_times()
    return sum((own.user, own.system, own.children_user, own.children_system))


def memory_mb(served: Served) -> float:
    """Of the server and the processes that it started."""
    process = psutil.Process(served.pid)
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            total += one.memory_info().rss
    return total / 1e6


@contextmanager
def attacked(served: Served, pause_s: float, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """While every attack goes on, or these do, with pauses; what they got is there at the end."""
    ended: dict[str, Any] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "stress.attackers", served.url, str(pause_s), *names],
        stdout=subprocess.PIPE,
    )
    try:
        yield ended
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        ended.update(json.loads(out or b"{}"))  # nothing, if it had just begun


def main(
    num_answers: Annotated[int, typer.Option(min=12, help="While attacked, and without.")] = 60,
    settle_s: Annotated[float, typer.Option(help="After the attack, before memory is read.")] = 5.0,
    only: Annotated[list[str] | None, typer.Option(help="Attacks; all without it.")] = None,
) -> None:
    """Print what the clients saw; status 1 if a criterion does not hold."""
    if unknown := set(only or ()) - {family.name for family in ATTACKS}:
        raise typer.BadParameter(f"there is no attack {', '.join(sorted(unknown))}")
    with ours("--draft", "smollm2-draft") as served:
        part(served, len(_QUESTIONS))  # methods have learned, buffers have grown
        before = part(served, num_answers // 2)
        before_mb = memory_mb(served)
        with attacked(served, _PAUSE_S, only or ()) as ended:
            sleep(5)  # all of them are there
            under = part(served, num_answers)
            during_mb = memory_mb(served)
        after = part(served, num_answers // 2)
        sleep(settle_s)
        after_mb = memory_mb(served)
    alone = before.plus(after)
    slower, later = (
        under.figures()[name] / alone.figures()[name] for name in ("between_p99_ms", "first_p50_ms")
    )
    growth = after_mb / before_mb - 1
    more_mb = max(during_mb, after_mb) - before_mb
    odd = unexpected(ended)
    criteria = {
        "the same texts": all(
            text == before.texts[i % len(_QUESTIONS)]
            for part_ in (before, under, after)
            for i, text in enumerate(part_.texts)
        ),
        f"p99 between events {slower:.2f} times that without": slower <= _MOST_SLOWER,
        f"/health {1e3 * max(under.health_s):.0f} ms at most": max(under.health_s) < _MOST_HEALTH_S,
        f"memory {more_mb:+.0f} MB at most, {growth:+.1%} at the end": more_mb <= _MOST_MORE_MB,
        f"statuses {', '.join(odd) or 'as they should be'}": not odd,
    }
    found = {
        "environment": environment(),
        "alone": alone.figures(), "under_attack": under.figures(),
        "memory_mb": {"before": before_mb, "during": during_mb, "after": after_mb},
        "attacks": ended,
        "criteria": criteria,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    name = "-".join(["attack", *(only or ())])
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1))
    print(json.dumps({k: v for k, v in found.items() if k != "environment"}, indent=1))
    for words, holds in criteria.items():
        print("pass" if holds else "FAIL", words)
    print(f"the first token after {later:.2f} times that without (median)")
    if not all(criteria.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
