"""Compare a draft's logits with the target's likeliest tokens: three losses, and the agreement.

p is the target's distribution, known at its likeliest tokens and as the sum of the others; q is the
draft's. All are means over positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from duodec_lab.distill.library import torch

_LEAST = 1e-6  # of a probability whose logarithm is needed
_SLOPE = 3.0  # with which `lk` leaves KL, as in the paper


@dataclass(frozen=True)
class Known:
    """The target's side of some positions: its likeliest tokens and their probabilities, zero where
    fewer are known; both (positions, tops)."""

    tokens: Any
    probs: Any

    def at(self, rows: Any) -> Known:
        """Some of the positions."""
        return Known(self.tokens[rows], self.probs[rows])

    @classmethod
    def of(cls, tokens: Any, logprobs: Any, temperature: float) -> Known:
        """Of recorded log probabilities, at a temperature. At 0, where the target takes the
        likeliest token, the distribution at temperature 1 teaches more than that token."""
        if temperature not in (0.0, 1.0):  # what is not known is next to nothing when sharpened
            logprobs = torch.log_softmax(logprobs / temperature, -1)
        return cls(tokens, logprobs.exp())


def kl(log_q: Any, known: Known) -> Any:
    """KL(p || q), the tokens that are not known being one: (positions,)."""
    p, inside = known.probs, _inside(log_q, known)
    rest_p = (1 - p.sum(1)).clamp_min(0)
    rest_q = (1 - (inside.exp() * (p > 0)).sum(1)).clamp_min(_LEAST)
    told = (p * (p.clamp_min(_LEAST).log() - inside)).sum(1)
    return told + rest_p * (rest_p.clamp_min(_LEAST).log() - rest_q.log())


def acceptance(log_q: Any, known: Known) -> Any:
    """The probability that a token drawn from q is accepted, sum of min(p, q) over known tokens."""
    return torch.minimum(known.probs, _inside(log_q, known).exp()).sum(1)


def minus_log_acceptance(log_q: Any, known: Known) -> Any:
    """LK-alpha of arXiv 2602.23881: minus the log of the acceptance."""
    return -acceptance(log_q, known).clamp_min(_LEAST).log()


def lk(log_q: Any, known: Known) -> Any:
    """LK-lambda of arXiv 2602.23881: KL while acceptance is low, its complement as it rises."""
    accepted = acceptance(log_q, known)
    weight = torch.exp(-_SLOPE * accepted.detach())
    return weight * kl(log_q, known) + (1 - weight) * (1 - accepted)


Loss = Callable[[Any, Known], Any]
LOSSES: Mapping[str, Loss] = {"kl": kl, "lk": lk, "acceptance": minus_log_acceptance}


def agreement(logits: Any, known: Known, count: int) -> Any:
    """How many positions have the target's likeliest token among the draft's first ``count``."""
    first = logits.topk(min(count, logits.shape[-1]), -1).indices
    is_right = (first == known.tokens[:, :1]) & (known.probs[:, :1] > 0)
    return is_right.any(1).sum()


def _inside(log_q: Any, known: Known) -> Any:
    return log_q.gather(1, known.tokens)
