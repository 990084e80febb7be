"""Time draft steps by the length of the text and the leaves of a step, on one thread.

With flash attention and without it:

    python -m benchmarks steps smollm2-draft qwen2.5-coder-0.5b:1500

A number behind a name is the longest text for it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks import Figures
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.steps import step_times
from tests.models.weights import weights

TEXTS = (100, 500, 1500, 4000, 8000)
LEAVES = (1, 4, 8, 16)


def main(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL[:TOKENS]...")] = None,
) -> Figures:
    """Milliseconds a step."""
    found = {}
    for argument in models or ["smollm2-draft"]:
        name, _, most = argument.partition(":")
        texts = [text for text in TEXTS if text <= int(most or max(TEXTS))]
        with closing(LlamaModel(weights(name), num_gpu_layers=0)) as model:
            times = [
                time
                for uses_flash_attention in (True, False)
                for time in step_times(
                    model,
                    num_threads=1,
                    uses_flash_attention=uses_flash_attention,
                    texts=texts,
                    leaves=LEAVES,
                )
            ]
        found[name] = [asdict(time) for time in times]
        for text in texts:
            cells = []
            for leaves in LEAVES:
                both = [
                    t.seconds * 1e3 for t in times if (t.num_text, t.num_leaves) == (text, leaves)
                ]
                cells.append(f"{leaves}: {both[0]:.2f} / {both[1]:.2f}")
            print(f"{name} after {text} tokens, ms with / without: " + ", ".join(cells), flush=True)
    return {"steps": found}
