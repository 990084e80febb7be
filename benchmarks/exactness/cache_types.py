"""Measure what each format of the cache does to logits, and to their bits at every width.

For each pair of formats: how far logits are from those of a cache in fp16, how often the likeliest
token differs, and how far they move with the width of the forward pass.

    python -m benchmarks.exactness.cache_types smollm2
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import RESULTS
from duodec.backends.llamacpp.caches import CacheTypes
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.llamacpp.trees import LlamaScores
from duodec.bench.card import environment
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from tests.models.weights import weights

WIDTHS = (1, 2, 4, 8, 16)
LENGTHS = (256, 768)
NUM_ROWS = 16
PAIRS = (
    ("f16", "f16"), ("auto", "auto"), ("bf16", "f16"), ("f16", "bf16"), ("bf16", "bf16"),
    ("f32", "f32"), ("q8_0", "f16"), ("f16", "q8_0"), ("q8_0", "q8_0"), ("q5_1", "q5_1"),
    ("q4_0", "q4_0"), ("iq4_nl", "iq4_nl"),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A pair of formats, on the last rows of one text."""

    model: str
    keys: str
    values: str
    num_tokens: int
    moved_by_width: float  # greatest difference of a logit between any width and width 1
    from_fp16: float  # greatest difference from a cache in fp16, at width 1
    mean_from_fp16: float
    num_other_winners: int  # of the rows, at width 1


def rows_of(target: LlamaTarget, tokens: Sequence[int], width: int) -> NDArray[np.float32]:
    """The last rows of a text, so many in each forward pass."""
    start = len(tokens) - NUM_ROWS
    score(target, tokens[:start])
    rows = [
        row
        for i in range(start, len(tokens), width)
        for row in score(target, tokens[: i + 1], tokens[i + 1 : i + width])
    ]
    return np.stack(rows)


def score(
    target: LlamaTarget, text: Sequence[int], draft: Sequence[int] = ()
) -> list[NDArray[np.float32]]:
    (scores,) = target.score([Query(0, np.array(text, np.int32), Draft.chain(draft))])
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


def measure(name: str) -> list[Measured]:
    """Every pair on every length."""
    path = weights(name)
    prose = (Path(__file__).parents[2] / "LICENSE").read_text()
    found: list[Measured] = []
    for length in LENGTHS:
        plain: NDArray[np.float32] | None = None
        for keys, values in PAIRS:
            cache = CacheTypes(keys, values)
            with closing(LlamaModel(path, cache=cache)) as model:
                tokens = model.tokenize(prose, is_templated=False)[:length]
                target = LlamaTarget(model, num_context=1024, num_threads=1)
                with closing(target):
                    ways = [rows_of(target, tokens, width) for width in WIDTHS]
            if plain is None:
                plain = ways[0]
            found.append(
                Measured(
                    name, keys, values, length,
                    max(float(np.abs(way - ways[0]).max()) for way in ways),
                    float(np.abs(ways[0] - plain).max()),
                    float(np.abs(ways[0] - plain).mean()),
                    int((ways[0].argmax(1) != plain.argmax(1)).sum()),
                )
            )  # fmt: skip
            print(json.dumps(asdict(found[-1])), flush=True)
    return found


def main() -> None:
    """Measure the named models, and write the results."""
    found = [m for name in sys.argv[1:] or ["smollm2"] for m in measure(name)]
    record = {"environment": environment(), "measured": [asdict(m) for m in found]}
    (RESULTS / "cache_types.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
