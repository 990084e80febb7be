"""Token recycling: the candidates that a forward did not take are the next rounds' drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from duodec.core.draft import Draft
from duodec.core.protocols import Scores
from duodec.core.round import Round
from duodec.core.sampling import Tokens
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.recycling import NUM_CANDIDATES, Adjacency, recycled


@dataclass(frozen=True)
class TokenRecycling(Method):
    """2408.08696. The tree of 80 tokens is the released one (``2.2.2``); it starts empty."""

    name = "recycling"
    reads_off_path = True
    learns = True

    adjacency: Adjacency = field(default_factory=dict)

    def rounds(self, session: Session) -> Iterator[Round]:
        def propose(session: Session) -> Draft:
            return recycled(self.adjacency, int(session.text[-1]))

        def learn(text: Tokens, draft: Draft, scores: Scores) -> None:
            for row, token in enumerate((int(text[-1]), *draft.tokens)):
                self.adjacency[token] = scores.candidates(row).tokens

        return serial(session, propose, learn=learn, num_candidates=NUM_CANDIDATES)
