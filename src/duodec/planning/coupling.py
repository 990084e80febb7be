"""Predict a draw from its noise, which is known long before the row of logits that it is added to.

A sampled token is ``argmax(log p + g)``, and seed, position and token alone decide the Gumbel noise
g (`core/sampling/noise.py`). So a token that texts or earlier rows propose is likelier where its
own noise is high.

A row that the target has scored knows p, as far as its context is the same. Its tokens are sorted
again by ``log p + g``. A softmax of these sums accounts for the differences, as with a draft
model's candidates (`Sampler.candidates`).

Of a token that followed earlier, only the likelihood q that it does so again is known. If p were q,
it would be drawn where its sum exceeds that of all others together, with likelihood ``exp(-(1 - q)
/ q exp(-g))``. But q is mostly low where a text continues in another way altogether, whatever the
noise. So ``q ** SPREAD`` is used for p, and the rest of q is the share of texts that continue
alike. Averaged over the noise, the result is q.

C++ computes it (`native/selection.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.sampling.sampler import Sampler

LEAST = 1e-30  # least likelihood whose logarithm is computed


@dataclass(frozen=True)
class Coupling:
    """Hold the noise after a text: ``position`` is that of the token which follows it."""

    sampler: Sampler
    position: int

    @property
    def power(self) -> float:
        """Return the exponent that turns a likelihood at temperature 1 into one at the sampler's
        temperature."""
        return 1.0 / self.sampler.params.temperature
