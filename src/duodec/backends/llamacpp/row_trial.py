"""Try on a device whether a row's bits depend on what is drafted, refused, or served beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.padded import LlamaPadded
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.llamacpp.trees import LlamaScores
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Query
from duodec.core.rows import Row
from duodec.core.sampling import Sampler, Tokens

_NUM_PROMPT, _NUM_TEXT = 244, 252  # llama.cpp shows a pass of 8 rows more cells from 249 on
_CONTEXT = 512
_WIDTHS = (2, 4, 8)
_Rows = dict[int, Row]  # by the tokens before them


@dataclass(frozen=True)
class RowTrial:
    """The greatest difference of a logit from plain decoding's, by what was done beside it."""

    moved: Mapping[str, float]

    @property
    def is_exact(self) -> bool:
        return not any(self.moved.values())

    @property
    def worst(self) -> tuple[str, float]:
        return max(self.moved.items(), key=lambda item: item[1])


def try_rows(model: LlamaModel, *, num_rows: int | None, num_threads: int) -> RowTrial:
    """Compare rows of several widths, of a tree, beside another request and after a refusal with
    those of plain decoding. ``num_rows`` of every forward pass; None: as many as are asked for.
    Raises ModelUnreadable and ComputeFailed."""
    text = np.random.default_rng(0).integers(0, model.num_vocab, _NUM_TEXT + 1).astype(np.int32)
    moved: dict[str, float] = {}
    with _opened(model, num_rows, num_threads) as target:
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
    return RowTrial(moved)


@contextmanager
def _opened(
    model: LlamaModel, num_rows: int | None, num_threads: int
) -> Iterator[LlamaTarget | LlamaPadded]:
    target: LlamaTarget | LlamaPadded
    if num_rows is None:
        target = LlamaTarget(
            model, num_context=2 * _CONTEXT, num_threads=num_threads, is_width_exact=False
        )
    else:
        target = LlamaPadded(
            model, num_rows=num_rows, num_slots=2, num_context=_CONTEXT, num_threads=num_threads
        )
    with closing(target):
        yield target


def _query(text: Tokens, length: int, draft: Draft, slot: int = 0) -> Query:
    sampler = replace(Sampler(), num_prompt_tokens=min(length, _NUM_PROMPT))
    return Query(slot, text[:length], draft, sampler)


def _scored(
    target: LlamaTarget | LlamaPadded, text: Tokens, length: int, draft: Draft, *beside: Query
) -> list[Row]:
    scores = target.score([_query(text, length, draft), *beside])[0]
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


def _chains(target: LlamaTarget | LlamaPadded, text: Tokens, width: int) -> _Rows:
    """Rows of a text whose every draft is right, so many tokens at once."""
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
