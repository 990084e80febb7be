"""Keep one tree of candidates from all sources, the best that may be scored, and learn from it.

A source proposes successors of a node, each with the likelihood that it is the target's token
there. What several sources propose is one node, worth more than either says; how much more is
learned from every verdict. Since no node is likelier than its parent, the nodes are found in the
order of their values, and any number of the first ones is a connected tree.

Its growth stands between two forward passes and is in C++ (`planning/compiled.py`). What it learns
from a verdict is computed here, while the target computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from duodec.core.draft import ROOT, Draft
from duodec.planning.acceptance import Acceptance

LEAST_VALUE = 1e-3  # what is less likely is not worth a row
SHARE = 0.5  # of that, from which one source alone may propose it

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
ALONE, _UNLIKE_DRAFT, _DRAFT_ALONE, _TOGETHER = range(4)

_Asked = list[tuple[int, Sequence[Successor]]]
"""Sources and what they propose at a node, if anything."""

_Merged = dict[int, list[Any]]
"""By token: the likelihood that none of its sources is right, the sources, their states."""


class Selection:
    """The tree, in the order of its nodes' values; parents come before their children."""

    def __init__(self, sources: Sequence[Source], agreement: Acceptance) -> None:
        """The first source is the draft model's tree."""
        self.sources = sources
        self.agreement = agreement
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self.reach = 0.0  # likelihood that the next token is among the root's successors
        self.depth = 0  # of nodes whose successors were asked for, at most
        self.least = LEAST_VALUE  # of a node
        self.is_full = False  # it has as many nodes as were asked for
        self.num_labelled = 0  # tokens whose parent's successors were known
        self.num_without_draft = 0  # of them, those that a source without a model proposed

    def draft(self, num_tokens: int) -> Draft:
        """The first nodes; the likelier child comes before others."""
        return Draft(tuple(self.tokens[:num_tokens]), tuple(self.parents[:num_tokens]))

    @property
    def has_draft(self) -> bool:
        """The draft model proposes something after the text."""
        return bool(self.sources) and bool(self.sources[0].successors(self.sources[0].root(), 0.0))

    def _asked(self, states: Sequence[State], value: float) -> _Asked:
        """What the sources propose at a node of this value."""
        share = SHARE * self.least / value
        return [
            (i, known)
            for i, (source, state) in enumerate(zip(self.sources, states, strict=True))
            if state is not None and (known := source.successors(state, share))
        ]

    def _merged(self, asked: _Asked) -> tuple[_Merged, list[int]]:
        """Successors, each token once, and who proposes each."""
        found: _Merged = {}
        draft_knows = asked[0][0] == 0
        for source, known in asked:
            for token, likelihood, below in known:
                entry = found.get(token)
                if entry is None:
                    found[token] = entry = [1.0, 0, [None] * len(self.sources)]
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
            else ALONE
            for _, mask, _ in found.values()
        ]
        return found, patterns

    def learn(self, tokens: Sequence[int]) -> None:
        """The tokens that came: each candidate along them was right or not. The sources are asked
        again: to keep what they all said would cost time between two forward passes."""
        index = {(p, t): i for i, (p, t) in enumerate(zip(self.parents, self.tokens, strict=True))}
        states: list[State] = [source.root() for source in self.sources]
        node, value = ROOT, 1.0
        for token in tokens[: self.depth]:
            self.num_labelled += 1
            found: _Merged = {}
            if asked := self._asked(states, value):
                found, patterns = self._merged(asked)
                is_right = [one == token for one in found]
                joint = [1.0 - wrong for wrong, _, _ in found.values()]
                self.agreement.observe(joint, patterns, is_right)
                self.num_without_draft += any(
                    right and pattern != _DRAFT_ALONE
                    for right, pattern in zip(is_right, patterns, strict=True)
                )
            for source, state in zip(self.sources, states, strict=True):
                if state is not None:
                    source.observe(state, token)
            if (node, token) not in index or token not in found:  # others have taught meanwhile
                return
            states, node = self._below(states, token, found), index[node, token]
            value = self.values[node]

    def without(self, source: Source, tokens: Sequence[int]) -> list[float]:
        """What the first of these tokens are worth to the other sources, one after the other, as
        far as these propose them."""
        states = [None if one is source else one.root() for one in self.sources]
        values, value = list[float](), 1.0
        for token in tokens:
            asked = self._asked(states, value)
            found, patterns = self._merged(asked) if asked else ({}, [])
            if token not in found:
                break
            pattern = patterns[list(found).index(token)]
            value *= self.agreement.estimate(1.0 - found[token][0], pattern)
            values.append(value)
            states = self._below(states, token, found)
        return values

    def _below(self, states: Sequence[State], token: int, found: _Merged) -> list[State]:
        """Where a token that was found leads the sources."""
        below: list[State] = found[token][2]
        for i, source in enumerate(self.sources):
            if source.is_open and below[i] is None and states[i] is not None:
                below[i] = source.follow(states[i], token)
        return below
