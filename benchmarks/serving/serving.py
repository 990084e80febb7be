"""Compare our server with llama.cpp's on the same file, and with plain decoding, at many clients.

`load` requests the same greedy texts of both servers, streamed, with end tokens banned, at several
numbers of clients; the two take turns at every load, `--repeats` times, and medians are compared. A
rate counts the tokens that arrive while all clients are active: the last responses do not represent
a server under load. `paced` measures our server with a target slowed to `--pace-ms` a forward pass,
plainly and with `auto`.

    python -m benchmarks serving --data FOLDER --llama-python ENVIRONMENT/bin/python
    python -m benchmarks serving-paced --data FOLDER

Clients, servers and all run on one machine and share its cores.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

from benchmarks import Figures, markdown
from benchmarks.serving.servers import Served, llama_cpp, ours
from duodec.backends.llamacpp.model import LlamaModel
from duodec.machine.busy import OtherPrograms
from duodec.models import resolve
from duodec_lab.bench.tasks import read_prompts

_CLIENTS = "1,2,4,8,16"
_TASKS = ("mt_bench", "qa", "math_reasoning", "humaneval")
_MOST_CHARS = 600  # of a prompt: decoding is measured, not prefill
_CONTEXT = 1024
_DISTURBED = 0.15  # cores
_MOST_TRIES = 4

Data = Annotated[Path, typer.Option(help="Prompts, in Spec-Bench's format.")]
Repeats = Annotated[int, typer.Option(help="Of every load.")]
Tokens = Annotated[int, typer.Option(help="Of a completion.")]
Clients = Annotated[str, typer.Option(help="At once, separated by commas.")]
Target = Annotated[str, typer.Option(help="A name or a file.")]


@dataclass(frozen=True)
class Setting:
    """A way to decode: a server, and what requests say of speculation."""

    name: str
    server: Served
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One request as its client saw it."""

    num_tokens: int
    num_accepted: int  # of them drafted
    begin_s: float  # when it was sent
    pieces: list[tuple[float, str]]  # when they arrived

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text."""
        return next((at for at, text in self.pieces if text), math.nan) - self.begin_s

    @property
    def rate(self) -> float:
        """Tokens a second of the whole request."""
        return self.num_tokens / (self.pieces[-1][0] - self.begin_s)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    def num_before(self, end_s: float) -> float:
        """Tokens that had arrived by then, by their share of the text."""
        arrived = sum(len(text) for second, text in self.pieces if second <= end_s)
        return self.num_tokens * arrived / max(1, len(self.text))


@dataclass(frozen=True)
class Turn:
    """One load in one setting."""

    setting: str
    num_clients: int
    num_tokens: float  # that arrived while all clients were active
    seconds: float  # of that time
    accepted: float  # of all tokens, the share that was drafted
    ttft_s: list[float]
    texts: list[str]
    other_cores: float = 0.0  # that other programs kept busy

    @property
    def rate(self) -> float:
        """Tokens a second, of all clients together."""
        return self.num_tokens / self.seconds


async def ask(served: Served, body: dict[str, Any], path: str = "completions") -> Answer:
    """One streamed completion, or a chat's. The reading is plain: it runs on the servers' cores."""
    host, port = served.address
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection(host, port)
    begin_s = perf_counter()
    head = (
        f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    lines: list[tuple[float, bytes]] = []
    async for line in reader:
        if line.startswith(b"data: {"):
            lines.append((perf_counter(), line[6:]))  # noqa: PERF401  plain, as said
    writer.close()
    chunks = [json.loads(line) for _, line in lines]
    if not chunks or "usage" not in chunks[-1]:
        raise SystemExit(f"{served.url} did not answer: {lines[-1:]}")
    pieces = [
        (second, "".join(map(_text, chunk["choices"])))
        for (second, _), chunk in zip(lines, chunks, strict=True)
    ]
    drafted = (chunks[-1].get("metrics") or {}).get("speculative_decoding") or {}
    num_accepted = drafted.get("num_accepted_draft_tokens", 0)
    num_tokens = chunks[-1]["usage"]["completion_tokens"]
    return Answer(num_tokens, num_accepted, begin_s, pieces)


def _text(choice: dict[str, Any]) -> str:
    """Of a completion's piece, or of a chat's."""
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


async def turn(setting: Setting, bodies: Sequence[dict[str, Any]], num: int) -> Turn:
    """Run so many clients at once, until all requests are complete."""
    waiting = iter(bodies)
    answers: list[Answer] = []

    async def client() -> float:
        for body in waiting:
            answers.append(await ask(setting.server, {**body, **setting.body}))  # noqa: PERF401  others do, too
        return perf_counter()

    begin_s = perf_counter()
    end_s = min(await asyncio.gather(*(client() for _ in range(num))))
    num_tokens = sum(answer.num_before(end_s) for answer in answers)
    accepted = sum(a.num_accepted for a in answers) / sum(a.num_tokens for a in answers)
    firsts, texts = [a.ttft_s for a in answers], [a.text for a in answers]
    return Turn(setting.name, num, num_tokens, end_s - begin_s, accepted, firsts, texts)


class Requests:
    """Prompts, the same for every setting in a turn."""

    def __init__(self, data: Path, model: Path, num_tokens: int) -> None:
        with closing(LlamaModel(model, vocabulary_only=True, num_gpu_layers=0)) as vocabulary:
            ends = [t for t in range(vocabulary.num_vocab) if vocabulary.is_end(t)]
        self._shape = {
            "temperature": 0, "max_tokens": num_tokens,
            "logit_bias": {str(token): -100 for token in ends},
        }  # fmt: skip
        found = [prompt.turns[0] for prompt in read_prompts(data, _TASKS, None)]
        self._prompts = cycle([text for text in found if len(text) <= _MOST_CHARS])
        self._numbers = count(100)

    def take(self, number: int) -> list[dict[str, Any]]:
        return [{**self._shape, "prompt": p} for p in islice(self._prompts, number)]

    def numbered(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Number the prompts, so that no server has seen them before."""
        number = next(self._numbers)
        return [{**body, "prompt": f"({number}) {body['prompt']}"} for body in bodies]


def summary(turns: Sequence[Turn], names: Sequence[str]) -> list[dict[str, Any]]:
    """By load: medians of the rates, and percentiles of the times to a first token."""
    rows = []
    for num in sorted({t.num_clients for t in turns}):
        row: dict[str, Any] = {"num_clients": num}
        for name in names:
            own = [t for t in turns if t.num_clients == num and t.setting == name]
            firsts = sorted(s for t in own for s in t.ttft_s)
            p99_s = firsts[min(len(firsts) - 1, len(firsts) * 99 // 100)]
            row[name] = {
                "tokens_per_second": round(median(t.rate for t in own), 1),
                "rates": [round(t.rate, 1) for t in own],
                "other_cores": max(t.other_cores for t in own),
                "ttft_p50_ms": round(1e3 * median(firsts), 1),
                "ttft_p99_ms": round(1e3 * p99_s, 1),
                "accepted": round(median(t.accepted for t in own), 3),
            }
        rows.append(row)
    return rows


def ratios(turns: Sequence[Turn], ours: str, theirs: str) -> dict[int, float]:
    """Median over the turns of our rate over theirs, by load; turns are paired in order."""
    found: dict[int, list[float]] = {}
    for num in {t.num_clients for t in turns}:
        pairs = zip(
            (t for t in turns if t.setting == ours and t.num_clients == num),
            (t for t in turns if t.setting == theirs and t.num_clients == num),
            strict=False,
        )
        found[num] = [a.rate / b.rate for a, b in pairs]
    return {num: round(median(found[num]), 3) for num in sorted(found)}


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """As Markdown."""
    cells = [["clients", *(f"{name}, tokens/s (TTFT p50 / p99, ms)" for name in names)]]
    for row in rows:
        own = (row[name] for name in names)
        figures = ("{tokens_per_second} ({ttft_p50_ms} / {ttft_p99_ms})".format(**f) for f in own)
        cells.append([row["num_clients"], *figures])
    return markdown(cells)


def measure(
    requests: Requests, clients: str, repeats: int, settings: Sequence[Setting]
) -> list[Turn]:
    """Measure every load, repeatedly, in settings by turns."""
    turns: list[Turn] = []
    for repeat in range(repeats):
        for num in map(int, clients.split(",")):
            bodies = requests.take(max(4, 3 * num))
            for setting in settings[:: 1 if repeat % 2 else -1]:
                done = undisturbed(setting, requests, bodies, num)
                print(f"{repeat} {done.setting} {num}: {done.rate:.1f} tokens/s", flush=True)
                turns.append(done)
    return turns


def undisturbed(
    setting: Setting, requests: Requests, bodies: Sequence[dict[str, Any]], num: int
) -> Turn:
    """A turn, repeated a few times at most while other programs keep cores busy."""
    for _ in range(_MOST_TRIES):
        others = OtherPrograms()
        done = asyncio.run(turn(setting, requests.numbered(bodies), num))
        num_cores = others.num_cores
        if num_cores < _DISTURBED:
            break
    return replace(done, other_cores=round(num_cores, 2))


def load(
    data: Data,
    llama_python: Annotated[Path, typer.Option(help="A Python that has xllamacpp.")],
    target: Target = "smollm2",
    clients: Clients = _CLIENTS,
    repeats: Repeats = 5,
    max_tokens: Tokens = 64,
    threads: Annotated[int, typer.Option(help="Of each server.")] = 2,
) -> Figures:
    """Our server and llama.cpp's."""
    model = resolve(target).path
    requests, slots = Requests(data, model, max_tokens), max(map(int, clients.split(",")))
    with (
        _our_server(target, slots, "--threads", str(threads)) as own,
        llama_cpp(
            llama_python, model, num_context=_CONTEXT, num_slots=slots, num_threads=threads
        ) as other,
    ):
        settings = [Setting("duodec", own, {}), Setting("llama.cpp", other, {})]
        measure(requests, "2", 1, settings)  # warm
        turns = measure(requests, clients, repeats, settings)
        words = other.words
    facts = {"llama_cpp": words, "by_llama_cpp": ratios(turns, "duodec", "llama.cpp")}
    return _figures(turns, settings, facts)


def paced(
    data: Data,
    target: Target = "smollm2",
    clients: Clients = _CLIENTS,
    repeats: Repeats = 3,
    max_tokens: Tokens = 32,
    pace_ms: Annotated[float, typer.Option(help="Of a forward pass, at least.")] = 100.0,
) -> Figures:
    """`auto` and plain decoding over a slowed target."""
    requests = Requests(data, resolve(target).path, max_tokens)
    slots = max(map(int, clients.split(",")))
    with _our_server(target, slots, "--pace", str(pace_ms / 1e3)) as served:
        methods = ("ar", "auto")
        settings = [Setting(name, served, {"speculation": {"method": name}}) for name in methods]
        turns = measure(requests, clients, repeats, settings)
    return _figures(turns, settings, {"by_plain": ratios(turns, "auto", "ar")})


def _our_server(target: str, slots: int, *options: str) -> AbstractContextManager[Served]:
    return ours("-m", target, "--parallel", str(slots), "--context", str(_CONTEXT), *options)


def _figures(turns: Sequence[Turn], settings: Sequence[Setting], facts: Figures) -> Figures:
    names = [setting.name for setting in settings]
    rows = summary(turns, names)
    print(table(rows, names))
    counted = [{**asdict(one), "texts": len(one.texts)} for one in turns]
    return {**facts, "loads": rows, "turns": counted}
