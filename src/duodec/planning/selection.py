"""Grow one tree of candidates from all sources, best first, as far as it may be scored.

A source proposes successors of a node, each with the likelihood that it is the target's token
there. What several sources propose is one node, worth more than either says; how much more is
learned from every verdict. Since no node is likelier than its parent, the nodes are found in the
order of their values, and any number of the first ones is a connected tree.

This runs between two forward passes: lists and plain loops, since there are some dozens of nodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from duodec.core.draft import ROOT, Draft
from duodec.planning.acceptance import EDGES, NUM_RANKS, PRIOR_WEIGHT, Acceptance

LEAST_VALUE = 1e-3  # what is less likely is not worth a row
_SHARE = 0.5  # of that, from which one source alone may propose it

State = Any
"""Where a source stands at a node; None where it has nothing to propose."""

Successor = tuple[int, float, State]
"""Token, likelihood, state there."""


class Source(Protocol):
    """Proposes tokens."""

    @property
    def is_open(self) -> bool:
        """Whether it may go on from tokens that it has not proposed."""

    def root(self) -> State:
        """Where it stands at the end of the text."""

    def successors(self, state: State, least: float) -> Sequence[Successor]:
        """What may come next, as far as it is at least so likely; [] where it does not know. A
        state of None is found by `follow`, once it is needed."""

    def follow(self, state: State, token: int) -> State:
        """Where a token leads; only an open source is asked."""

    def observe(self, state: State, token: int) -> None:
        """The target's token at a node whose successors were asked for."""


# Who proposes a token, as far as that says how likely it is.
_ALONE, _UNLIKE_DRAFT, _DRAFT_ALONE, _TOGETHER = range(4)

_Merged = dict[int, list[Any]]
"""By token: the likelihood that none of its sources is right, the sources, their states."""


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
        self._depth = 0  # of nodes whose successors were asked for, at most
        # by node that was expanded: what was proposed, by one source or by several
        self._of_one: dict[int, tuple[int, Sequence[Successor]]] = {}
        self._of_several: dict[int, tuple[_Merged, list[int]]] = {}

    def draft(self, num_tokens: int) -> Draft:
        """The first nodes; the likelier child comes before others."""
        return Draft(tuple(self.tokens[:num_tokens]), tuple(self.parents[:num_tokens]))

    def grow(
        self, num_tokens: int, depth: int, *, has_branches: bool = True, least: float = LEAST_VALUE
    ) -> None:
        """Find the likeliest nodes: at most so many, so deep, of at least that value; without
        branches a chain."""
        sources, tokens, parents, values = self._sources, self.tokens, self.parents, self.values
        num_right, num_seen = self._agreement.num_right, self._agreement.num_seen
        all_states, of_one = self._states, self._of_one
        asks = [source.successors for source in sources]
        open_sources = [(i, source.follow) for i, source in enumerate(sources) if source.is_open]
        self._depth = depth if num_tokens else 0
        none: list[State] = [None] * len(sources)
        # (-value, order, parent, token, the only source or -1, its state or all states, depth)
        edge: list[tuple[float, int, int, int, int, Any, int]] = []
        states = [source.root() for source in sources]
        all_states.append(states)
        node, value, deep, order = ROOT, 1.0, 0, 0
        while True:
            if deep < self._depth:
                asked = []
                share = _SHARE * least / value
                for i, state in enumerate(states):
                    if state is not None and (known := asks[i](state, share)):
                        asked.append((i, known))
                if len(asked) == 1:
                    i, known = asked[0]
                    of_one[node] = asked[0]
                    pattern = _ALONE if i else _DRAFT_ALONE
                    for token, likely, state in known:
                        # `Acceptance.estimate`, without a call for each of many
                        cell = bisect_right(EDGES, likely) * NUM_RANKS + pattern
                        right = num_right[cell] + PRIOR_WEIGHT * likely
                        own = value * (right / (num_seen[cell] + PRIOR_WEIGHT))
                        if own >= least:
                            order += 1
                            heappush(edge, (-own, order, node, token, i, state, deep + 1))
                elif asked:
                    for token, likely, below in self._merge(node, asked):
                        if value * likely >= least:
                            order += 1
                            own = value * likely
                            heappush(edge, (-own, order, node, token, -1, below, deep + 1))
                if node == ROOT:
                    self.reach = self._reach()
            if not edge or len(tokens) >= num_tokens:
                return
            negative, _, parent, token, i, state, deep = heappop(edge)
            if not has_branches:
                edge.clear()
            if i < 0:
                states = state
            else:
                states = none.copy()
                states[i] = state
            above = all_states[parent + 1]
            for i, follow in open_sources:
                if states[i] is None and above[i] is not None:
                    states[i] = follow(above[i], token)
            node, value = len(tokens), -negative
            tokens.append(token)
            parents.append(parent)
            values.append(value)
            all_states.append(states)

    def _reach(self) -> float:
        """That the next token is among the root's successors."""
        if ROOT in self._of_one:
            source, known = self._of_one[ROOT]
            pattern = _ALONE if source else _DRAFT_ALONE
            joint = [likely for _, likely, _ in known]
            return min(1.0, sum(self._agreement.at_rank(joint, pattern)))
        if ROOT in self._of_several:
            found, patterns = self._of_several[ROOT]
            joint = [1.0 - none for none, _, _ in found.values()]
            return min(1.0, sum(map(self._agreement.estimate, joint, patterns)))
        return 0.0

    def _merge(
        self, node: int, asked: Sequence[tuple[int, Sequence[Successor]]]
    ) -> list[tuple[int, float, list[State]]]:
        """Successors that several sources propose, each token once."""
        num = len(self._sources)
        found: _Merged = {}
        draft_knows = asked[0][0] == 0
        for source, known in asked:
            for token, likelihood, below in known:
                entry = found.get(token)
                if entry is None:
                    found[token] = entry = [1.0, 0, [None] * num]
                entry[0] *= 1.0 - likelihood
                entry[1] |= 1 << source
                entry[2][source] = below
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
        self._of_several[node] = found, patterns
        estimate = self._agreement.estimate
        return [
            (token, estimate(1.0 - entry[0], pattern), entry[2])
            for (token, entry), pattern in zip(found.items(), patterns, strict=True)
        ]

    def _proposals(self, node: int) -> tuple[Sequence[int], Sequence[float], Sequence[int]] | None:
        """Tokens, the likelihoods that any of their sources is right, and who proposed them."""
        if node in self._of_one:
            source, known = self._of_one[node]
            tokens, joint, _ = zip(*known, strict=True)
            return tokens, joint, (_ALONE if source else _DRAFT_ALONE,) * len(tokens)
        if node in self._of_several:
            found, patterns = self._of_several[node]
            return tuple(found), [1.0 - none for none, _, _ in found.values()], patterns
        return None

    def learn(self, tokens: Sequence[int]) -> None:
        """The tokens that came: each candidate along them was right or not."""
        node: int | None = ROOT
        index = {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True))}
        for token in tokens[: self._depth]:
            if node is None:
                return
            self.num_labelled += 1
            if (proposals := self._proposals(node)) is not None:
                proposed, joint, patterns = proposals
                is_right = [one == token for one in proposed]
                self._agreement.observe(joint, patterns, is_right)
                self.num_without_draft += any(
                    right and pattern != _DRAFT_ALONE
                    for right, pattern in zip(is_right, patterns, strict=True)
                )
            for source, state in zip(self._sources, self._states[node + 1], strict=True):
                if state is not None:
                    source.observe(state, token)
            node = index.get((node, token))
