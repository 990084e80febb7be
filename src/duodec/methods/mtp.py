"""Decode with multi-token prediction: the target's own last layer drafts a chain of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.targets import HeadPlan
from duodec.drafting.heads import Likeliest
from duodec.methods.heads import HeadsMethod


@dataclass(frozen=True)
class MultiTokenPrediction(HeadsMethod):
    """Draft as in 2412.19437: the target's own layer proposes a chain of ``num_tokens`` tokens, and
    reads each with the state that it had at the one before; llama.cpp's ``draft-mtp``."""

    name = "mtp"
    needs_heads = "mtp"
    reads_off_path = False

    tree: HeadPlan = field(init=False, repr=False)
    num_tokens: int = 3

    def __post_init__(self) -> None:
        chain = Likeliest(num_leaves=1, num_candidates=1, depth=self.num_tokens)
        object.__setattr__(self, "tree", chain)
