"""From a row of logits to a token: the samplers, the keyed draw, the law.

The order is that of transformers: bias and penalties, temperature, top-k, top-p, min-p.
The keyed draw is ``argmax(score + gumbel)`` over the tokens that survive (Gumbel-max), so
it follows the law exactly and depends on nothing but the row and the key. Everything that
decides a token is a comparison, a fixed-order fp32 operation or an integer sum: another
library given the same row picks the same token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duodec.core import noise
from duodec.errors import BadOption

Tokens = NDArray[np.int32]  # (length,)
Row = NDArray[np.float32]  # (vocab,) logits

_HEAD = 128  # tokens whose noise is looked at before any other


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled. ``temperature=0`` takes the most likely token.

    Raises BadOption on values that make no law.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # on prompt and answer, as in transformers
    presence_penalty: float = 0.0  # on the answer, as in OpenAI's interface
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        def check(name: str, is_good: bool, remedy: str) -> None:
            if not is_good:
                raise BadOption(f"{name} is {getattr(self, name)}; {remedy}")

        # `not (x >= y)` rather than `x < y`: NaN is refused too
        check("temperature", 0 <= self.temperature < math.inf, "use 0 (greedy) or more")
        check("top_k", self.top_k >= 0, "use 0 (off) or more")
        check("top_p", 0 < self.top_p <= 1, "use a value above 0 and up to 1 (off)")
        check("min_p", 0 <= self.min_p <= 1, "use a value from 0 (off) to 1")
        check("repetition_penalty", 0 < self.repetition_penalty < math.inf, "use 1 (off) or more")
        check("presence_penalty", math.isfinite(self.presence_penalty), "use 0 (off)")
        check("frequency_penalty", math.isfinite(self.frequency_penalty), "use 0 (off)")
        is_good_bias = all(t >= 0 and b < math.inf for t, b in self.logit_bias.items())
        check("logit_bias", is_good_bias, "use tokens of the vocabulary and numbers (-inf bans)")
        check("seed", 0 <= self.seed < 1 << 64, "use a whole number from 0 to 2**64 - 1")

    @property
    def is_greedy(self) -> bool:
        """Temperatures too low to divide by count as 0, as in vLLM."""
        return self.temperature < 1e-5


@dataclass(frozen=True)
class Context:
    """What precedes a token: the text and the draft tokens after it."""

    text: Tokens
    tail: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Absolute position of the token that follows."""
        return len(self.text) + len(self.tail)

    def tokens(self) -> Tokens:
        return np.concatenate([self.text, np.asarray(self.tail, dtype=np.int32)])


@dataclass(frozen=True)
class Law:
    """A distribution over the vocabulary, zero outside ``tokens``."""

    tokens: NDArray[np.int64]  # (n,) ascending
    probs: NDArray[np.float64]  # (n,) sums to 1

    def prob(self, token: int) -> float:
        i = int(np.searchsorted(self.tokens, token))
        found = i < len(self.tokens) and self.tokens[i] == token
        return float(self.probs[i]) if found else 0.0

    def residual(self, q: Law) -> Law:
        """norm(max(p - q, 0)): what is left of this law when a draw from q was refused."""
        probs = self.probs.copy()
        _, ours, theirs = np.intersect1d(
            self.tokens, q.tokens, assume_unique=True, return_indices=True
        )
        probs[ours] = np.maximum(probs[ours] - q.probs[theirs], 0.0)
        total = probs.sum()
        # p == q leaves nothing, and then no refusal was possible: only rounding gets here
        return self if total <= 0 else Law(self.tokens, probs / total)


@dataclass(frozen=True)
class Draw:
    """A drawn token and the margin (in scores, nats) by which it won."""

    token: int
    margin: float


@dataclass(frozen=True)
class Sampler:
    """The samplers of one answer: parameters, which answer, where the prompt ends."""

    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0
    num_prompt_tokens: int = 0

    def key(self, position: int, stream: int = noise.DRAW) -> int:
        return noise.key(self.params.seed, self.choice, position, stream)

    def draw(self, row: Row, context: Context) -> Draw:
        """The keyed draw from a row of logits."""
        tokens, scores = self._survivors(row, context)
        tokens, scores = self._perturbed_best(tokens, scores, context.position, 2)
        margin = float(scores[0] - scores[1]) if len(scores) > 1 else math.inf
        return Draw(int(tokens[0]), margin)

    def law(self, row: Row, context: Context) -> Law:
        """The law that `draw` follows."""
        tokens, scores = self._survivors(row, context)
        if self.params.is_greedy:
            return Law(tokens[np.argmax(scores)][None], np.ones(1))
        weights = np.exp(scores.astype(np.float64) - scores.max())
        return Law(tokens, weights / weights.sum())

    def candidates(
        self, row: Row, context: Context, k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The draft's k best guesses of the target's draw, best first, and its confidence.

        Ordered by log q + g with the target's own noise g. Confidence is the softmax of
        these scores; at temperature 0, the law q at temperature 1. Both shapes (k,).
        """
        row = self._adjusted(row, context)
        if self.params.is_greedy:
            tokens = top(row, k)
            return tokens, np.exp(row[tokens].astype(np.float64) - log_normaliser(row))
        head = np.sort(top(row, _HEAD))
        scores = row[head] * np.float32(1 / self.params.temperature)
        tokens, scores = self._perturbed_best(head, scores, context.position, len(head))
        weights = np.exp(scores.astype(np.float64) - float(scores[0]))
        return tokens[:k], (weights / weights.sum())[:k]

    def _adjusted(self, row: Row, context: Context) -> Row:
        """Bias and penalties."""
        p = self.params
        if p.logit_bias:
            row = row.copy()
            for token, bias in p.logit_bias.items():
                if token < len(row):  # a draft's vocabulary may be the shorter one
                    row[token] += np.float32(bias)
        if p.repetition_penalty != 1:
            row = row.copy()
            seen = np.unique(context.tokens())
            seen = seen[seen < len(row)]
            penalty = np.float32(p.repetition_penalty)
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        if p.presence_penalty or p.frequency_penalty:
            row = row.copy()
            answer = context.tokens()[self.num_prompt_tokens :]
            seen, counts = np.unique(answer, return_counts=True)
            is_known = seen < len(row)
            seen, counts = seen[is_known], counts[is_known]
            row[seen] -= np.float32(p.frequency_penalty) * counts.astype(np.float32)
            row[seen] -= np.float32(p.presence_penalty)
        return row

    def _survivors(self, row: Row, context: Context) -> tuple[NDArray[np.int64], Row]:
        """Tokens that may be drawn, ascending, and their scores (logits over temperature)."""
        p = self.params
        row = self._adjusted(row, context)
        if p.is_greedy:  # only the best two matter: the winner and the margin
            best = np.sort(top(row, 2))
            return best, row[best]
        scores = row * np.float32(1 / p.temperature)
        tokens: NDArray[np.int64] | None = None
        if 0 < p.top_k < len(row):
            tokens = np.sort(top(scores, p.top_k))
        if p.top_p < 1:
            tokens = _nucleus(scores, tokens, p.top_p)
        if tokens is None:
            tokens = np.arange(len(row))
        else:
            scores = scores[tokens]
        if p.min_p > 0:
            keep = scores >= scores.max() + np.float32(math.log(p.min_p))
            tokens, scores = tokens[keep], scores[keep]
        return tokens, scores

    def _perturbed_best(
        self, tokens: NDArray[np.int64], scores: Row, position: int, k: int
    ) -> tuple[NDArray[np.int64], Row]:
        """The k best of score + gumbel, best first, lowest token first among equals.

        Noise is made only for tokens that can still be among them.
        """
        if not self.params.is_greedy:
            key = self.key(position)
            if len(tokens) > 2 * _HEAD:
                head = top(scores, _HEAD)
                perturbed = scores[head] + noise.gumbel(key, tokens[head])
                bound = np.partition(perturbed, -k)[-k]
                able, gumbel = noise.gumbel_where(key, tokens, bound - scores)
                tokens, scores = tokens[able], scores[able] + gumbel
            else:
                scores = scores + noise.gumbel(key, tokens)
        order = _descending(scores)[:k]
        return tokens[order], scores[order]


def top(values: Row, k: int) -> NDArray[np.int64]:
    """Indices of the k largest values, largest first, lowest index first among equals.

    The k-th best of the column maxima bounds the k-th best value from below, so one fast pass
    leaves few values to sort.
    """
    k = min(k, len(values))
    width = 8 * max(k, 128)  # columns: enough that their k-th best maximum is a sharp bound
    if len(values) >= 4 * width:
        body = len(values) - len(values) % width
        maxima = values[:body].reshape(-1, width).max(axis=0)
        above = np.flatnonzero(values >= np.partition(maxima, -k)[-k])
    elif len(values) > 2 * k:
        above = np.flatnonzero(values >= np.partition(values, -k)[-k])
    else:
        above = np.arange(len(values))
    return above[_descending(values[above])[:k]]


def _descending(values: Row) -> NDArray[np.int64]:
    """The stable order, largest first."""
    if len(values) <= 512:
        return np.argsort(-values, kind="stable")
    # many values: integers that sort like (value descending, index) sort several times faster
    pattern = (values + np.float32(0)).view(np.int32).astype(np.int64)  # + 0: no negative zero
    ascending = np.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern)
    keys = (-ascending << 32) | np.arange(len(values))
    keys.sort()
    return keys & 0xFFFFFFFF


def log_normaliser(row: Row) -> float:
    """ln of the sum of exp over a row of logits."""
    shift = row.max()
    return float(shift) + math.log(float(np.exp(row - shift).sum(dtype=np.float64)))


_MASS_BITS = 24
_MASS_FLOOR = np.float32(-(_MASS_BITS + 1) * math.log(2))  # below it, a mass rounds to 0


def _nucleus(scores: Row, tokens: NDArray[np.int64] | None, top_p: float) -> NDArray[np.int64]:
    """The fewest tokens, best first, whose mass reaches top_p; ascending.

    Masses are whole numbers (in 2**-24 of the best token's), so their sums have no order.
    """
    best = scores.max() if tokens is None else scores[tokens].max()
    if tokens is None:
        tokens = np.flatnonzero(scores >= best + _MASS_FLOOR)
    heavy = scores[tokens]
    mass = exp_mass(heavy - best)
    wanted = math.ceil(top_p * int(mass.sum(dtype=np.float64)))
    k = _HEAD
    while True:
        order = top(heavy, k)
        reached = np.cumsum(mass[order], dtype=np.float64)
        if reached[-1] >= wanted or len(order) == len(heavy):
            return np.sort(tokens[order[: int(np.searchsorted(reached, wanted)) + 1]])
        k *= 8


# 2**f on [0, 1), relative error below 4e-6, exact at both ends
_EXP2_COEFFICIENTS = tuple(
    np.float32(c) for c in (0.013555746, 0.052032368, 0.24137977, 0.69303212, 1.0)
)


def exp_mass(x: Row) -> Row:
    """2**24 exp(x) for x <= 0, rounded to whole fp32 numbers, by fixed-order operations."""
    return noise.in_blocks(_exp_mass, x, np.float32)


def _exp_mass(x: Row) -> Row:
    t = x * np.float32(1.44269504)
    np.maximum(t, np.float32(-_MASS_BITS - 2), out=t)
    n = np.floor(t)
    t -= n  # f = t - n, exact
    y = t * _EXP2_COEFFICIENTS[0]
    for coefficient in _EXP2_COEFFICIENTS[1:-1]:
        y += coefficient
        y *= t
    y += _EXP2_COEFFICIENTS[-1]
    exponent = n.astype(np.int32)
    exponent += np.int32(_MASS_BITS)
    exponent <<= np.int32(23)
    y.view(np.int32)[...] += exponent  # times 2**(n + 24), exact
    np.rint(y, out=y)
    return y
