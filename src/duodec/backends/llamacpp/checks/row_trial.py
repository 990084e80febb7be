"""Try on a device whether a row's bits depend on drafts, rejections, or other requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.core.draft import ROOT, Draft
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import Query
from duodec.core.traits import Widths

_NUM_PROMPT, _NUM_TEXT = 244, 252  # llama.cpp shows a pass of 8 rows more cells from 249 on
_CONTEXT = 512
_WIDTHS = (2, 4, 8)
_DEPTHS = (100, 1000, 4000)  # tokens before a pass each of whose rows is tried
_Rows = dict[int, Row]  # by the number of tokens before them


@dataclass(frozen=True)
class RowTrial:
    """Hold the greatest difference of a logit from plain decoding's, by what else was computed."""

    moved: Mapping[str, float]

    @property
    def is_exact(self) -> bool:
        return not any(self.moved.values())

    @property
    def worst(self) -> tuple[str, float]:
        return max(self.moved.items(), key=lambda item: item[1])


def try_rows(
    model: LlamaModel,
    *,
    widths: Widths,
    num_threads: int,
    is_width_exact: bool = True,
    num_context: int = _CONTEXT,
) -> RowTrial:
    """Compare rows of several widths, of a tree, together with another request, after a rejection
    and at each place in a forward pass with those of plain decoding. ``widths`` and
    ``is_width_exact`` are those of `LlamaTarget`; ``num_context`` is the longest text that memory
    is allocated for. Raises ModelUnreadable and ComputeFailed."""
    dice = np.random.default_rng(0)
    text = dice.integers(0, model.num_vocab, _NUM_TEXT + 1).astype(np.int32)
    moved: dict[str, float] = {}

    def opened(num_context: int, num_slots: int) -> LlamaTarget:
        return LlamaTarget(
            model, num_context=num_context, num_threads=num_threads, num_slots=num_slots,
            widths=widths, is_width_exact=is_width_exact,
        )  # fmt: skip

    with closing(opened(_CONTEXT, 2)) as target:
        expected = _chains(target, text, 1)
        for width in _WIDTHS:
            moved[f"{width} rows"] = _moved(_chains(target, text, width), expected)
        first, second = text[_NUM_PROMPT : _NUM_PROMPT + 2].tolist()
        other = (first + 1) % model.num_vocab
        tree = Draft((other, first, second), (ROOT, ROOT, 1))
        scored = _scored(target, text, _NUM_PROMPT, tree)
        found = {_NUM_PROMPT: scored[0]}
        found |= {_NUM_PROMPT + i: scored[i + 1] for i in (1, 2) if len(scored) > i + 1}
        moved["a tree"] = _moved(found, expected)
        after = _scored(target, text, _NUM_PROMPT + 2, Draft())
        moved["a branch that was accepted"] = _moved({_NUM_PROMPT + 2: after[0]}, expected)
        _scored(target, text, _NUM_PROMPT, Draft.chain((first, other)))
        after = _scored(target, text, _NUM_PROMPT + 1, Draft())
        moved["a draft that was refused"] = _moved({_NUM_PROMPT + 1: after[0]}, expected)
        beside = _query(text[::-1], 99, Draft.chain((1, 2)), 1)
        company = _scored(target, text, _NUM_PROMPT, Draft(), beside)
        moved["another request"] = _moved({_NUM_PROMPT: company[0]}, expected)
    num_rows = widths.most
    depths = [depth for depth in _DEPTHS if depth + num_rows <= num_context]
    text = dice.integers(0, model.num_vocab, max(depths, default=0) + num_rows).astype(np.int32)
    for depth in depths:
        with closing(opened(depth + num_rows, 1)) as target:
            draft = Draft.chain(text[depth : depth + num_rows - 1].tolist())
            at_once = _scored(target, text, depth, draft, num_prompt=depth)
            found = dict(enumerate(at_once, depth))
            expected = {n: _scored(target, text, n, Draft(), num_prompt=depth)[0] for n in found}
        moved[f"another place among rows after {depth} tokens"] = _moved(found, expected)
    return RowTrial(moved)


def _query(
    text: Tokens, length: int, draft: Draft, slot: int = 0, num_prompt: int = _NUM_PROMPT
) -> Query:
    sampler = replace(Sampler(), num_prompt_tokens=min(length, num_prompt))
    return Query(slot, text[:length], draft, sampler)


def _scored(
    target: LlamaTarget,
    text: Tokens,
    length: int,
    draft: Draft,
    *beside: Query,
    num_prompt: int = _NUM_PROMPT,
) -> list[Row]:
    scores = target.score([_query(text, length, draft, num_prompt=num_prompt), *beside])[0]
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


def _chains(target: LlamaTarget, text: Tokens, width: int) -> _Rows:
    """Return the rows of a text whose every draft is right, ``width`` tokens at once."""
    found: _Rows = {}
    length = _NUM_PROMPT
    while length < _NUM_TEXT:
        end = min(length + width - 1, _NUM_TEXT - 1)
        rows = _scored(target, text, length, Draft.chain(text[length:end].tolist()))
        found |= {length + i: row for i, row in enumerate(rows)}
        length = max(found) + 1
    return found


def _moved(found: _Rows, expected: _Rows) -> float:
    return max(float(np.abs(row - expected[n]).max()) for n, row in found.items())
