"""Decode with EAGLE-2: a small layer that guesses the target's next states, and grows a tree."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.targets import HeadPlan
from duodec.drafting.heads import Likeliest
from duodec.methods.heads import HeadsMethod

TREE = Likeliest(num_tokens=60, num_leaves=10, num_candidates=10)


@dataclass(frozen=True)
class Eagle(HeadsMethod):
    """Draft as in 2406.16858, with keyed draws. The tree grows where its tokens are likely, ten
    leaves a level, and the 60 likeliest are scored, as in the release."""

    name = "eagle"
    needs_heads = "eagle"

    tree: HeadPlan = TREE
