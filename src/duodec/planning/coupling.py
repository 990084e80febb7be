"""Foresee a draw by its noise, which is known long before the row of logits that it is added to.

A sampled token is ``argmax(log p + g)``, and seed, position and token alone decide the Gumbel noise
g (`core/sampling/noise.py`). So what texts and earlier rows propose is likelier where its own noise
is high.

A row that the target has scored knows p, as far as its context is the same: its tokens are ordered
by ``log p + g`` anew, and a softmax of these sums stands for what differs, as with a draft model's
candidates (`Sampler.candidates`).

Of a token that followed earlier only the likelihood q is known that it does so again. If p were q,
it would be drawn where its sum exceeds that of all others together, with likelihood
``exp(-(1 - q) / q exp(-g))``. But q is low mostly where a text goes on otherwise altogether,
whatever the noise: of q the part ``q ** SPREAD`` is taken for p, and the rest for the share of
texts that go on alike. On average over the noise that is q.

The selection's own copy is in C++ (`native/selection.cpp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from duodec.core.sampling import noise
from duodec.core.sampling.sampler import Sampler

LEAST = 1e-30  # likelihood whose logarithm is taken
SPREAD = 0.35  # fits 1,700 matches of 1 to 24 tokens, sampled at temperatures 0.7 and 1

Judged = list[tuple[int, float]]
"""Which of some tokens, and how likely it is drawn: the likeliest first."""


@dataclass(frozen=True)
class Coupling:
    """The noise after a text: ``position`` is that of the token which follows it."""

    sampler: Sampler
    position: int

    @property
    def power(self) -> float:
        """Of a likelihood at temperature 1, for that at the sampler's temperature."""
        return 1.0 / self.sampler.params.temperature

    def of_row(self, tokens: Sequence[int], confidences: Sequence[float], depth: int) -> Judged:
        """What a row that was scored before says of the token at this depth under the text (0: the
        next one). ``confidences`` are those of the row, at temperature 1, best first."""
        power, most = self.power, max(confidences[0], LEAST)
        sums = [
            power * log(max(one, LEAST) / most) + own
            for one, own in zip(confidences, self._noise(tokens, depth), strict=True)
        ]
        order = sorted(range(len(sums)), key=lambda i: -sums[i])  # stable
        weights = [exp(sums[i] - sums[order[0]]) for i in order]
        total = 0.0
        for weight in weights:  # newer versions of Python round `sum` otherwise than C++
            total += weight
        return [(i, weight / total) for i, weight in zip(order, weights, strict=True)]

    def of_texts(
        self, tokens: Sequence[int], likelihoods: Sequence[float], depth: int
    ) -> list[float]:
        """How likely tokens that followed earlier are drawn at this depth, if they are as likely
        as that whatever the noise is."""
        found = []
        for likelihood, own in zip(likelihoods, self._noise(tokens, depth), strict=True):
            likely = exp(SPREAD * log(max(likelihood, LEAST)))
            found.append(likelihood / likely * exp(-(1.0 - likely) / likely * exp(-own)))
        return found

    def _noise(self, tokens: Sequence[int], depth: int) -> Sequence[float]:
        return noise.of_few(self.sampler.key(self.position + depth), tokens)
