"""Let heads that were trained for a target propose tokens from its last hidden states.

A forward pass leaves the state of each row in its cell, beside the KV cache and captured with it.
Once the draws are on the host, the heads get the states of the text that the pass has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from duodec.core.rows import descending
from duodec.core.sampling import noise
from duodec.core.sampling.sampler import Context
from duodec.core.targets import Candidates, Heads, Query
from duodec_torch.forward.graphs import Queue
from duodec_torch.library import torch
from duodec_torch.sampling.penalties import adjusts
from duodec_torch.sampling.rows import top

_FIRST = 128  # tokens of a row that come to the host


class States:
    """The last hidden state of each cell's token: (cells, width)."""

    def __init__(self, num_cells: int, like: torch.Tensor) -> None:
        """``like``: some states, (rows, width)."""
        self.values = like.new_zeros((num_cells, like.shape[-1]))

    def write(self, cells: torch.Tensor, states: torch.Tensor) -> None:
        self.values.index_copy_(0, cells, states)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy cells to other cells; the two may overlap."""
        self.values.index_copy_(0, target, self.values.index_select(0, source))


@dataclass(frozen=True)
class StatedText:
    """A text that a forward pass left: that of a query and these tokens, of which the last has no
    state yet."""

    query: Query
    tokens: tuple[int, ...]
    cells: Sequence[int]  # of the text without its last token
    states: States
    queue: Queue

    @property
    def last_state(self) -> torch.Tensor:
        """(1, width)"""
        return self.states.values[self.cells[-1]][None]

    def guesses(self, logits: torch.Tensor) -> Guesses:
        return Guesses(self, logits.float())


@dataclass(frozen=True)
class Guesses:
    """Rows of logits that heads computed, of which the host gets the first tokens: (rows, vocab)
    fp32. Candidates are those of `Sampler.candidates`, with the noise of the target's draw."""

    text: StatedText
    logits: torch.Tensor

    def after(self, row: int, path: Sequence[int], count: int) -> Candidates:
        """The candidates of a row that follows a path of tokens under the text."""
        query = self.text.query
        context = Context(query.text, (*self.text.tokens, *path))
        if adjusts(query.sampler.params) or query.sampler.mask is not None:
            own = self.logits[row].cpu().numpy()
            tokens, likely = query.sampler.candidates(own, context, count)
            return Candidates(tuple(tokens.tolist()), tuple(likely.tolist()))
        tokens, values = self._first
        params, found = query.sampler.params, tokens[row]
        if params.is_greedy:
            likely = np.exp(values[row] - self._normalisers[row])
        else:
            scores = values[row].astype(np.float32) * np.float32(1 / params.temperature)
            scores += noise.gumbel(query.sampler.key(context.position), found)
            order = descending(scores)
            found, weights = found[order], np.exp((scores[order] - scores[order[0]]).astype(float))
            likely = weights / weights.sum()
        return Candidates(tuple(found[:count].tolist()), tuple(likely[:count].tolist()))

    @cached_property
    def _copied(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Waits for the device."""
        values, tokens = top(self.logits, min(_FIRST, self.logits.shape[-1]))
        normalisers = torch.logsumexp(self.logits, -1, keepdim=True)
        parts = [tokens.double(), values.double(), normalisers.double()]
        return self.text.queue.to_host(torch.cat(parts, dim=-1))

    @property
    def _first(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        num = self._copied.shape[-1] // 2
        return self._copied[:, :num].astype(np.int64), self._copied[:, num : 2 * num]

    @property
    def _normalisers(self) -> np.ndarray[Any, Any]:
        return self._copied[:, -1]


class HeadModel(Protocol):
    """Heads of one kind, with their weights."""

    kind: str

    @property
    def num_heads(self) -> int:
        """Tokens that they look ahead."""

    @property
    def num_params(self) -> int:
        """Weights that are read to propose a tree."""

    def at(self, text: StatedText) -> Heads:
        """The heads at the end of a text."""
