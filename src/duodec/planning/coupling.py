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

It is computed in C++ (`native/selection.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.sampling.sampler import Sampler

LEAST = 1e-30  # likelihood whose logarithm is taken


@dataclass(frozen=True)
class Coupling:
    """The noise after a text: ``position`` is that of the token which follows it."""

    sampler: Sampler
    position: int

    @property
    def power(self) -> float:
        """Of a likelihood at temperature 1, for that at the sampler's temperature."""
        return 1.0 / self.sampler.params.temperature
