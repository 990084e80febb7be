"""Time steps of a draft model, by the length of the text and the leaves that a step expands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from statistics import median
from time import perf_counter

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.step_time import StepTime
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import RowQuery

_STEPS = 9  # most steps for one figure
_MOST_NODES = 120  # nodes of a draft's tree
_CHUNK = 128
_SLOT = 0


def step_times(
    model: LlamaModel,
    *,
    num_threads: int,
    uses_flash_attention: bool,
    texts: Sequence[int],
    leaves: Sequence[int],
) -> Iterator[StepTime]:
    """Yield the median of some steps at each length of text, ascending, and each number of leaves.

    Raises ModelUnreadable if there is no memory for the longest.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, model.num_vocab, max(texts)).astype(np.int32)
    context = LlamaContext(
        model,
        num_context=max(texts) + 2 * _MOST_NODES,
        num_sequences=_CHUNK,
        num_threads=num_threads,
        max_rows=_CHUNK,
        num_chunk=_CHUNK,
        uses_flash_attention=uses_flash_attention,
    )
    with closing(context):
        for num_text in texts:
            text = tokens[:num_text]
            context.rows([RowQuery(_SLOT, text[:-1], Draft(), ())])
            for num_leaves in leaves:
                seconds = []
                context.rows([RowQuery(_SLOT, text, Draft(), (0,))])
                nodes: list[int] = []
                parents: list[int] = [ROOT] * num_leaves
                for _ in range(min(_STEPS, _MOST_NODES // num_leaves)):
                    begin = len(nodes)
                    nodes += rng.integers(0, model.num_vocab, num_leaves).tolist()
                    draft = Draft(tuple(nodes), tuple(parents))
                    rows = tuple(range(begin + 1, begin + num_leaves + 1))
                    start_s = perf_counter()
                    context.rows([RowQuery(_SLOT, text, draft, rows)])
                    seconds.append(perf_counter() - start_s)
                    parents += range(begin, begin + num_leaves)
                yield StepTime(num_text, num_leaves, uses_flash_attention, median(seconds[1:]))
