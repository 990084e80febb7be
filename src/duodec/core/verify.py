"""Verify drafts: the one place where draft tokens are accepted or rejected.

accepted    draft tokens that are kept
recovered   the target's token in place of rejected ones
bonus       the target's token after a fully accepted path
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from duodec.core.draft import ROOT, Draft
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import GrammarEnded
from duodec.core.sampling.sampler import Distribution, Draw, Sampler
from duodec.core.targets import Heads, Proposed, Query, Scores
from duodec.errors import BadOption, DuodecError


@dataclass(frozen=True)
class Verdict:
    """Hold the result of one verification.

    The walk ended at node ``end`` (ROOT: nothing was accepted). ``final`` is the target's own token
    there. It is None when the walk ran past what was scored, or to a row without a draw: ``end``
    was accepted, but the token after it is not known yet.
    """

    accepted: tuple[int, ...]  # draft tokens, in order
    end: int
    final: int | None
    margin: float  # narrowest win among the draws that decided it

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return all tokens that join the text."""
        return self.accepted if self.final is None else (*self.accepted, self.final)


Rule = Callable[[Draft, Scores, int], tuple[Draw, int | None]]
"""Decide the row after a node: a token, and the child that proposed it, or None if none did."""


def keyed(draft: Draft, scores: Scores, node: int) -> tuple[Draw, int | None]:
    """Accept the child that carries the target's keyed draw: exact for every draft."""
    draw = scores.draw(node + 1)
    return draw, draft.child(node, draw.token)


def verify(draft: Draft, scores: Scores, rule: Rule = keyed) -> Verdict:
    """Walk the tree from the root as far as it was scored.

    A row that has no draw raises at the root. Deeper in the tree it ends the walk: the text may
    have ended before it; otherwise the row is the next root.
    """
    accepted: list[int] = []
    node, margin = ROOT, math.inf
    while node + 1 < scores.num_rows:
        try:
            draw, child = rule(draft, scores, node)
        except (DuodecError, GrammarEnded):
            if node == ROOT:
                raise
            break
        margin = min(margin, draw.margin)
        if child is None:
            return Verdict(tuple(accepted), node, draw.token, margin)
        accepted.append(draw.token)
        node = child
    return Verdict(tuple(accepted), node, None, margin)


def propose(
    query: Query,
    scores: Scores,
    heads_at: Callable[[Verdict], Heads],
    depth: int,
) -> Proposed:
    """Return what a target's own heads propose after the text that these scores leave, at most
    ``depth`` tokens deep; nothing if they rest. ``heads_at`` opens the heads there."""
    if query.heads is None:
        return Proposed()
    begin_s = perf_counter()
    try:
        verdict = verify(query.draft, scores)
    except (DuodecError, GrammarEnded):  # its request will get the error
        return Proposed()
    if verdict.final is None:  # the token after the draft is not known
        return Proposed()
    try:
        tree = query.heads.grow(heads_at(verdict), depth)
    except BadOption:  # the mask cannot be followed there
        return Proposed()
    return Proposed(tree, perf_counter() - begin_s)


class Dice(Protocol):
    """Provide randomness, for one position at a time."""

    def accept(self, position: int, token: int, probability: float) -> bool:
        """Return True with ``probability``."""

    def draw(self, position: int, distribution: Distribution) -> int:
        """Return a token from ``distribution``."""


def rejection(dice: Dice, num_text_tokens: int) -> Rule:
    """Return the rule of speculative sampling (2211.17192; several children: 2305.09781).

    It needs drafts that were drawn from their ``distributions``, and targets that give theirs.
    """

    def decide(draft: Draft, scores: Scores, node: int) -> tuple[Draw, int | None]:
        distributions = draft.distributions or ()
        assert len(distributions) == len(draft), "rejection needs the drafts' distributions"
        position = num_text_tokens + len(draft.path(node))
        p = scores.distribution(node + 1)
        for child in draft.children(node):
            token, q = draft.tokens[child], distributions[child]
            if dice.accept(position, token, min(1.0, p.prob(token) / q.prob(token))):
                return Draw(token, math.inf), child
            # Siblings are tried in order, and a rejection changes p for the next one.
            p = p.residual(q)
        return Draw(dice.draw(position, p), math.inf), None

    return decide


@dataclass(frozen=True)
class KeyedDice:
    """Throw dice by a function of (seed, choice, position, token)."""

    sampler: Sampler

    def accept(self, position: int, token: int, probability: float) -> bool:
        key = self.sampler.key(position, noise.COIN)
        return bool(noise.uniform(key, np.array([token]))[0] < probability)

    def draw(self, position: int, distribution: Distribution) -> int:
        return draw_from(distribution, self.sampler.key(position, noise.DRAW))


def draw_from(distribution: Distribution, key: int) -> int:
    """Return the keyed draw from a distribution."""
    with np.errstate(divide="ignore"):  # log 0 = -inf is never drawn
        scores = np.log(distribution.probs)
    return int(distribution.tokens[np.argmax(scores + noise.gumbel(key, distribution.tokens))])
