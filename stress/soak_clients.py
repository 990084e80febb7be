"""Ask a server as many clients do, some of whom leave, and check every answer."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter, sleep
from typing import Any

import httpx
from benchmarks.serving.servers import Served

from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM
from duodec_lab.bench.tasks import read_prompts

METHODS = ("stream", "auto", "duo", "sps", "pearl", "lookup", "ar", "lookahead", "recycling")
CONTEXT = 1024
_TASKS = ("mt_bench", "qa", "math_reasoning", "rag")
_MOST_CHARS = 200  # of a prompt
_LONGEST_STAY_S = 1.2


@dataclass(frozen=True)
class Case:
    """A request and what must be answered."""

    prompt: str
    sampling: SamplingParams
    max_tokens: int
    text: str

    def body(self, method: str, *, is_streamed: bool) -> dict[str, Any]:
        return {
            "prompt": self.prompt, "max_tokens": self.max_tokens, "seed": self.sampling.seed,
            "temperature": self.sampling.temperature, "speculation": {"method": method},
            **({"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}),
        }  # fmt: skip


@dataclass
class Part:
    """What became of the requests of one part."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_left: int = 0
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    left_tokens: int = 0  # that those who left could have had at most
    left_prompts: int = 0  # tokens

    def moved(self, name: str) -> float:
        """A counter's move over this part, over its labels."""
        return sum(
            sign * value
            for sign, counters in ((1, self.after), (-1, self.before))
            for key, value in counters.items()
            if key.split("{")[0] == name
        )


def cases(data: Path, number: int) -> list[Case]:
    """Requests of all sorts, answered by the library, plainly, one after the other."""
    dice = random.Random(7)
    texts = [prompt.turns[0][:_MOST_CHARS] for prompt in read_prompts(data, _TASKS, number // 4)]
    made = []
    with LLM.load(context=CONTEXT, draft=None) as engine:
        for i, text in enumerate(texts):
            sampling = SamplingParams(temperature=(0.0, 0.7, 1.1)[i % 3], seed=i)
            max_tokens = dice.randint(2, 8)
            *_, last = engine.stream(text, replace(sampling, max_tokens=max_tokens), method="ar")
            assert isinstance(last, Finished)
            made.append(Case(text, sampling, max_tokens, last.text))
    return made


def part(
    served: Served, pool: Sequence[Case], numbers: range, num_clients: int, leavers: float,
    seed: int,
) -> Part:  # fmt: skip
    """The requests of these numbers; this share of the clients leaves."""
    done, lock = Part(before=served.counters()), Lock()
    waiting = iter(numbers)

    def client() -> None:
        # the server closes connections that wait, to make room, so none is used twice
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=served.url, timeout=600, limits=limits) as http:
            while True:
                with lock:
                    i = next(waiting, None)
                if i is None:
                    return
                dice = random.Random(seed * 1_000_003 + i)
                case = dice.choice(pool)
                body = case.body(dice.choice(METHODS), is_streamed=dice.random() < 0.5)
                if dice.random() < leavers:
                    _leave(served, body, dice)
                    with lock:
                        done.num_left += 1
                        done.left_tokens += case.max_tokens
                        done.left_prompts += CONTEXT
                else:
                    _ask(http, body, case, done, lock)

    threads = [Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_idle(served)
    done.after = served.counters()
    return done


def _ask(http: httpx.Client, body: dict[str, Any], case: Case, done: Part, lock: Lock) -> None:
    """One request until it is answered; who is told to come back does."""
    while True:
        response = http.post("/v1/completions", json=body)
        answer, problem = _read(response, case)
        with lock:
            done.statuses[response.status_code] += 1
            if problem:
                done.wrong.append(f"{body['speculation']} {problem}")
            elif answer:
                done.answers.append(answer)
        if response.status_code != 429:
            return
        sleep(0.2)


def _read(response: httpx.Response, case: Case) -> tuple[dict[str, Any] | None, str | None]:
    """What was answered, with its last words; or what is wrong with it."""
    if response.status_code != 200:
        error = response.json().get("error", {})
        is_clean = set(error) == {"message", "type", "param", "code"}
        is_busy = response.status_code == 429 and "retry-after" in response.headers
        return None, None if is_clean and is_busy else f"{response.status_code} {error}"
    answer: dict[str, Any]
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
        chunks = [json.loads(line[6:]) for line in lines[:-1]]
        if lines[-1] != "data: [DONE]" or "error" in chunks[-1]:
            return None, f"a stream ended with {lines[-2:]}"
        text = "".join(c["text"] for chunk in chunks for c in chunk["choices"])
        answer = chunks[-1]
    else:
        answer = response.json()
        text = answer["choices"][0]["text"]
    return (answer, None) if text == case.text else (None, f"said {text!r}, not {case.text!r}")


def _leave(served: Served, body: dict[str, Any], dice: random.Random) -> None:
    """Ask, and hang up at some moment."""
    data = json.dumps(body).encode()
    with socket.create_connection(served.address) as sock, suppress(OSError):
        if dice.random() < 0.5:  # a reset in place of an end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
        )
        sock.settimeout(0.05)
        end_s = perf_counter() + dice.random() ** 2 * _LONGEST_STAY_S
        while perf_counter() < end_s:
            with suppress(TimeoutError):
                if not sock.recv(1 << 16):
                    return


def slots(served: Served) -> list[dict[str, Any]]:
    response = httpx.get(f"{served.url}/slots", timeout=60, verify=False)  # quicker, without TLS
    found: list[dict[str, Any]] = response.json()
    return found


def wait_idle(served: Served) -> None:
    while (
        any(slot["is_processing"] for slot in slots(served))
        or served.counters()["duodec:num_requests_waiting"]
    ):
        sleep(0.05)


def noticing_s(served: Served, pool: Sequence[Case], number: int) -> list[float]:
    """Seconds from a client's leaving until its slot is free."""
    dice, found = random.Random(3), []
    for _ in range(number):
        case = dice.choice(pool)
        body = {**case.body("stream", is_streamed=True), "max_tokens": 600, "logit_bias": {}}
        data = json.dumps(body).encode()
        sock = socket.create_connection(served.address)
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
        )
        sleep(dice.random() * 0.3)
        is_busy = any(slot["is_processing"] for slot in slots(served))
        sock.close()
        left_s = perf_counter()
        while any(slot["is_processing"] for slot in slots(served)):
            sleep(0.002)
        if is_busy:
            found.append(perf_counter() - left_s)
    return found
