"""Candidates that cost nothing, with what they are worth: they join the drafter's in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.sampling import Tokens
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.planning.acceptance import Acceptance
from duodec.planning.planner import Offer

_MAX_DEPTH = 24
_FACTOR = 2.0  # draft tokens a matched token
_MIN_SHARE = 0.05
_LENGTHS = (1, 2, 4, 8)  # matches that are judged apart: of one token, 2 or 3, 4 to 7, more


@dataclass(frozen=True)
class FreeMemory:
    """What outlives an answer: earlier answers, and how often such candidates were right."""

    earlier: Suffixes = field(default_factory=lambda: Suffixes(_MAX_DEPTH))
    acceptances: tuple[Acceptance, ...] = field(
        default_factory=lambda: tuple(Acceptance() for _ in _LENGTHS)
    )


class FreeCandidates:
    """Continuations of the text's last tokens, in this text and in earlier answers."""

    def __init__(self, memory: FreeMemory, text: Tokens) -> None:
        self._memory = memory
        self._own = Suffixes(_MAX_DEPTH)
        self._num_prompt = len(text)
        self._offered: list[tuple[CandidateTree, Acceptance]] = []

    def offers(self, text: Tokens) -> list[Offer]:
        """What may follow the text."""
        self._own.extend(text[len(self._own) :].tolist())
        self._offered = []
        offers = []
        for store in (self._own, self._memory.earlier):
            speculation = store.speculate(text, _FACTOR, _MIN_SHARE)
            if len(speculation.draft):
                tree, acceptance = _tree_of(speculation), self._acceptance(speculation.length)
                self._offered.append((tree, acceptance))
                offers.append(Offer(tree.tokens, tree.parents, acceptance.values(tree)))
        return offers

    def learn(self, tokens: Sequence[int]) -> None:
        """These tokens came."""
        for tree, acceptance in self._offered:
            acceptance.learn(tree, tokens)

    def end(self, text: Tokens) -> None:
        """The answer is complete."""
        self._memory.earlier.extend(text[self._num_prompt :].tolist())
        self._memory.earlier.end()

    def _acceptance(self, length: int) -> Acceptance:
        number = sum(length >= least for least in _LENGTHS) - 1
        return self._memory.acceptances[number]


def _tree_of(speculation: Speculation) -> CandidateTree:
    """The draft with each node's share of its parent's places as its confidence."""
    draft, shares = speculation.draft, speculation.shares
    tree = CandidateTree()
    tree.extend(
        draft.tokens,
        draft.parents,
        [
            share / (1.0 if parent == ROOT else shares[parent])
            for share, parent in zip(shares, draft.parents, strict=True)
        ],
    )
    return tree
