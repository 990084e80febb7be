"""Foresee a draw by its noise, which is known long before the row of logits that it is added to.

A sampled token is ``argmax(log p + g)``, and seed, position and token alone decide the Gumbel noise
g (`core/sampling/noise.py`). So what a text or an earlier row proposes is likelier where its own
noise is high. Of tokens that are expected with likelihoods q, the one with the highest
``log q + g`` is drawn, unless a token that is not among them has a higher sum: these are together
as likely as r, so their highest sum stays below s with likelihood ``exp(-r exp(-s))``. The softmax
stands for what is not known exactly: q.

A draft model's candidates are ordered in the same way (`Sampler.candidates`). The selection's own
copy of this is in C++ (`native/selection.cpp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from duodec.core.sampling import noise
from duodec.core.sampling.sampler import Sampler

LEAST = 1e-30  # likelihood whose logarithm is taken

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
        return self._judged(tokens, confidences, self.power, confidences[0], 0.0, depth)

    def of_text(self, tokens: Sequence[int], likelihoods: Sequence[float], depth: int) -> Judged:
        """The same of tokens that followed earlier, as likely as that whatever the noise is."""
        return self._judged(tokens, likelihoods, 1.0, 1.0, max(0.0, 1.0 - added(likelihoods)), depth)

    def _judged(
        self,
        tokens: Sequence[int],
        likelihoods: Sequence[float],
        power: float,
        most: float,
        rest: float,
        depth: int,
    ) -> Judged:
        found = noise.of_few(self.sampler.key(self.position + depth), tokens)
        most = max(most, LEAST)
        sums = [
            power * log(max(one, LEAST) / most) + own
            for one, own in zip(likelihoods, found, strict=True)
        ]
        order = sorted(range(len(sums)), key=lambda i: -sums[i])  # stable
        best = sums[order[0]]
        weights = [exp(sums[i] - best) for i in order]
        share = exp(-rest * exp(-best)) / added(weights)
        return [(i, share * weight) for i, weight in zip(order, weights, strict=True)]


def added(numbers: Iterable[float]) -> float:
    """The sum, one after the other as in C++: newer versions of Python round `sum` otherwise."""
    total = 0.0
    for number in numbers:
        total += number
    return total
