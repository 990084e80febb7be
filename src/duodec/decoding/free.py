"""Candidates that cost nothing, with what they are worth: they join the drafter's in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Scores
from duodec.core.sampling import Tokens
from duodec.core.verify import Verdict
from duodec.drafting.recycling import Adjacency, recycled
from duodec.drafting.suffix import Speculation, Suffixes
from duodec.errors import LawUnavailable
from duodec.planning.acceptance import Acceptance
from duodec.planning.planner import Offer

_MAX_DEPTH = 24
_FACTOR = 2.0  # draft tokens a matched token
_MIN_SHARE = 0.05
_BY_RANK = (0.4, 0.15, 0.08, 0.05, 0.04, 0.03, 0.02, 0.02)  # expected of candidates, at first
_LENGTHS = (1, 2, 4, 8)  # matches that are judged apart: of one token, 2 or 3, 4 to 7, more


@dataclass(frozen=True)
class FreeMemory:
    """What outlives an answer: earlier answers, what the target held likely after each token, and
    how often such candidates were right."""

    earlier: Suffixes = field(default_factory=lambda: Suffixes(_MAX_DEPTH))
    by_length: tuple[Acceptance, ...] = field(
        default_factory=lambda: tuple(Acceptance() for _ in _LENGTHS)
    )
    adjacency: Adjacency = field(default_factory=dict)
    recycled: Acceptance = field(default_factory=Acceptance)


class FreeCandidates:
    """Continuations of the text's last tokens, in this text and in earlier answers (2411.04975);
    and what the target itself held likely after such a token, where it says so (2408.08696)."""

    def __init__(self, memory: FreeMemory, text: Tokens) -> None:
        self._memory = memory
        self._own = Suffixes(_MAX_DEPTH)
        self._num_prompt = len(text)
        self._offered: list[tuple[CandidateTree, Acceptance]] = []
        self._has_candidates = True  # until the target says that it gives none

    def read(self, text: Tokens) -> None:
        """Take in what is new of the text."""
        self._own.extend(text[len(self._own) :].tolist())

    def offers(self, text: Tokens, depth: int = _MAX_DEPTH) -> list[Offer]:
        """What may follow the text, at most so many tokens deep."""
        self.read(text)
        self._offered = []
        for store in (self._own, self._memory.earlier):
            speculation = store.speculate(text, _FACTOR, _MIN_SHARE, depth)
            if len(speculation.draft):
                acceptance = self._acceptance(speculation.length)
                self._offered.append((_tree_of(speculation), acceptance))
        again = self._memory.adjacency and recycled(self._memory.adjacency, int(text[-1]))
        if again:
            self._offered.append((_ranked(again), self._memory.recycled))
        return [
            Offer(tree.tokens, tree.parents, acceptance.values(tree))
            for tree, acceptance in self._offered
        ]

    def learn(self, last: int, verdict: Verdict, draft: Draft, scores: Scores) -> None:
        """The verdict on a draft after the token ``last``."""
        self.label(verdict.tokens)
        if self._has_candidates:
            try:
                for node in (ROOT, *draft.path(verdict.end)):
                    if node + 1 >= scores.num_rows:
                        break  # accepted, but not scored itself
                    token = last if node == ROOT else draft.tokens[node]
                    self._memory.adjacency[token] = scores.candidates(node + 1)
            except LawUnavailable:
                self._has_candidates = False

    def label(self, tokens: Sequence[int]) -> None:
        """The tokens that came where something was offered."""
        for tree, acceptance in self._offered:
            acceptance.learn(tree, tokens)
        self._offered = []

    def end(self, text: Tokens) -> None:
        """The answer is complete."""
        self._memory.earlier.extend(text[self._num_prompt :].tolist())
        self._memory.earlier.end()

    def _acceptance(self, length: int) -> Acceptance:
        number = sum(length >= least for least in _LENGTHS) - 1
        return self._memory.by_length[number]


def _ranked(draft: Draft) -> CandidateTree:
    """The draft with what a token's rank among its siblings says as its confidence."""
    tree, num_children = CandidateTree(), dict.fromkeys(range(ROOT, len(draft)), 0)
    confidences = []
    for parent in draft.parents:
        confidences.append(_BY_RANK[num_children[parent]])
        num_children[parent] += 1
    tree.extend(draft.tokens, draft.parents, confidences)
    return tree


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
