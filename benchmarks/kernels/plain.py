"""Compare plain decoding on a CPU with llama.cpp's own server, by the length of the text.

The same file, threads and tokens; turns alternate. "default" is ours, exact at every width; "fast"
is llama.cpp's own choice of kernels in our build. llama.cpp's server is that of the package
xllamacpp, from another environment, with its own defaults:

    python -m benchmarks plain --python OTHER/bin/python
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import typer

from benchmarks import Figures
from benchmarks.serving.servers import Served, llama_cpp
from duodec.core.events import Finished
from duodec.core.sampling import SamplingParams
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.machine.cores import available_cores
from duodec.models import resolve

SETTINGS = ("default", "fast")
LLAMA = "llama.cpp's server"


def ours(engine: LLM, prompt: list[int], num_tokens: int) -> float:
    """Tokens a second after the first."""
    *_, last = engine.stream(
        prompt, SamplingParams(logit_bias=_no_end(engine), max_tokens=num_tokens), method="ar"
    )
    assert isinstance(last, Finished)
    return last.stats.tokens_per_second


def theirs(served: Served, prompt: list[int], num_tokens: int) -> float:
    """The same for llama.cpp's server, by its own count."""
    body = {
        "prompt": prompt,
        "n_predict": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    answer = httpx.post(f"{served.url}/completion", json=body, timeout=600).json()
    return float(answer["timings"]["predicted_per_second"])


def _no_end(engine: LLM) -> dict[int, float]:
    tokenizer = engine.tokenizer
    return {t: float("-inf") for t in range(tokenizer.num_vocab) if tokenizer.is_end(t)}


def main(
    python: Annotated[Path, typer.Option(help="Of an environment with xllamacpp.")],
    target: Annotated[str, typer.Option()] = "smollm2",
    lengths: Annotated[str, typer.Option(help="Tokens, comma-separated.")] = "100,1500,4000",
    num_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    repeats: Annotated[int, typer.Option(help="Turns of each.")] = 5,
    exact: Annotated[bool, typer.Option(help="Our default with exact matrices.")] = False,
) -> Figures:
    """Tokens a second and ratios to llama.cpp's server, medians."""
    path = resolve(target).path
    texts = [int(length) for length in lengths.split(",")]
    num_context = max(texts) + num_tokens + 64
    prose = (Path(__file__).parents[2] / "LICENSE").read_text() * 4
    rates: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        served = stack.enter_context(
            llama_cpp(
                python,
                path,
                num_context=num_context,
                num_slots=1,
                num_threads=len(available_cores()),
                is_unified=False,
            )
        )
        engines: dict[str, LLM] = {}
        for setting in SETTINGS:
            config = EngineConfig(
                target=target,
                draft=None,
                context=num_context,
                exact=exact and setting != "fast",
                fast=setting == "fast",
            )
            engines[setting] = stack.enter_context(load(config))
        tokens = engines["default"].tokens_of(prose)
        for length in texts:
            prompt = tokens[:length]
            for turn in range(repeats + 1):  # the first one prefills the prompt
                found = {setting: ours(e, prompt, num_tokens) for setting, e in engines.items()}
                found[LLAMA] = theirs(served, prompt, num_tokens)
                if turn:
                    for setting, rate in found.items():
                        rates[setting][length].append(rate)
    table = []
    for setting, by_length in rates.items():
        for length, found_rates in by_length.items():
            pairs = zip(found_rates, rates[LLAMA][length], strict=True)
            ratio = median(own / their for own, their in pairs)
            row = {"setting": setting, "tokens": length, "ratio": ratio, "rates": found_rates}
            table.append(row)
            print(f"{setting:>20} at {length:5}: {median(found_rates):6.1f} tok/s, {ratio:.2f}")
    return {"llama.cpp": served.words, "table": table}
