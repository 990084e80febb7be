"""Measure what taking back a state costs: forward passes of a tiny hybrid by their width.

With llama.cpp's snapshots, and with copies of the state in their place, as of architectures that it
keeps no snapshots of. In some rounds all draft tokens are accepted, in others one.
States are those of the file given; tests/fakes/tiny_models.py writes one with random weights.

    python -m benchmarks.kernels.recurrent --model HYBRID.gguf
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

from benchmarks import RESULTS
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.recurrent import NUM_SNAPSHOTS, LlamaRecurrent
from duodec.bench.card import environment
from duodec.core.draft import Draft
from duodec.core.protocols import Query

_WIDTHS = (0, 1, 2, 4, 8)
_NUM_RUNS = 40
_NUM_TEXT = 200


def main(
    model: Annotated[Path, typer.Option(help="A GGUF file of a hybrid.")],
    threads: Annotated[int, typer.Option()] = 2,
    name: Annotated[str, typer.Option(help="Of the result file.")] = "recurrent",
) -> None:
    """Print and write medians, in ms (and the bytes of a state); the kinds take turns."""
    found: dict[str, dict[str, list[float]]] = {}
    with closing(LlamaModel(model, num_gpu_layers=0)) as loaded:
        kinds = {"snapshots": NUM_SNAPSHOTS, "copies": 0}
        targets = {
            kind: LlamaRecurrent(
                loaded, num_slots=1, num_context=4096, num_threads=threads, num_snapshots=number
            )
            for kind, number in kinds.items()
        }
        for kind, target in targets.items():
            found[kind] = {"state_bytes": [float(_state_bytes(target))]}
        for _ in range(2):
            for width in _WIDTHS:
                for kind, target in targets.items():
                    for accepted in ("all", "one"):
                        key = f"{width} draft tokens, {accepted} accepted"
                        found[kind].setdefault(key, []).extend(_rounds(target, width, accepted))
        for target in targets.values():
            target.close()
    figures = {
        kind: {key: round(median(values), 3) for key, values in own.items()}
        for kind, own in found.items()
    }
    for kind, own in figures.items():
        for key, value in own.items():
            print(f"{kind:10} {key:34} {value}")
    record = {"environment": environment(), "model": model.name, "threads": threads,
              "figures": figures}  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _state_bytes(target: LlamaRecurrent) -> int:
    target.score([Query(0, np.arange(1, 5, dtype=np.int32))])
    return int(target._lib.llama_state_seq_get_size_ext(target._handle, 0, 1))


def _rounds(target: LlamaRecurrent, width: int, accepted: str) -> list[float]:
    """Milliseconds of rounds with a chain of so many tokens."""
    text = list(range(1, _NUM_TEXT))
    target.score([Query(0, np.array(text, dtype=np.int32))])
    times = []
    for i in range(_NUM_RUNS):
        chain = [300 + (i + j) % 200 for j in range(width)]
        query = Query(0, np.array(text, dtype=np.int32), Draft.chain(chain))
        times.append(_ms(lambda query=query: target.score([query])))  # type: ignore[misc]
        text += [*(chain if accepted == "all" else chain[:1]), 600 + i]
    return times


def _ms(work: Callable[[], object]) -> float:
    begin_s = perf_counter()
    work()
    return 1e3 * (perf_counter() - begin_s)


if __name__ == "__main__":
    typer.run(main)
