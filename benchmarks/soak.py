"""Many requests, clients that leave and a drafter that dies: is every answer right, does anything
grow, do the counters add up?

A pool of requests is answered by the library, plainly and alone: what the server must say to each.
Then clients send them to `duodec serve` again and again, streamed and whole, by every method, with
more clients than there is room for, while the drafter is killed every few seconds. A tenth of the
clients leave at random moments, half of them by a reset, and `attackers` try what they know. In a
calm part nobody leaves or attacks, and counters must be the sums of what the answers said of
themselves, exactly; in the other part what is left of them must be explained by those who left. At
the end the slots' time to notice a client that left is taken.

    python -m benchmarks.soak --data FOLDER
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Event, Lock, Thread
from time import perf_counter, sleep
from typing import Annotated, Any

import httpx
import psutil
import typer

from benchmarks import RESULTS
from benchmarks.attack import attacked
from benchmarks.servers import Served, ours
from duodec.bench.card import environment
from duodec.bench.tasks import read_prompts
from duodec.core.events import Finished
from duodec.core.sampling import SamplingParams
from duodec.llm import LLM

_METHODS = ("stream", "auto", "duo", "sps", "pearl", "lookup", "ar", "lookahead", "recycling")
_TASKS = ("mt_bench", "qa", "math_reasoning", "rag")
_CONTEXT = 1024
_MOST_CHARS = 200  # of a prompt
_LEAVERS = 0.1
_LONGEST_STAY_S = 1.2
_PAUSE_S = 2.0  # of an attacker: they attack for an hour
_MOST_GROWTH = 0.02  # of memory, which moves a little with what is being answered
_COUNTERS = {  # of /metrics: where an answer says the same of itself
    "duodec:generation_tokens_total": lambda a: a["usage"]["completion_tokens"],
    "duodec:prompt_tokens_total": lambda a: a["usage"]["prompt_tokens"],
    "duodec:spec_decode_num_drafts_total": lambda a: _speculative(a, "num_spec_steps"),
    "duodec:spec_decode_num_draft_tokens_total": lambda a: _speculative(a, "num_draft_tokens"),
    "duodec:spec_decode_num_accepted_tokens_total": (
        lambda a: _speculative(a, "num_accepted_draft_tokens")
    ),
    "duodec:near_ties_total": lambda a: a["duodec"]["near_ties"],
}


def _speculative(answer: dict[str, Any], name: str) -> float:
    return float((answer["metrics"]["speculative_decoding"] or {}).get(name, 0))


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
            "stream": is_streamed, "stream_options": {"include_usage": True},
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


@dataclass(frozen=True)
class Sample:
    """What the server's process holds."""

    at_s: float
    rss_mb: float
    num_files: int
    num_threads: int
    num_cells: int  # tokens that the slots know


def cases(data: Path, number: int) -> list[Case]:
    """Requests of all sorts, answered by the library, plainly, one after the other."""
    dice = random.Random(7)
    texts = [prompt.turns[0][:_MOST_CHARS] for prompt in read_prompts(data, _TASKS, number // 4)]
    made = []
    with LLM.load(context=_CONTEXT, draft=None) as engine:
        for i, text in enumerate(texts):
            sampling = SamplingParams(temperature=(0.0, 0.7, 1.1)[i % 3], seed=i)
            max_tokens = dice.randint(2, 8)
            *_, last = engine.stream(text, replace(sampling, max_tokens=max_tokens), method="ar")
            assert isinstance(last, Finished)
            made.append(Case(text, sampling, max_tokens, last.text))
    return made


@contextmanager
def repeating(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do it now and then, meanwhile."""
    over = Event()

    def run() -> None:
        while not over.wait(every_s):
            action()

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def drafters(served: Served) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(served.pid).children():
        with suppress(psutil.NoSuchProcess):  # or it is dead, and not waited for yet
            if any("duodec-draft" in word for word in child.cmdline()):
                found.append(child)
    return found


def part(
    served: Served, pool: Sequence[Case], number: int, num_clients: int, leavers: float, seed: int
) -> Part:
    """So many requests; this share of the clients leaves."""
    done, lock = Part(before=served.counters()), Lock()
    waiting = iter(range(number))

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
                body = case.body(dice.choice(_METHODS), is_streamed=dice.random() < 0.5)
                if dice.random() < leavers:
                    _leave(served, body, dice)
                    with lock:
                        done.num_left += 1
                        done.left_tokens += case.max_tokens
                        done.left_prompts += _CONTEXT
                else:
                    _ask(http, body, case, done, lock)

    threads = [Thread(target=client) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait_idle(served)
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
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
        )
        sock.settimeout(0.05)
        end_s = perf_counter() + dice.random() ** 2 * _LONGEST_STAY_S
        while perf_counter() < end_s:
            with suppress(TimeoutError):
                if not sock.recv(1 << 16):
                    return


def _slots(served: Served) -> list[dict[str, Any]]:
    response = httpx.get(f"{served.url}/slots", timeout=60, verify=False)  # quicker, without TLS
    found: list[dict[str, Any]] = response.json()
    return found


def _wait_idle(served: Served) -> None:
    while (
        any(slot["is_processing"] for slot in _slots(served))
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
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
        )
        sleep(dice.random() * 0.3)
        is_busy = any(slot["is_processing"] for slot in _slots(served))
        sock.close()
        left_s = perf_counter()
        while any(slot["is_processing"] for slot in _slots(served)):
            sleep(0.002)
        if is_busy:
            found.append(perf_counter() - left_s)
    return found


def problems(calm: Part, stormy: Part) -> list[str]:
    """What does not add up."""
    found = []
    for name, of in _COUNTERS.items():
        own = sum(map(of, calm.answers))
        if calm.moved(name) != own:
            found.append(f"{name} moved by {calm.moved(name)} where answers say {own}")
        rest = stormy.moved(name) - sum(map(of, stormy.answers))
        if rest < 0:
            found.append(f"{name} is {-rest} short of what answers say")
    for name, most in (
        ("duodec:generation_tokens_total", stormy.left_tokens),
        ("duodec:prompt_tokens_total", stormy.left_prompts),
    ):
        rest = stormy.moved(name) - sum(map(_COUNTERS[name], stormy.answers))
        if rest > most:
            found.append(f"{name} has {rest} more than answers say, and who left had {most}")
    for done in (calm, stormy):
        ended = done.moved("duodec:request_success_total")
        most = len(done.answers) + done.num_left
        if not len(done.answers) <= ended <= most:
            found.append(f"{ended} answers ended, of {most}")
        refused = done.moved("duodec:requests_refused_total")
        if refused < done.statuses[429]:
            found.append(f"{refused} were refused and {done.statuses[429]} know of it")
    return found


def growth(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """By third: the median of what the process holds."""
    thirds = [samples[len(samples) * i // 3 : len(samples) * (i + 1) // 3] for i in range(3)]
    return {
        name: [median(getattr(sample, name) for sample in third) for third in thirds]
        for name in ("rss_mb", "num_files", "num_threads", "num_cells")
    }


def _growth_of_last_half(samples: Sequence[Sample]) -> float:
    """Of memory: the last quarter's median over that of the one before it, less 1."""
    number = len(samples)
    third, last = samples[number // 2 : 3 * number // 4], samples[3 * number // 4 :]
    return median(s.rss_mb for s in last) / median(s.rss_mb for s in third) - 1


def main(
    data: Annotated[Path, typer.Option(help="Prompts, in Spec-Bench's format.")],
    num_requests: Annotated[int, typer.Option(help="Of the part with leaving clients.")] = 5000,
    num_calm: Annotated[int, typer.Option(help="Of the part in which nobody leaves.")] = 200,
    num_cases: Annotated[int, typer.Option(help="Different requests.")] = 60,
    num_clients: Annotated[int, typer.Option(help="At once.")] = 10,
    kill_s: Annotated[float, typer.Option(help="Between two deaths of the drafter.")] = 5.0,
    output: Annotated[str, typer.Option(help="Name of the results.")] = "soak",
) -> None:
    """Print what became of it; status 1 if anything is wrong."""
    pool = cases(data, num_cases)
    samples: list[Sample] = []
    num_kills = 0
    with ours("--draft", "smollm2-draft", "--context", str(_CONTEXT), "--parallel", "4",
              "--queue", "8") as served:  # fmt: skip
        process = psutil.Process(served.pid)
        begin_s = perf_counter()

        def kill() -> None:
            nonlocal num_kills
            for child in drafters(served):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
                    num_kills += 1

        def sample() -> None:
            cells = sum(slot["n_cached"] for slot in _slots(served))
            samples.append(
                Sample(
                    perf_counter() - begin_s,
                    process.memory_info().rss / 1e6,
                    process.num_fds(),
                    process.num_threads(),
                    cells,
                )
            )

        with repeating(kill, kill_s):
            calm = part(served, pool, num_calm, num_clients, 0.0, 1)
            print(f"calm: {dict(calm.statuses)}, {len(calm.wrong)} wrong", flush=True)
            with attacked(served, _PAUSE_S) as attacks, repeating(sample, 2.0):
                stormy = part(served, pool, num_requests, num_clients, _LEAVERS, 2)
            num_left = stormy.num_left
            stormy.num_left += sum(n for name, n in attacks.items() if name.endswith(" left"))
            stormy.num_left += attacks["num_attackers"]  # that were ended
        seconds = perf_counter() - begin_s
        notices = sorted(noticing_s(served, pool, 40))
        log = served.log.read_text().splitlines()
    wrong = [*calm.wrong, *stormy.wrong, *problems(calm, stormy)]
    if len(calm.answers) + len(stormy.answers) + num_left != num_requests + num_calm:
        wrong.append("a request was lost")
    if (grown := _growth_of_last_half(samples)) > _MOST_GROWTH:
        wrong.append(f"memory grew by {grown:.1%} over the last half")
    wrong += [line for line in log if '"level": "error"' in line or "Traceback" in line][:5]
    facts = {
        "num_requests": num_requests + num_calm,
        "num_right": len(calm.answers) + len(stormy.answers),
        "num_left": num_left,
        "attacks": attacks,
        "growth_of_last_half": round(_growth_of_last_half(samples), 4),
        "num_busy": calm.statuses[429] + stormy.statuses[429],
        "wrong": wrong,
        "num_kills": num_kills,
        "num_restarts": int(stormy.after["duodec:drafter_restarts_total"]),
        "seconds": round(seconds, 1),
        "by_thirds": growth(samples),
        "noticing_ms": {
            "median": round(1e3 * median(notices), 1), "most": round(1e3 * notices[-1], 1)
        },
        "counters": {name: stormy.moved(name) for name in _COUNTERS},
        "of_answers": {name: sum(map(of, stormy.answers)) for name, of in _COUNTERS.items()},
    }  # fmt: skip
    found = {"environment": environment(), **facts, "samples": [asdict(s) for s in samples]}
    (RESULTS / f"{output}.json").write_text(json.dumps(found, indent=1))
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    (RESULTS / f"{output}.md").write_text(
        "# Leaving clients, a dying drafter\n\n" + "\n".join(lines) + "\n"
    )
    print("\n".join(lines))
    if wrong:
        raise SystemExit("something is wrong")


if __name__ == "__main__":
    typer.run(main)
