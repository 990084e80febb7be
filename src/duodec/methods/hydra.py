"""Decode with Hydra: Medusa's heads, each of which knows the tokens drafted before."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.targets import HeadPlan
from duodec.methods.heads import HeadsMethod
from duodec.methods.medusa import TREE


@dataclass(frozen=True)
class Hydra(HeadsMethod):
    """Draft as in 2402.05109, with keyed draws in place of typical acceptance, and with Medusa's
    tree, as in the release."""

    name = "hydra"
    needs_heads = "hydra"

    tree: HeadPlan = TREE
