"""Apply masks, bias and penalties on the device as `Sampler` does, to all rows of a query.

A text's tokens are edited in all rows of its query; tokens of a branch in the rows of that branch,
from their original values. Counts are made on the host, in integers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duodec.core.sampling.grammar import Mask
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query
from duodec.errors import BadOption
from duodec_torch.library import torch
from duodec_torch.uploads import upload


def adjusts(params: SamplingParams) -> bool:
    """Whether these parameters change logits before they are sampled."""
    return bool(
        params.grammar
        or params.min_tokens
        or params.logit_bias
        or params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
    )


def adjust(logits: torch.Tensor, query: Query) -> None:
    """Apply a query's mask, bias and penalties to its rows: (rows, vocab) fp32, in place."""
    params, (num_rows, num_vocab) = query.sampler.params, logits.shape
    if query.sampler.mask is not None:
        _restrict(logits, query, query.sampler.mask)
    bias = [(t, b) for t, b in params.logit_bias.items() if t < num_vocab]
    if bias:
        biased = _on(logits, [token for token, _ in bias])
        logits[:, biased] += _on(logits, [value for _, value in bias], torch.float32)
    penalise = _Penalties(params, logits)
    if not penalise:
        return
    tokens, counts = _counts(query, num_vocab)
    rows, tail, tail_counts = _tail_counts(query, num_rows, num_vocab, dict(zip(
        tokens.tolist(), counts.tolist(), strict=True,
    )))  # fmt: skip
    text_at = _on(logits, tokens)
    tail_at = (_on(logits, rows), _on(logits, tail))
    on_branches = penalise.values(logits[tail_at], _on(logits, tail_counts, torch.float32))
    counted = _on(logits, counts, torch.float32)
    logits[:, text_at] = penalise.values(logits[:, text_at], counted)
    logits[tail_at] = on_branches


def _restrict(logits: torch.Tensor, query: Query, mask: Mask) -> None:
    """`duodec.core.rows.masked` for all rows."""
    num_rows, num_vocab = logits.shape
    is_open = np.ones((num_rows, num_vocab), dtype=bool)
    for row in range(num_rows):
        completion = query.context(row).completion(query.sampler.num_prompt_tokens)
        try:
            allowed = mask.allowed(completion)
        except BadOption:  # told where a text draws from the row, which no token of it can win
            is_open[row] = False
            continue
        if allowed is not None:
            size = min(num_vocab, len(allowed))
            is_open[row, :size], is_open[row, size:] = allowed[:size], False
    logits.masked_fill_(~_on(logits, is_open, torch.bool), -torch.inf)


class _Penalties:
    """The three penalties as fp32 numbers on the device: a division by a plain number would be
    a multiplication by its inverse there."""

    def __init__(self, params: SamplingParams, like: torch.Tensor) -> None:
        self._repetition, self._frequency, self._presence = (
            _on(like, [value], torch.float32)
            for value in (
                params.repetition_penalty, params.frequency_penalty, params.presence_penalty,
            )
        )  # fmt: skip
        self._has_repetition = params.repetition_penalty != 1
        self._has_counted = bool(params.presence_penalty or params.frequency_penalty)

    def __bool__(self) -> bool:
        return self._has_repetition or self._has_counted

    def values(self, values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Logits of tokens seen before, each ``counts`` times in the completion."""
        if self._has_repetition:
            penalty = self._repetition
            values = torch.where(values > 0, values / penalty, values * penalty)
        if self._has_counted:
            lowered = values - self._frequency * counts - self._presence
            values = torch.where(counts > 0, lowered, values)
        return values


def _counts(query: Query, num_vocab: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The text's tokens, each once, and how often each is in the completion."""
    tokens, where = np.unique(query.text, return_inverse=True)
    completion = where[query.sampler.num_prompt_tokens :]
    counts = np.bincount(completion, minlength=len(tokens))
    is_known = tokens < num_vocab
    return tokens[is_known], counts[is_known]


def _tail_counts(
    query: Query, num_rows: int, num_vocab: int, in_text: dict[int, int]
) -> tuple[list[int], list[int], list[int]]:
    """For each row and each token of its branch: row, token, times in the completion."""
    num_prompt = max(0, query.sampler.num_prompt_tokens - len(query.text))
    rows, tokens, counts = [], [], []
    for row in range(1, num_rows):
        path = query.draft.path_tokens(row - 1)
        completion = Counter(path[num_prompt:])
        for token in set(path):
            if token < num_vocab:
                rows.append(row)
                tokens.append(token)
                counts.append(in_text.get(token, 0) + completion[token])
    return rows, tokens, counts


def _on(like: torch.Tensor, values: ArrayLike, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Numbers from the host on the device of ``like``."""
    return upload(values, like.device, dtype)
