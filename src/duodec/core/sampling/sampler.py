"""Turn a row of logits into a token: the samplers, the keyed draw, the distribution.

The order is that of transformers: mask, bias and penalties, temperature, top-k, top-p, min-p.
The keyed draw is ``argmax(score + gumbel)`` over the tokens that survive (Gumbel-max), so
it follows the distribution exactly and depends on nothing but the row and the key. Everything that
decides a token is a comparison, a fixed-order fp32 operation or an integer sum: another
library given the same row picks the same token.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from duodec.core.rows import HEAD, Row, check_finite, masked, not_finite, nucleus, top
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import Grammar, GrammarEnded, Mask
from duodec.core.sampling.parameters import Parameter, check, real, shown, strict, whole
from duodec.errors import BadOption
from duodec.native import ranking

Tokens = NDArray[np.int32]  # shape (length,)


MAX_LOGPROBS = 64  # the library's limit; the server's interface allows 20


@strict
@dataclass(frozen=True)
class SamplingParams:
    """Say how a completion is sampled. ``temperature=0`` takes the most likely token.

    Raises BadOption on values that make no distribution.
    """

    temperature: Annotated[float, Parameter(
        "0 takes the likeliest token.", "Sampling", ge=0, lt=math.inf,
        remedy="use 0 (greedy) or more"
    )] = 0.0  # fmt: skip
    top_k: Annotated[int, Parameter(
        "Only the K likeliest; 0: off.", "Sampling", ge=0, le=(1 << 31) - 1,
        remedy="use 0 (off) or more, up to 2147483647"
    )] = 0  # fmt: skip
    top_p: Annotated[float, Parameter(
        "Only the likeliest that hold this part of the probability; 1: off.", "Sampling", gt=0,
        le=1, remedy="use a value above 0 and up to 1 (off)"
    )] = 1.0  # fmt: skip
    min_p: Annotated[float, Parameter(
        "Only those at least this likely, next to the likeliest; 0: off.", "Sampling", ge=0, le=1,
        remedy="use a value from 0 (off) to 1"
    )] = 0.0  # fmt: skip
    repetition_penalty: Annotated[  # as in transformers
        float,
        Parameter(
            "Divides the scores of tokens already seen; 1: off.",
            "Sampling",
            gt=0,
            lt=math.inf,
            remedy="use 1 (off) or more",
        ),
    ] = 1.0
    presence_penalty: Annotated[  # as in OpenAI's interface
        float,
        Parameter(
            "Subtracted from tokens in the completion; 0: off.",
            "Sampling",
            gt=-math.inf,
            lt=math.inf,
            remedy="use 0 (off)",
        ),
    ] = 0.0
    frequency_penalty: Annotated[float, Parameter(
        "Subtracted from a token for each time it is in the completion; 0: off.", "Sampling",
        gt=-math.inf, lt=math.inf, remedy="use 0 (off)"
    )] = 0.0  # fmt: skip
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None  # the completion must match it; a dictionary is a JSON schema
    seed: Annotated[int | None, Parameter(
        "One seed gives one text, whatever the method and the draft; a random seed is "
        "taken and reported where no default is shown.", "Sampling", ("--seed", "-s"), ge=0,
        lt=1 << 64, remedy="use a whole number from 0 to 2**64 - 1"
    )] = None  # fmt: skip
    # Most tokens of the completion; None: as many as the context holds.
    max_tokens: int | None = None
    min_tokens: int = 0  # tokens before the model may end the completion; excludes a grammar
    stop: Sequence[str] = ()  # texts that end the completion and are not part of it
    stop_token_ids: Sequence[int] = ()  # tokens that end it, besides the model's own
    logprobs: int | None = None  # alternatives to each token, reported with its log probability
    prompt_logprobs: int | None = None  # the same for each token of the prompt

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "stop", _stops(self.stop))
        ends = tuple(whole("a token of stop_token_ids", token) for token in self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ends)
        object.__setattr__(self, "grammar", _grammar(self.grammar))
        for name in ("max_tokens", "logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value))
        least = 1 if self.prompt_logprobs is None else 0
        if self.max_tokens is not None and self.max_tokens < least:
            raise BadOption(
                f"max_tokens is {shown(self.max_tokens)}; use 1 or more, or 0 with prompt_logprobs"
            )
        object.__setattr__(self, "min_tokens", whole("min_tokens", self.min_tokens))
        self._check_min_tokens()
        for name in ("logprobs", "prompt_logprobs"):
            if (number := getattr(self, name)) is not None and not 0 <= number <= MAX_LOGPROBS:
                raise BadOption(
                    f"{name} is {shown(number)}; use a number from 0 to {MAX_LOGPROBS}, or None"
                )

    def _check_min_tokens(self) -> None:
        least, most = self.min_tokens, self.max_tokens
        if least < 0 or (most is not None and least > most):
            raise BadOption(f"min_tokens is {least}; use a number from 0 to max_tokens")
        if least and (self.grammar is not None or self.stop):
            other = "a grammar, whose text ends" if self.grammar else "stop strings"
            raise BadOption(f"min_tokens excludes {other}; leave one out")

    @property
    def is_greedy(self) -> bool:
        """Return whether decoding is greedy. Temperatures too low to divide by count as 0, as in
        vLLM."""
        return self.temperature < 1e-5


_LARGEST = float(np.finfo(np.float32).max)
_LAST_TOKEN = (1 << 31) - 1


def _biases(given: object) -> dict[int, float]:
    """Return the biases by token. Raises BadOption."""
    remedy = "use tokens of the vocabulary and numbers (-inf bans)"
    if not isinstance(given, Mapping):
        raise BadOption(f"logit_bias is {shown(given)}; {remedy}")
    biases: dict[int, float] = {}
    for key, value in given.items():
        token = whole("a token of logit_bias", key)
        bias = float(real(f"logit_bias of token {shown(token)}", value))
        if not (0 <= token <= _LAST_TOKEN and bias <= _LARGEST):
            raise BadOption(f"logit_bias is {shown(given)}; {remedy}")
        biases[token] = bias if bias >= -_LARGEST else -math.inf
    return biases


def _grammar(value: Any) -> Grammar | None:
    if isinstance(value, Mapping):
        value = Grammar("json_schema", cast(str, value))
    if value is not None and not isinstance(value, Grammar):
        raise BadOption(
            f"grammar is {shown(value)}; give a Grammar, or a JSON schema as a dictionary"
        )
    return value


def _stops(given: object) -> tuple[str, ...]:
    """Return the stop strings; None means none. Raises BadOption."""
    texts: Any = (given,) if isinstance(given, str) else () if given is None else given
    try:
        stops = tuple(texts)
    except TypeError:
        raise BadOption(f"stop is {shown(given)}; give a text, or a list of texts") from None
    for text in stops:
        if not isinstance(text, str):
            raise BadOption(f"a stop string is {shown(text)}; give a text")
        if not text:
            raise BadOption("a stop string is empty; leave it out")
    return stops


def seeded(params: SamplingParams) -> SamplingParams:
    """Return the same parameters, with a random seed if they have none."""
    return params if params.seed is not None else replace(params, seed=secrets.randbits(32))


@dataclass(frozen=True)
class Context:
    """Hold what precedes a token: the text and the draft tokens after it."""

    text: Tokens
    tail: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Return the absolute position of the token that follows."""
        return len(self.text) + len(self.tail)

    def tokens(self) -> Tokens:
        return np.concatenate([self.text, np.asarray(self.tail, dtype=np.int32)])

    def completion(self, num_prompt_tokens: int) -> Tokens:
        """Return the tokens after the prompt."""
        return self.tokens()[num_prompt_tokens:]


@dataclass(frozen=True)
class Distribution:
    """Hold a distribution over the vocabulary, zero outside ``tokens``."""

    tokens: NDArray[np.int64]  # shape (n,), ascending
    probs: NDArray[np.float64]  # shape (n,), sums to 1

    def prob(self, token: int) -> float:
        i = int(np.searchsorted(self.tokens, token))
        found = i < len(self.tokens) and self.tokens[i] == token
        return float(self.probs[i]) if found else 0.0

    def residual(self, q: Distribution) -> Distribution:
        """Return norm(max(p - q, 0)): this distribution after a draw from q was rejected."""
        probs = self.probs.copy()
        _, ours, theirs = np.intersect1d(
            self.tokens, q.tokens, assume_unique=True, return_indices=True
        )
        probs[ours] = np.maximum(probs[ours] - q.probs[theirs], 0.0)
        total = probs.sum()
        # If p == q, no rejection is possible, so only rounding gets here.
        return self if total <= 0 else Distribution(self.tokens, probs / total)


@dataclass(frozen=True)
class Draw:
    """Hold a drawn token and the margin (in scores, nats) by which it won."""

    token: int
    margin: float


@dataclass(frozen=True)
class Sampler:
    """Hold the sampling of one completion: its parameters, its choice, and where its prompt ends.

    ``mask`` is the parameters' grammar on the vocabulary of the rows. It is not pickled: a process
    that receives a sampler makes its own.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    choice: int = 0
    num_prompt_tokens: int = 0
    mask: Mask | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[type[Sampler], tuple[SamplingParams, int, int]]:
        return Sampler, (self.params, self.choice, self.num_prompt_tokens)

    @property
    def seed(self) -> int:
        """Return the parameters' seed; 0 where they have none."""
        return self.params.seed or 0

    def key(self, position: int, stream: int = noise.DRAW) -> int:
        return noise.key(self.seed, self.choice, position, stream)

    def draw(self, row: Row, context: Context) -> Draw:
        """Return the keyed draw from a row of logits. Raises ComputeFailed if they are not finite,
        and GrammarEnded or BadOption where no token is left to draw."""
        adjusted, is_greedy = self._adjusted(row, context), self.params.is_greedy
        is_whole = adjusted is row and (is_greedy or not self._drops_tokens)
        if not is_whole:
            check_finite(row)
        # Only the best two matter: the winner and the margin.
        best = ranking.best_two(adjusted) if is_greedy else self._noisy(adjusted, context)
        # The best of all is not finite.
        if best is None or (is_whole and not math.isfinite(best[1][0])):
            raise not_finite()
        tokens, scores = best
        if scores[0] == -math.inf:
            raise self.nothing_left(context)
        is_contest = len(scores) > 1 and scores[1] > -math.inf
        margin = float(np.float32(scores[0] - scores[1])) if is_contest else math.inf
        return Draw(tokens[0], margin)

    def _noisy(self, row: Row, context: Context) -> ranking.BestTwo | None:
        """Return the two best tokens of an adjusted row with their scores and noise, or one if no
        other is left; None where a value is NaN."""
        tokens: NDArray[np.int64] | None = None
        scores, temperature = row, self.params.temperature
        if self._drops_tokens or len(row) < 2:
            tokens, scores = self._survivors(row)
            temperature = 1.0  # the scores include it
            if len(tokens) < 2:
                return tokens.tolist(), scores.tolist()
        return noise.best_two(self.key(context.position), tokens, scores, temperature)

    def distribution(self, row: Row, context: Context) -> Distribution:
        """Return the distribution that `draw` follows. Raises what `draw` raises."""
        check_finite(row)
        adjusted = self._adjusted(row, context)
        if adjusted is not row and adjusted.max() == -np.inf:
            raise self.nothing_left(context)
        if self.params.is_greedy:
            return Distribution(top(adjusted, 1), np.ones(1))
        tokens, scores = self._survivors(adjusted)
        weights = np.exp(scores.astype(np.float64) - scores.max())
        return Distribution(tokens, weights / weights.sum())

    def candidates(
        self, row: Row, context: Context, k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the draft's k best guesses of the target's draw, best first, and their
        confidences.

        They are sorted by log q + g with the target's noise g. A confidence is the softmax of these
        scores; at temperature 0, it is the distribution q at temperature 1. Both have shape (k,).
        Where the mask and the biases leave no token, as in a draft's smaller vocabulary, the
        guesses are those of the plain row. Raises ComputeFailed if the logits are not finite.
        """
        adjusted = self._adjusted(row, context)
        best = self._best(adjusted, context, k)
        if best is None and adjusted is not row:
            best = self._best(row, context, k)
        if best is None:
            raise not_finite()
        return best

    def _best(self, row: Row, context: Context, k: int) -> ranking.Best | None:
        """Return the candidates of an adjusted row; None where its largest logit is not finite."""
        if self.params.is_greedy:
            return ranking.likeliest(row, k)
        key = self.key(context.position)
        return ranking.noisy(row, k, HEAD, self.params.temperature, key)

    def nothing_left(self, context: Context) -> GrammarEnded | BadOption:
        """Return the error for a row in which no token is left to draw."""
        completion = context.completion(self.num_prompt_tokens)
        allowed = self.mask.allowed(completion) if self.mask is not None else None
        why = "every token is banned; ban"
        if self.mask is not None and allowed is not None:
            if any(allowed[end] for end in self.mask.ends):
                return GrammarEnded()
            if self.params.min_tokens:
                why = "every token but the ends is banned; lower min_tokens, or ban"
            else:
                why = "every token that the grammar allows there is banned; change it, or ban"
        place = f"token {len(completion) + 1} of the completion"
        return BadOption(f"{place} cannot be drawn: {why} fewer tokens with logit_bias")

    def _adjusted(self, row: Row, context: Context) -> Row:
        """Apply mask, bias and penalties."""
        p = self.params
        if self.mask is not None:
            row = masked(row, self.mask.allowed(context.completion(self.num_prompt_tokens)))
        if p.logit_bias:
            row = row.copy()
            for token, bias in p.logit_bias.items():
                if token < len(row):  # a draft's vocabulary may be smaller
                    row[token] += np.float32(bias)
        if p.repetition_penalty != 1:
            row = row.copy()
            seen = np.unique(context.tokens())
            seen = seen[(seen >= 0) & (seen < len(row))]  # pictures have negative tokens
            penalty = np.float32(p.repetition_penalty)
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        if p.presence_penalty or p.frequency_penalty:
            row = row.copy()
            completion = context.completion(self.num_prompt_tokens)
            seen, counts = np.unique(completion, return_counts=True)
            is_known = seen < len(row)
            seen, counts = seen[is_known], counts[is_known]
            row[seen] -= np.float32(p.frequency_penalty) * counts.astype(np.float32)
            row[seen] -= np.float32(p.presence_penalty)
        return row

    @property
    def _drops_tokens(self) -> bool:
        """Return whether some tokens of an adjusted row may not be drawn, although their scores are
        finite."""
        p = self.params
        return p.top_k > 0 or p.top_p < 1 or p.min_p > 0

    def _survivors(self, row: Row) -> tuple[NDArray[np.int64], Row]:
        """Return the tokens of an adjusted row that may be drawn, ascending, and their scores
        (logits over temperature)."""
        p = self.params
        scores = row if p.temperature == 1 else row * np.float32(1 / p.temperature)
        tokens: NDArray[np.int64] | None = None
        if 0 < p.top_k < len(row):
            tokens = np.sort(top(scores, p.top_k))
        if p.top_p < 1:
            tokens = nucleus(scores, tokens, p.top_p)
        if tokens is None:
            tokens = _whole(len(row))
        else:
            scores = scores[tokens]
        if p.min_p > 0:
            keep = scores >= scores.max() + np.float32(math.log(p.min_p))
            tokens, scores = tokens[keep], scores[keep]
        if self.mask is not None or p.logit_bias:  # banned tokens may still be among them
            keep = scores > -np.inf
            if keep.any():  # else `draw` reports that there is none
                tokens, scores = tokens[keep], scores[keep]
        return tokens, scores


@lru_cache(maxsize=4)
def _whole(num_vocab: int) -> NDArray[np.int64]:
    """Return every token of a vocabulary, read-only, since all rows share it."""
    tokens = np.arange(num_vocab)
    tokens.flags.writeable = False
    return tokens
