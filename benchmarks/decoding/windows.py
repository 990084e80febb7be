"""Measure a draft model's guesses by how much of a long prompt it has prefilled.

Prompts are concatenated documents with a question; the target decodes greedily. The share of its
tokens that are the draft's first guess, or among its first four, is counted for windows that are
prefilled at once, and for windows that grow block by block, as `duodec.backends.drafter.window`
lets them:

    python -m benchmarks.decoding.windows --data FOLDER --sizes 1000,4000,7500 --limit 3
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import RESULTS
from duodec import LLM, Finished, SamplingParams
from duodec.backends.drafter.window import NUM_FIRST, Window
from duodec.backends.llamacpp.context import LlamaContext
from duodec.backends.llamacpp.model import LlamaModel
from duodec.bench.card import environment
from duodec.core.draft import Draft
from duodec.core.protocols import RowQuery
from duodec.core.sampling import Tokens
from duodec.models import ALIASES, resolve

WINDOWS = (64, 128, 256, 512, 1024, 2048)  # and the whole text
WHOLE = 0
FILES = ("rag.jsonl", "summarization.jsonl")
QUESTIONS = (
    "Summarize the texts above in detail, one paragraph for each text.",
    "Which people and places are named in the texts above? List them with one sentence on each.",
    "What happened in the last text above? Explain it step by step.",
)
_NUM_TOP = 4
_SLOT = 0


def documents(folder: Path) -> list[str]:
    """One of each file in turn."""
    lists = [
        [json.loads(line)["turns"][0] for line in (folder / name).read_text("utf-8").splitlines()]
        for name in FILES
    ]
    return [document for several in zip(*lists, strict=False) for document in several]


def prompts(engine: LLM, texts: list[str], size: int, limit: int) -> Iterator[list[int]]:
    """``limit`` prompts of at most ``size`` tokens, each with other documents."""
    for number in range(limit):
        prompt: list[int] = []
        body = ""
        for i in count(10 * number):
            body += texts[i % len(texts)] + "\n\n"
            question = QUESTIONS[number % len(QUESTIONS)]
            longer = engine.tokens_of([{"role": "user", "content": body + question}])
            if prompt and len(longer) > size:
                break
            prompt = list(longer)
        yield prompt


class Guesser:
    """A draft model that guesses every token of a known completion at once."""

    def __init__(self, model: LlamaModel, text: Tokens, answer: list[int], threads: int) -> None:
        self._text, self._answer = text, answer
        self.context = LlamaContext(
            model,
            num_context=len(text) + len(answer) + 256,
            num_sequences=8,
            num_threads=threads,
            max_rows=len(answer) + 1,
            num_chunk=128,
            num_first=NUM_FIRST,
        )

    def start(self, window: int) -> None:
        begin = len(self._text) - window if 0 < window < len(self._text) else 0
        self.context.start_at(_SLOT, self._text, begin)

    def grow(self, window: int) -> None:
        """Add older text, block by block, until so much is cached."""
        part, wanted = self.context.part(_SLOT), window or len(self._text)
        rule = Window(2 * len(self._text))
        while part.begin and len(self._text) - part.begin < wanted:
            num_seen = len(self._text) - part.begin
            num_tokens = min(rule.block(num_seen), wanted - num_seen)
            is_open = self.context.open_block(_SLOT, max(0, part.begin - num_tokens))
            assert is_open, "the cache holds all of the text"
            while part.num_to_come:
                self.context.read_block(_SLOT, 128)

    def hits(self) -> np.ndarray:
        """How many tokens of the completion are the first guess, and how many are among the
        first."""
        chain = Draft.chain(self._answer[:-1])
        (rows,) = self.context.rows(
            [RowQuery(_SLOT, self._text, chain, tuple(range(len(chain) + 1)))]
        )
        logits, answer = np.array(rows), np.array(self._answer)[:, None]
        top = np.argsort(-logits, axis=1)[:, :_NUM_TOP]
        return np.array([(top[:, :1] == answer).sum(), (top == answer).any(axis=1).sum()])


def shares(
    model: LlamaModel, pairs: list[tuple[list[int], list[int]]], threads: int
) -> dict[str, dict[str, list[float]]]:
    """By kind of prefill and window: the share of first guesses, and of the first few."""
    sums: dict[tuple[str, int], np.ndarray] = {}
    num_tokens = sum(len(answer) for _, answer in pairs)
    for prompt, answer in pairs:
        guesser = Guesser(model, np.array(prompt, dtype=np.int32), answer, threads)
        for window in (*WINDOWS, WHOLE):
            guesser.start(window)
            sums[("in one go", window)] = sums.get(("in one go", window), 0) + guesser.hits()
        guesser.start(WINDOWS[1])
        for window in (*WINDOWS[1:], WHOLE):
            guesser.grow(window)
            sums[("joined", window)] = sums.get(("joined", window), 0) + guesser.hits()
        guesser.context.close()
    found: dict[str, dict[str, list[float]]] = {"in one go": {}, "joined": {}}
    for (way, window), hits in sums.items():
        found[way][str(window or "whole")] = np.round(hits / num_tokens, 3).tolist()
    return found


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    target: Annotated[str, typer.Option(help="The target.")] = "smollm2",
    sizes: Annotated[
        str, typer.Option(help="Tokens of a prompt, comma-separated.")
    ] = "1000,4000,7500",
    limit: Annotated[int, typer.Option(help="Prompts of each size.")] = 3,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    threads: Annotated[int, typer.Option(help="Of the draft model.")] = 1,
) -> None:
    """Print the shares and add them to the results, by draft and size."""
    draft = ALIASES[target].draft
    assert draft, "the alias of a target with a default draft"
    pairs: dict[int, list[tuple[list[int], list[int]]]] = {}
    with LLM.load(target=target, draft=None) as engine:
        for size in map(int, sizes.split(",")):
            for prompt in prompts(engine, documents(data), size, limit):
                *_, last = engine.stream(prompt, SamplingParams(max_tokens=max_tokens), method="ar")
                assert isinstance(last, Finished)
                pairs.setdefault(size, []).append((prompt, list(last.tokens)))
                print(f"{len(prompt)} tokens answered with {len(last.tokens)}", flush=True)
    model = LlamaModel(resolve(draft).path, num_gpu_layers=0)
    found: dict[str, Any] = {}
    for size, answered in pairs.items():
        found[str(size)] = {
            "prompt_tokens": [len(prompt) for prompt, _ in answered],
            "answer_tokens": sum(len(answer) for _, answer in answered),
            **shares(model, answered, threads),
        }
        print(size, found[str(size)], flush=True)
    path = RESULTS / "windows.json"
    results = json.loads(path.read_text("utf-8")) if path.exists() else {"drafts": {}}
    results["environment"] = environment()
    known = results["drafts"].setdefault(draft, {"sizes": {}})
    known.update(target=target, num_first=NUM_FIRST)
    known["sizes"].update(found)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
