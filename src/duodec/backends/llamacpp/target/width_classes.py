"""Find out in which widths a device gives a row the same bits.

Which kernel computes a product, and how it splits its sums, depends on the number of rows: on some
cards 1 to 4 rows agree and 5 to 8 do, on others 1 and 2 do not. So every width is tried with the
model's own weights, cache and attention. A width whose rows depend on their place in the pass is
left out; the others are put together by the bits of the same rows of the same text.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.traits import Widths

DEPTHS = (100, 1000, 4000)  # tokens before the rows that are compared
_NUM_COMPARED = 8  # rows of each width
_MOST_S = 20.0  # to begin with another depth: a slow device is tried at fewer

Bits = tuple[bytes, ...]
"""Digests of the rows after a text and after each of the next tokens."""


def agreeing(
    model: LlamaModel,
    widths: Sequence[int],
    *,
    num_threads: int,
    depths: Sequence[int] = DEPTHS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[int, ...]]:
    """The classes of ``widths`` whose rows have equal bits, the one with the least width first.
    Raises ComputeFailed."""
    most = max(widths)
    fitting = [depth for depth in depths if depth + most <= model.num_context_train] or [most]
    text = _text(model, max(fitting) + 2 * most)
    bits: dict[int, Bits] = dict.fromkeys(widths, ())
    end_s = clock() + _MOST_S
    target = LlamaPadded(
        model, widths=Widths((most,)), num_context=len(text), num_threads=num_threads
    )
    with closing(target):
        for depth in fitting:
            for width in list(bits):
                target.widths = Widths.only(width)
                found = rows_of(target, text, depth, width)
                if found is None:
                    del bits[width]
                else:
                    bits[width] += found
            if clock() > end_s:
                break
    classes: dict[Bits, list[int]] = defaultdict(list)
    for width, own in bits.items():
        classes[own].append(width)
    return sorted(map(tuple, classes.values()))


def rows_of(target: LlamaPadded, text: Tokens, depth: int, width: int) -> Bits | None:
    """Digests of the rows of plain decoding after ``depth`` tokens; None where a row of a pass that
    scores a draft differs from the one of plain decoding, somewhere among its rows."""
    num_rows = max(width, _NUM_COMPARED)
    plain = [_digests(target, text, depth, depth + i, 0)[0] for i in range(num_rows)]
    drafted = _digests(target, text, depth, depth, width - 1)
    return tuple(plain[:_NUM_COMPARED]) if drafted == plain[: len(drafted)] else None


def _digests(
    target: LlamaPadded, text: Tokens, num_prompt: int, end: int, num_drafted: int
) -> list[bytes]:
    """Of the rows after ``end`` tokens of a text, with a draft of the next ones."""
    draft = Draft.chain(text[end : end + num_drafted].tolist())
    sampler = replace(Sampler(), num_prompt_tokens=num_prompt)
    (scores,) = target.score([Query(0, text[:end], draft, sampler)])
    rows = (scores.row_logits(row) for row in range(scores.num_rows))
    return [blake2b(np.ascontiguousarray(row).tobytes()).digest() for row in rows]


def _text(model: LlamaModel, num_tokens: int) -> Tokens:
    dice = np.random.default_rng(0)
    return dice.integers(0, model.num_vocab, num_tokens).astype(np.int32)
