"""Verify drafts: the one place where draft tokens are accepted or refused.

accepted    draft tokens that are kept
recovered   the target's token in place of refused ones
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
from duodec.core.protocols import Heads, Proposed, Query, Scores
from duodec.core.sampling import noise
from duodec.core.sampling.grammar import GrammarEnded
from duodec.core.sampling.sampler import Distribution, Draw, Sampler
from duodec.errors import BadOption, DuodecError


@dataclass(frozen=True)
class Verdict:
    """The result of one verification.

    The walk ended at node ``end`` (ROOT: nothing was accepted). ``final`` is the target's own token
    there. It is None when the walk ran past what was scored, or to a row without a draw: ``end``
    was accepted, but the token after it is not known yet.
    """

    accepted: tuple[int, ...]  # draft tokens, in order
    end: int
    final: int | None
    margin: float  # the narrowest win among the draws that decided it

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens that join the text."""
        return self.accepted if self.final is None else (*self.accepted, self.final)


Rule = Callable[[Draft, Scores, int], tuple[Draw, int | None]]
"""What the row after a node decides: a token, and the child that proposed it; None if none did."""


def keyed(draft: Draft, scores: Scores, node: int) -> tuple[Draw, int | None]:
    """Accept the child that carries the target's keyed draw: exact for every draft."""
    draw = scores.draw(node + 1)
    return draw, draft.child(node, draw.token)


def verify(draft: Draft, scores: Scores, rule: Rule = keyed) -> Verdict:
    """Walk the tree from the root as far as it was scored.

    A row that has no draw raises at the root. Deeper in the tree it ends the walk: the text may
    have ended before it, and where it has not, the row is the next one's root.
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
    """What a target's own heads propose after the text that these scores leave, at most ``depth``
    tokens deep; nothing if they rest. ``heads_at`` opens them there."""
    if query.heads is None:
        return Proposed()
    begin_s = perf_counter()
    try:
        verdict = verify(query.draft, scores)
    except (DuodecError, GrammarEnded):  # which its request will be told
        return Proposed()
    if verdict.final is None:  # nothing is known of the token after the draft
        return Proposed()
    try:
        tree = query.heads.grow(heads_at(verdict), depth)
    except BadOption:  # of a mask that cannot be followed there
        return Proposed()
    return Proposed(tree, perf_counter() - begin_s)


class Dice(Protocol):
    """A source of randomness, used for one position at a time."""

    def accept(self, position: int, token: int, probability: float) -> bool:
        """True with ``probability``."""

    def draw(self, position: int, distribution: Distribution) -> int:
        """A token from ``distribution``."""


def rejection(dice: Dice, num_text_tokens: int) -> Rule:
    """The rule of speculative sampling (2211.17192; several children: 2305.09781).

    Needs drafts that were drawn from their ``distributions``, and targets that give theirs.
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
            # siblings are tried in order: a refusal changes p for the next
            p = p.residual(q)
        return Draw(dice.draw(position, p), math.inf), None

    return decide


@dataclass(frozen=True)
class KeyedDice:
    """Dice whose throws are a function of (seed, choice, position, token)."""

    sampler: Sampler

    def accept(self, position: int, token: int, probability: float) -> bool:
        key = self.sampler.key(position, noise.COIN)
        return bool(noise.uniform(key, np.array([token]))[0] < probability)

    def draw(self, position: int, distribution: Distribution) -> int:
        return draw_from(distribution, self.sampler.key(position, noise.DRAW))


def draw_from(distribution: Distribution, key: int) -> int:
    """The keyed draw from a distribution."""
    with np.errstate(divide="ignore"):  # log 0 = -inf: never drawn
        scores = np.log(distribution.probs)
    return int(distribution.tokens[np.argmax(scores + noise.gumbel(key, distribution.tokens))])
