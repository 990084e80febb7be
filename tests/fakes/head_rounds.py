"""Decode with what a target's own heads propose, and count what comes true."""

from __future__ import annotations

import numpy as np

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query, Target
from duodec.drafting.heads import Likeliest

CHAIN = Likeliest(num_leaves=1, num_candidates=1, depth=3)


def rounds(
    target: Target, text: Tokens, num_rounds: int, plan: Likeliest = CHAIN
) -> tuple[Tokens, int]:
    """Decode with the head's own chains. Returns the text, and how many drafts came true."""
    draft, num_accepted = Draft(), 0
    for _ in range(num_rounds):
        query = Query(0, text, draft, heads=plan)
        (scores,) = target.score([query])
        node, tokens = ROOT, []
        while True:
            tokens.append(scores.draw(node + 1).token)
            child = draft.child(node, tokens[-1])
            if child is None or child + 1 >= scores.num_rows:
                break
            node = child
        num_accepted += len(tokens) - 1
        text = np.concatenate([text, np.array(tokens, dtype=np.int32)])
        tree = scores.proposed().tree
        draft = Draft(tuple(tree.tokens), tuple(tree.parents))
    return text, num_accepted
