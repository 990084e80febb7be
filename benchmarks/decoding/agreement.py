"""Measure how often drafts guess the target's next token, by task, on the same greedy texts.

The target answers prompts in Spec-Bench's format. Each draft is asked for every token of each
answer, after the prompt and the answer so far; of a long prompt it reads as much as it would in
use. First guesses and first four are counted.

    python -m benchmarks.decoding.agreement --data FOLDER --drafts OLD.gguf,NEW.gguf
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from benchmarks import RESULTS
from duodec.backends.llamacpp.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.bench.card import environment
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.draft import Draft
from duodec.core.protocols import RowQuery
from duodec.core.sampling import SamplingParams
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.models import resolve

_FIRST = (1, 4)


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    drafts: Annotated[str, typer.Option(help="Names or files, comma-separated.")],
    target: Annotated[str, typer.Option()] = "smollm2",
    limit: Annotated[int, typer.Option(help="Prompts of each task.")] = 10,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 48,
    name: Annotated[str, typer.Option(help="Of the result file.")] = "agreement",
) -> None:
    """Print and write the part of tokens guessed, by draft and task."""
    prompts = read_prompts(data, TASKS, limit)
    params = SamplingParams(max_tokens=max_tokens)
    texts: list[tuple[str, list[int], list[int]]] = []
    with load(EngineConfig(target=target, draft=None, context=8192, num_slots=8)) as llm:
        asked = [llm.tokens_of([{"role": "user", "content": p.turns[0]}]) for p in prompts]
        for i in track(range(0, len(asked), 8), "answers"):
            done = llm.generate(asked[i : i + 8], params, method="ar")
            texts += [
                (prompts[i + j].task, asked[i + j], list(one.tokens)) for j, one in enumerate(done)
            ]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for draft in drafts.split(","):
        hits: dict[str, list[tuple[bool, ...]]] = defaultdict(list)
        for task, own in track(list(texts_of(draft, texts)), draft):
            hits[task] += own
            hits["all"] += own
        found[draft] = {
            task: {
                "positions": len(own),
                **{f"top{k}": sum(hit[i] for hit in own) / len(own) for i, k in enumerate(_FIRST)},
            }
            for task, own in hits.items()
        }
        for task, figures in found[draft].items():
            print(draft, task, json.dumps(figures))
    record = {"environment": environment(), "target": target, "limit": limit,
              "max_tokens": max_tokens, "drafts": found}  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def texts_of(
    draft: str, texts: list[tuple[str, list[int], list[int]]]
) -> Iterator[tuple[str, list[tuple[bool, ...]]]]:
    """Of each text, whether its tokens are among a draft's first guesses."""
    model = LlamaDraftModel(
        LlamaModel(resolve(draft).path, num_gpu_layers=0), num_context=8192, num_threads=2
    )
    for number, (task, prompt, answer) in enumerate(texts):
        query = RowQuery(
            number % 2, np.array(prompt, np.int32), Draft.chain(answer[:-1]),
            tuple(range(len(answer))),
        )  # fmt: skip
        own = []
        for row, token in zip(model.rows(query), answer, strict=True):
            best = np.argpartition(-row, max(_FIRST))[: max(_FIRST)]
            order = best[np.argsort(-row[best])].tolist()
            own.append(tuple(token in order[:k] for k in _FIRST))
        yield task, own
    model.close()


if __name__ == "__main__":
    typer.run(main)
