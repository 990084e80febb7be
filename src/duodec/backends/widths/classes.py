"""Find out in which widths a device gives a row the same bits.

Which kernel computes a product, and how it splits its sums, depends on the number of rows. On some
cards 1 to 4 rows agree and 5 to 8 do, on others 1 and 2 do not. So every width is tried with the
model's own weights, cache and attention. A width whose rows depend on their place in the pass is
left out; the others are grouped by the bits of the same rows of the same text.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Protocol

import numpy as np

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Query, Scores
from duodec.core.traits import Widths

DEPTHS = (100, 1000, 4000)  # tokens before the rows that are compared
_NUM_COMPARED = 8  # rows of each width
_MOST_S = 20.0  # another depth may begin within this time: a slow device is tried at fewer

Bits = tuple[bytes, ...]
"""Digests of the rows after a text and after each of the next tokens."""


class PaddedTarget(Protocol):
    """Define a target whose forward passes have one of the widths that are set."""

    widths: Widths

    def score(self, queries: Sequence[Query]) -> Sequence[Scores]: ...


def fitting(depths: Sequence[int], num_context: int, most_rows: int) -> list[int]:
    """Return the depths after which a context holds passes of ``most_rows``; if none fits, the
    smallest."""
    return [depth for depth in depths if depth + 2 * most_rows <= num_context] or [most_rows]


def num_cells(depths: Sequence[int], most_rows: int) -> int:
    """Return the number of tokens of the text that is compared."""
    return max(depths) + 2 * most_rows


def agreeing(
    target: PaddedTarget,
    widths: Sequence[int],
    num_vocab: int,
    *,
    depths: Sequence[int] = DEPTHS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[int, ...]]:
    """Return the classes of ``widths`` whose rows have equal bits; the one with the least width
    comes first. The target's context holds `num_cells` tokens. Raises ComputeFailed."""
    text = _text(num_vocab, num_cells(depths, max(widths)))
    bits: dict[int, Bits] = dict.fromkeys(widths, ())
    end_s = clock() + _MOST_S
    for depth in depths:
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


def rows_of(target: PaddedTarget, text: Tokens, depth: int, width: int) -> Bits | None:
    """Return digests of the rows of plain decoding after ``depth`` tokens, which are a prompt. None
    if a row of a pass that scores a draft differs anywhere from the one of plain decoding."""
    num_rows = max(width, _NUM_COMPARED)
    # A target may compute the row after a prompt with the prompt; it is compared, and has no place.
    plain = [_digests(target, text, depth, depth + i, 0)[0] for i in range(num_rows + 1)]
    drafted = _digests(target, text, depth, depth + 1, width - 1)
    return tuple(plain[:_NUM_COMPARED]) if drafted == plain[1 : 1 + len(drafted)] else None


def _digests(
    target: PaddedTarget, text: Tokens, num_prompt: int, end: int, num_drafted: int
) -> list[bytes]:
    """Return digests of the rows after ``end`` tokens of a text, with a draft of the next ones."""
    draft = Draft.chain(text[end : end + num_drafted].tolist())
    sampler = replace(Sampler(), num_prompt_tokens=num_prompt)
    (scores,) = target.score([Query(0, text[:end], draft, sampler)])
    rows = (scores.row_logits(row) for row in range(scores.num_rows))
    return [blake2b(np.ascontiguousarray(row).tobytes()).digest() for row in rows]


def _text(num_vocab: int, num_tokens: int) -> Tokens:
    dice = np.random.default_rng(0)
    return dice.integers(0, num_vocab, num_tokens).astype(np.int32)
