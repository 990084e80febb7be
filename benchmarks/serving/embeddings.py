"""Compare our embeddings and ranks with those of llama.cpp's server, and how fast both are.

The models have the shapes of real ones and random weights: times are those of real ones, and the
weights magnify roundings. Each server computes the same texts, one by one and many at once. Times
are taken by turns, in requests of so many texts, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks import SCRATCH, Figures, markdown
from benchmarks.made_embedders import RANK, SHAPES, words, write_embedder
from benchmarks.serving.servers import Served, llama_cpp, native, ours
from duodec.machine.busy import OtherPrograms

Rows = NDArray[np.float64]
_NUM_TEXTS, _NUM_TIMED, _NUM_QUERIES, _NUM_DOCUMENTS = 24, 32, 8, 16
_LENGTHS = (4, 9, 17, 33, 60, 101)  # words of a text, in turn
_DISTURBED = 0.15  # cores
_MOST_TRIES = 4
_WARM = 4  # requests
_POOLINGS = {2: "cls", 3: "last", 4: "rank"}

Of = Annotated[str, typer.Option(help="Shapes of models, separated by commas.")]
Kinds = Annotated[str, typer.Option(help="Formats of weights, separated by commas.")]


def texts(number: int, seed: int) -> list[str]:
    """Texts of random words, each a token or two."""
    known = list(islice(words(), 4000))
    dice = np.random.default_rng(seed)
    return [
        " ".join(dice.choice(known, _LENGTHS[i % len(_LENGTHS)]).tolist()) for i in range(number)
    ]


class Client:
    """Asks a server."""

    def __init__(self, served: Served) -> None:
        self._http = httpx.Client(base_url=served.url, timeout=600.0)
        self.num_tokens = 0  # of all texts so far

    def embed(self, given: Sequence[str]) -> Rows:
        """An embedding a text."""
        told = self._asked("/v1/embeddings", {"input": list(given)})
        data = sorted(told["data"], key=lambda one: int(one["index"]))
        return np.array([one["embedding"] for one in data])

    def rank(self, query: str, documents: Sequence[str]) -> Rows:
        """A score a document."""
        told = self._asked("/v1/rerank", {"query": query, "documents": list(documents)})
        scores = np.empty(len(documents))
        for one in told["results"]:
            scores[one["index"]] = one["relevance_score"]
        return scores

    def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        done = self._http.post(path, json=body)
        if done.status_code != 200:
            raise SystemExit(f"{done.url} responds with {done.status_code}: {done.text[:300]}")
        told: dict[str, Any] = done.json()
        self.num_tokens += told["usage"]["prompt_tokens"]
        return told


def distance(a: Rows, b: Rows) -> dict[str, float]:
    """Between rows of length 1: the largest difference of a number, and of a row by its length."""
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    return {
        "absolute": float(f"{np.abs(a - b).max():.2e}"),
        "relative": float(f"{np.linalg.norm(a - b, axis=1).max():.2e}"),
    }


def embedded(own: Client, other: Client) -> dict[str, Any]:
    """How far embeddings are apart."""
    given = texts(_NUM_TEXTS, 1)
    alone = [np.concatenate([client.embed([text]) for text in given]) for client in (own, other)]
    together = [client.embed(given) for client in (own, other)]
    return {
        "dims": alone[0].shape[1],
        "ours_to_theirs": distance(alone[0], alone[1]),
        "ours_to_theirs_together": distance(together[0], together[1]),
        "ours_alone_to_together": distance(alone[0], together[0]),
        "theirs_alone_to_together": distance(alone[1], together[1]),
    }


def ranked(own: Client, other: Client) -> dict[str, Any]:
    """How far scores are apart, and in how many lists the order is the same."""
    num_equal, farthest, closest = 0, 0.0, math.inf
    queries, documents = texts(_NUM_QUERIES, 2), texts(_NUM_DOCUMENTS, 3)
    for query in queries:
        a, b = own.rank(query, documents), other.rank(query, documents)
        num_equal += bool((np.argsort(-a, kind="stable") == np.argsort(-b, kind="stable")).all())
        farthest = max(farthest, float(np.abs(a - b).max()))
        closest = min(closest, float(np.diff(np.sort(a)).min()))
    return {
        "lists": len(queries),
        "documents": len(documents),
        "equal_orders": num_equal,
        "absolute": float(f"{farthest:.2e}"),
        "closest_neighbours": float(f"{closest:.2e}"),
    }


def timed(client: Client, given: Sequence[str], size: int, *, ranks: bool) -> dict[str, float]:
    """Texts and tokens a second in requests of so many texts, repeated while others disturb."""
    for _ in range(_MOST_TRIES):
        others, before, begin_s = OtherPrograms(), client.num_tokens, perf_counter()
        for begin in range(0, len(given), size):
            part = given[begin : begin + size]
            if ranks:
                client.rank(given[0], part)
            else:
                client.embed(part)
        taken_s, num_cores = perf_counter() - begin_s, others.num_cores
        if num_cores < _DISTURBED:
            break
    return {
        "texts_per_second": round(len(given) / taken_s, 1),
        "tokens_per_second": round((client.num_tokens - before) / taken_s, 1),
        "other_cores": round(num_cores, 2),
    }


def rates(
    own: Client, other: Client, sizes: Sequence[int], repeats: int, *, ranks: bool
) -> list[dict[str, Any]]:
    """By texts of a request: medians of both, of turns that change their order."""
    clients = {"duodec": own, "llama.cpp": other}
    rows = []
    for size in sizes:
        given = texts(max(_NUM_TIMED, size), 4)
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
        for repeat in range(repeats + 1):
            for name in [*clients][:: 1 if repeat % 2 else -1]:
                found = timed(clients[name], given, size, ranks=ranks)
                turns[name] += [found] if repeat else []  # the first warms
        ratios = [
            a["texts_per_second"] / b["texts_per_second"]
            for a, b in zip(turns["duodec"], turns["llama.cpp"], strict=True)
        ]
        medians = {
            name: {key: round(median(one[key] for one in found), 1) for key in found[0]}
            for name, found in turns.items()
        }
        most = {name: max(one["other_cores"] for one in found) for name, found in turns.items()}
        rows.append(
            {"texts_of_a_request": size, **medians, "ratio": round(median(ratios), 3),
             "ratios": [round(one, 3) for one in ratios], "most_other_cores": most}
        )  # fmt: skip
        print(f"  {size} texts a request: {medians}, ratio {rows[-1]['ratio']}", flush=True)
    return rows


@contextmanager
def _theirs(
    binary: Path | None, python: Path | None, model: Path, pooling: int, slots: int, threads: int
) -> Iterator[Served]:
    """llama.cpp's server with as many slots as a request may have texts."""
    context = SHAPES[model.stem.partition(".")[0]].num_context
    if binary is not None:
        options = [
            "--embedding", "--pooling", _POOLINGS[pooling], "-c", str(slots * context),
            "-np", str(slots), "-b", "2048", "-ub", "2048", "-t", str(threads),
            "-tb", str(threads), "--no-webui",
        ]  # fmt: skip
        with native(binary, "-m", str(model), *options) as served:
            yield served
        return
    if python is None:
        raise SystemExit("name llama.cpp's server: --llama-server FILE, or --llama-python FILE")
    kind = f"xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_{_POOLINGS[pooling].upper()}"
    lines = (
        f"params.embedding, params.pooling_type = True, {kind}\n"
        "params.n_batch = params.n_ubatch = 2048\n"
    )
    with llama_cpp(
        python, model, num_context=context, num_slots=slots, num_threads=threads, lines=lines
    ) as served:
        yield served


def main(
    llama_server: Annotated[Path | None, typer.Option(help="llama.cpp's own program.")] = None,
    llama_python: Annotated[Path | None, typer.Option(help="A Python with xllamacpp.")] = None,
    models: Of = "bge-small,qwen3-embedding-6-layers,minilm-reranker",
    kinds: Kinds = "F16,Q8_0",
    batches: Annotated[str, typer.Option(help="Texts of a request.")] = "1,8,32",
    repeats: Annotated[int, typer.Option(help="Turns of each server; 0: no times.")] = 5,
    threads: Annotated[int, typer.Option(help="Of each server.")] = 2,
) -> Figures:
    """Our server and llama.cpp's, on the same files."""
    sizes = [int(size) for size in batches.split(",")]
    found: dict[str, Any] = {}
    words_of_theirs = ""
    SCRATCH.mkdir(exist_ok=True)
    for name in models.split(","):
        for kind in kinds.split(","):
            path = SCRATCH / f"{name}.{kind.lower()}.gguf"
            if not path.exists():
                write_embedder(path, name, kind)
            pooling = SHAPES[name].pooling
            print(f"{path.name}:", flush=True)
            with ExitStack() as open_:
                own = open_.enter_context(ours("-m", str(path), "--threads", str(threads)))
                other = open_.enter_context(
                    _theirs(llama_server, llama_python, path, pooling, max(sizes), threads)
                )
                words_of_theirs = other.words
                clients = Client(own), Client(other)
                is_rank = pooling == RANK
                values = (ranked if is_rank else embedded)(*clients)
                print(f"  {values}", flush=True)
                speeds = rates(*clients, sizes, repeats, ranks=is_rank) if repeats else []
            found[f"{name}, {kind}"] = {"values": values, "rates": speeds}
    print(_table(found))
    return {"llama_cpp": words_of_theirs, "models": found}


def _table(found: dict[str, Any]) -> str:
    cells: list[list[object]] = [["model", "texts of a request", "duodec", "llama.cpp", "ratio"]]
    for name, own in found.items():
        for row in own["rates"]:
            each = [f"{row[who]['texts_per_second']} texts/s" for who in ("duodec", "llama.cpp")]
            cells.append([name, row["texts_of_a_request"], *each, row["ratio"]])
    return markdown(cells)
