"""Decode with Medusa: several heads on the target's last state, each a token further ahead."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.targets import HeadPlan
from duodec.drafting.heads import Ranks
from duodec.methods.heads import HeadsMethod

# This is the release's `mc_sim_7b_63`: 63 nodes, four deep.
TREE = Ranks(
    {
        (): 10,
        (0,): 10, (1,): 7, (2,): 3, (3,): 2, **{(rank,): 1 for rank in range(4, 10)},
        (0, 0): 10, (0, 1): 3, (0, 2): 2, **{(0, rank): 1 for rank in range(3, 8)},
        (1, 0): 2, (2, 0): 1,
        (0, 0, 0): 2,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Medusa(HeadsMethod):
    """Draft as in 2401.10774, with keyed draws in place of typical acceptance. The heads know
    nothing of each other's tokens, so the released tree takes many of the first and few of the
    last."""

    name = "medusa"
    needs_heads = "medusa"

    tree: HeadPlan = TREE
