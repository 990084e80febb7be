"""Grow one tree of candidates from all sources, best first, as far as it may be scored.

A source proposes successors of a node, each with the likelihood that it is the target's token
there. What several sources propose is one node, worth more than either says; how much more is
learned from every verdict. Since no node is likelier than its parent, the nodes are found in the
order of their values, and any number of the first ones is a connected tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from duodec.core.draft import ROOT, Draft
from duodec.planning.acceptance import Acceptance

_LEAST_VALUE = 1e-3  # what is less likely is not worth a row
_SHARE = 0.5  # of that, from which one source alone may propose it

State = Any
"""Where a source stands at a node; None where it has nothing to propose."""


class Source(Protocol):
    """Proposes tokens."""

    def root(self) -> State:
        """Where it stands at the end of the text."""

    def successors(self, state: State, least: float) -> Sequence[tuple[int, float, State]]:
        """(token, likelihood, state there) of what may come next, as far as it is at least so
        likely; [] where it does not know. A state of None is found by `follow`, once it is needed.
        """

    def follow(self, state: State, token: int) -> State:
        """Where a token leads."""

    def observe(self, state: State, token: int) -> None:
        """The target's token at a node whose successors were asked for."""


# Who proposes a token, as far as that says how likely it is.
_ALONE, _UNLIKE_DRAFT, _DRAFT_ALONE, _TOGETHER = range(4)


@dataclass
class _Proposals:
    """The merged successors of one node."""

    tokens: Sequence[int] = ()
    joint: Sequence[float] = ()  # that any of its sources is right
    patterns: Sequence[int] = ()


class Selection:
    """The tree, in the order of its nodes' values; parents come before their children."""

    def __init__(self, sources: Sequence[Source], agreement: Acceptance) -> None:
        """The first source is the draft model's tree."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self.reach = 0.0  # likelihood that the next token is among the root's successors
        self.num_labelled = 0  # tokens whose parent's successors were known
        self.num_without_draft = 0  # of them, those that a source without a model proposed
        self._sources = sources
        self._agreement = agreement
        self._states: list[list[State]] = []  # of the root, then of each node
        self._proposals: dict[int, _Proposals] = {}

    def draft(self, num_tokens: int) -> Draft:
        """The first nodes; the likelier child comes before others."""
        return Draft(tuple(self.tokens[:num_tokens]), tuple(self.parents[:num_tokens]))

    def grow(self, num_tokens: int, depth: int, *, has_branches: bool = True) -> None:
        """Find the likeliest nodes: at most so many, so deep; without branches a chain."""
        self._states.append([source.root() for source in self._sources])
        order = count()
        edge: list[tuple[float, int, int, int, list[State], int]] = []
        node, states, value, deep = ROOT, self._states[0], 1.0, 0
        while True:
            if deep < depth and num_tokens:
                for token, likelihood, known in self._expand(
                    node, states, _SHARE * _LEAST_VALUE / value
                ):
                    if value * likelihood >= _LEAST_VALUE:
                        entry = (-value * likelihood, next(order), node, token, known, deep + 1)
                        heapq.heappush(edge, entry)
            if not edge or len(self.tokens) >= num_tokens:
                return
            negative, _, parent, token, states, deep = heapq.heappop(edge)
            if not has_branches:
                edge.clear()
            above = self._states[parent + 1]
            for i, state in enumerate(states):
                if state is None and above[i] is not None:
                    states[i] = self._sources[i].follow(above[i], token)
            node, value = len(self.tokens), -negative
            self.tokens.append(token)
            self.parents.append(parent)
            self.values.append(value)
            self._states.append(states)

    def _expand(
        self, node: int, states: list[State], least: float
    ) -> list[tuple[int, float, list[State]]]:
        """The successors of a node, each once: token, likelihood, states there."""
        asked = [
            (i, known)
            for i, state in enumerate(states)
            if state is not None and (known := self._sources[i].successors(state, least))
        ]
        if not asked:
            self._proposals[node] = _Proposals()
            return []
        if len(asked) == 1:
            merged = self._of_one(node, *asked[0], len(states))
        else:
            merged = self._of_several(node, asked, len(states))
        if node == ROOT:
            self.reach = min(1.0, sum(likelihood for _, likelihood, _ in merged))
        return merged

    def _of_one(
        self, node: int, source: int, known: Sequence[tuple[int, float, State]], num: int
    ) -> list[tuple[int, float, list[State]]]:
        """Successors that one source alone proposes."""
        pattern = _ALONE if source else _DRAFT_ALONE
        tokens, joint, below = zip(*known, strict=True)
        self._proposals[node] = _Proposals(tokens, joint, (pattern,) * len(tokens))
        merged = []
        for token, likelihood, state in zip(
            tokens, self._agreement.at_rank(joint, pattern), below, strict=True
        ):
            states = [None] * num
            states[source] = state
            merged.append((token, likelihood, states))
        return merged

    def _of_several(
        self, node: int, asked: Sequence[tuple[int, Sequence[tuple[int, float, State]]]], num: int
    ) -> list[tuple[int, float, list[State]]]:
        """Successors that several sources propose, each token once."""
        found: dict[int, list[Any]] = {}  # token: [likelihood of none, sources, states]
        draft_knows = asked[0][0] == 0
        for source, known in asked:
            for token, likelihood, below in known:
                entry = found.get(token)
                if entry is None:
                    found[token] = entry = [1.0, 0, [None] * num]
                entry[0] *= 1.0 - likelihood
                entry[1] |= 1 << source
                entry[2][source] = below
        joint = [1.0 - none for none, _, _ in found.values()]
        patterns = [
            _TOGETHER
            if mask & (mask - 1)
            else _DRAFT_ALONE
            if mask & 1
            else _UNLIKE_DRAFT
            if draft_knows
            else _ALONE
            for _, mask, _ in found.values()
        ]
        self._proposals[node] = _Proposals(tuple(found), joint, patterns)
        estimate = self._agreement.estimate
        return [
            (token, estimate(value, pattern), entry[2])
            for (token, entry), value, pattern in zip(found.items(), joint, patterns, strict=True)
        ]

    def learn(self, tokens: Sequence[int]) -> None:
        """The tokens that came: each candidate along them was right or not."""
        node: int | None = ROOT
        index = {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True))}
        for token in tokens:
            if node is None or node not in self._proposals:
                return
            proposals = self._proposals[node]
            is_right = [proposed == token for proposed in proposals.tokens]
            self._agreement.observe(proposals.joint, proposals.patterns, is_right)
            self.num_labelled += 1
            self.num_without_draft += any(
                right and pattern != _DRAFT_ALONE
                for right, pattern in zip(is_right, proposals.patterns, strict=True)
            )
            for source, state in zip(self._sources, self._states[node + 1], strict=True):
                if state is not None:
                    source.observe(state, token)
            node = index.get((node, token))
