"""Compute logits of frequent tokens and of a sample of all others, where a vocabulary is large.

Each token of the sample stands for many in the sum (sampled softmax, arXiv 1412.2007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from duodec_lab.distill.library import torch
from duodec_lab.distill.training.losses import Known
from duodec_lab.distill.training.rounding import as_stored

_NUM_OTHERS, _FEW_OTHERS = 2048, 512  # tokens of a step's sample


class Shown:
    """The rows of a matrix whose logits a step computes. ``is_known``: (vocab,), on the host, which
    it always computes; others are drawn for each step."""

    def __init__(self, is_known: Any, num_others: int = _NUM_OTHERS) -> None:
        self.is_known, self._num_others = is_known, num_others
        self.known, self.others = is_known.nonzero()[:, 0], (~is_known).nonzero()[:, 0]
        self._columns = is_known.cumsum(0) - 1

    def column(self, tokens: Any) -> Any:
        """Where logits have these tokens."""
        return self._columns[tokens]

    def sample(self, dice: np.random.Generator) -> tuple[Any, Any]:
        """The rows of a step, and what is added to their logits."""
        drawn = self.others[
            torch.from_numpy(dice.permutation(len(self.others))[: self._num_others])
        ]
        rows, shift = torch.cat([self.known, drawn]), torch.zeros(len(self.known) + len(drawn))
        shift[len(self.known) :] = math.log(max(1, len(self.others)) / max(1, len(drawn)))
        return rows, shift


LogitsOf = Callable[[Any], Any]
"""Of states, (positions, width)."""


class WholeHead:
    """A student's head, all of whose logits are computed."""

    def __init__(self, student: Any) -> None:
        self._matrix = student.lm_head

    def to_train(self, dice: np.random.Generator) -> LogitsOf:
        """The logits of one training step."""
        return self.to_measure()

    def to_measure(self) -> LogitsOf:
        """The logits that a draft draws from."""
        logits_of: LogitsOf = self._matrix
        return logits_of

    def columns(self, known: Known) -> Known:
        """The target's side, its tokens being columns of the logits."""
        return known


class FrequentHead(WholeHead):
    """A head that stays as it is, rounded once, and so does its embedding: most of a small model's
    weights, of a large vocabulary. Of what the target says, tokens outside count as the rest."""

    def __init__(self, student: Any, kind: str, is_frequent: np.ndarray[Any, Any]) -> None:
        super().__init__(student)
        embedding = student.get_input_embeddings()
        for weight in {embedding.weight, self._matrix.weight}:
            weight.requires_grad_(False)
            weight.data = as_stored(weight.data, kind)
        self._shown = Shown(torch.from_numpy(is_frequent))
        self._frequent = self._matrix.weight[self._shown.known]

    def to_train(self, dice: np.random.Generator) -> LogitsOf:
        rows, shift = self._shown.sample(dice)
        others = self._matrix.weight[rows[len(self._frequent) :]]
        matrix, shift = torch.cat([self._frequent, others]), shift.to(others.device)
        return lambda states: torch.nn.functional.linear(states, matrix) + shift

    def to_measure(self) -> LogitsOf:
        return lambda states: torch.nn.functional.linear(states, self._frequent)

    def columns(self, known: Known) -> Known:
        tokens = known.tokens.cpu()
        is_inside = self._shown.is_known[tokens].to(known.probs.device)
        columns = self._shown.column(tokens).clamp_min(0).to(known.tokens.device)
        return Known(columns, known.probs * is_inside)


class ReducedHead(WholeHead):
    """The rows of a target's own matrix that a head guesses from, in the order of ``tokens``. They
    are not trained. A step computes the first ``num_seen``, which the texts have, and a sample of
    the others; tokens without a row count as the rest."""

    def __init__(self, matrix: Any, tokens: np.ndarray[Any, Any], num_seen: int, most: int) -> None:
        """``most`` tokens are in the vocabulary."""
        self.matrix = matrix
        self._columns = torch.full((most,), -1, dtype=torch.long, device=matrix.device)
        self._columns[torch.from_numpy(tokens)] = torch.arange(len(tokens), device=matrix.device)
        self._shown = Shown(torch.arange(len(tokens)) < num_seen, _FEW_OTHERS)
        self._num_seen = num_seen

    def to_train(self, dice: np.random.Generator) -> LogitsOf:
        chosen, shift = (one.to(self.matrix.device) for one in self._shown.sample(dice))
        matrix = self.matrix[chosen]
        return lambda states: torch.nn.functional.linear(states, matrix) + shift

    def to_measure(self) -> LogitsOf:
        return lambda states: torch.nn.functional.linear(states, self.matrix)

    def columns(self, known: Known) -> Known:
        columns = self._columns[known.tokens]
        is_inside = (columns >= 0) & (columns < self._num_seen)
        return Known(columns.clamp(0, self._num_seen - 1), known.probs * is_inside)

    def first(self, known: Known) -> Any:
        """The column of each position's likeliest token; -1 where it has none."""
        return self._columns[known.tokens[:, 0]]
