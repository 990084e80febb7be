"""Decode with a target's own layer of multi-token prediction, one token after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.protocols import HeadPlan
from duodec.drafting.heads import Likeliest
from duodec.methods.heads import HeadsMethod


@dataclass(frozen=True)
class MultiTokenPrediction(HeadsMethod):
    """2412.19437, as llama.cpp and vLLM draft with it: a chain of ``num_tokens`` tokens, each of
    which the layer reads with its own state."""

    name = "mtp"
    needs_heads = "mtp"
    reads_off_path = False

    num_tokens: int = 3
    tree: HeadPlan = field(init=False)

    def __post_init__(self) -> None:
        chain = Likeliest(num_tokens=self.num_tokens, num_leaves=1, num_candidates=1)
        object.__setattr__(self, "tree", chain)
