"""Decode with token recycling: the candidates of earlier forward passes are the next drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Scores
from duodec.drafting.owners import ByOwner
from duodec.drafting.recycling import NUM_CANDIDATES, Adjacency, adjacencies, recycled
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class TokenRecycling(Method):
    """Draft as in 2408.08696. The tree of 80 tokens is the released one (``2.2.2``); it starts
    empty."""

    name = "recycling"
    reads_off_path = True
    learns = True

    num_tokens: int = 80  # most nodes of that tree; its first levels are used
    adjacencies: ByOwner[Adjacency] = field(default_factory=adjacencies)

    def decode(self, request: Request) -> Loop:
        adjacency = self.adjacencies.of(request.owner)

        def propose(request: Request) -> Draft:
            tree = recycled(adjacency, int(request.text[-1]))
            return tree.within(self.num_tokens, len(tree))

        def learn(text: Tokens, draft: Draft, scores: Scores) -> None:
            scored = (int(text[-1]), *draft.tokens)[: scores.num_rows]
            for row, token in enumerate(scored):
                if successors := scores.candidates(row).tokens:
                    adjacency[token] = successors

        return serial(request, propose, learn=learn, num_candidates=NUM_CANDIDATES)
