"""Ask for the other model again and again: do the first one's clients feel it?

    python -m stress.two_models --seconds 240

A server has space for one of two models. A client completes short texts on the first one: alone,
and while another client asks for the second one whenever it has its last response. At the end a
line a criterion: the same texts, the time that a completion takes, and that the other client is
served, too. Both models are the shipped draft, so that it is the exchange that costs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Annotated

import httpx
import numpy as np
import typer
from benchmarks.serving.servers import Served, ours

import duodec

_MODEL = str(Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf")
_OPTIONS = ("-m", _MODEL, "--alias", "first", "--also", f"other={_MODEL}", "--draft", "none",
            "--context", "256", "--api-key", "steady", "--api-key", "other")  # fmt: skip
_MOST_SLOWER = 3.0  # p99 of a completion, with the other client and without
_TIMEOUT_S = 600.0


def _ask(http: httpx.Client, model: str, seed: int, key: str) -> tuple[int, str]:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 12, "seed": seed,
            "temperature": 0.8}  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}
    response = http.post("/v1/completions", json=body, headers=headers)
    text = response.json()["choices"][0]["text"] if response.status_code == 200 else response.text
    return response.status_code, str(text)


def _steady(served: Served, seconds: float) -> tuple[list[float], dict[int, set[str]]]:
    """How long each completion took, and the texts by seed."""
    took_s, texts = list[float](), dict[int, set[str]]()
    with httpx.Client(base_url=served.url, timeout=_TIMEOUT_S) as http:
        end_s = perf_counter() + seconds
        while (begin_s := perf_counter()) < end_s:
            seed = len(took_s) % 5
            status, text = _ask(http, "first", seed, "steady")
            assert status == 200, text
            took_s.append(perf_counter() - begin_s)
            texts.setdefault(seed, set()).add(text)
    return took_s, texts


@contextmanager
def _other_client(served: Served) -> Iterator[Counter[int]]:
    """One that asks for the other model all the time; the statuses of its responses."""
    statuses, is_over = Counter[int](), Event()

    def work() -> None:
        with httpx.Client(base_url=served.url, timeout=_TIMEOUT_S) as http:
            while not is_over.is_set():
                statuses[_ask(http, "other", 1, "other")[0]] += 1

    thread = Thread(target=work)
    thread.start()
    try:
        yield statuses
    finally:
        is_over.set()
        thread.join()


def main(
    seconds: Annotated[float, typer.Option(help="With the other client; half without.")] = 240.0,
) -> None:
    """Print what the steady client saw; status 1 if a criterion does not hold."""
    with ours(*_OPTIONS) as served:
        alone_s, texts = _steady(served, seconds / 2)
        with _other_client(served) as statuses:
            under_s, others = _steady(served, seconds)
        num_loaded = served.log.read_text().count('"message": "loaded"')

    def p99(took_s: list[float]) -> float:
        return float(np.percentile(took_s, 99))

    slower = p99(under_s) / p99(alone_s)
    found = {
        "alone": {"num": len(alone_s), "p99_s": p99(alone_s), "max_s": max(alone_s)},
        "with_other": {"num": len(under_s), "p99_s": p99(under_s), "max_s": max(under_s)},
        "others_statuses": statuses,
        "num_loaded": num_loaded,  # after the first
    }
    criteria = {
        "the same texts": all(len(texts[seed] | others[seed]) == 1 for seed in others),
        f"p99 of a completion {slower:.2f} times that alone": slower <= _MOST_SLOWER,
        f"the other client has {statuses[200]} responses, and no other status": (
            statuses[200] > 0 and set(statuses) == {200}
        ),
    }
    print(json.dumps(found, indent=1))
    for words, holds in criteria.items():
        print("pass" if holds else "FAIL", words)
    sys.exit(not all(criteria.values()))


if __name__ == "__main__":
    typer.run(main)
