"""Which of the candidates to score, and whether to wait for more: expected tokens by the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.planning.acceptance import Acceptance, unexpanded
from duodec.planning.costs import Costs
from duodec.planning.rate import Rate

_TICK_S = 1e-9  # no forward takes less
_HANDOVER_S = 3e-4  # from one process to the other: measured 0.2 ms
_FADE = 0.9  # of earlier rounds in the running rate


@dataclass
class Offer:
    """Candidates from one source, each with the likelihood that it comes true."""

    tokens: Sequence[int]
    parents: Sequence[int]
    values: Sequence[float]


@dataclass
class Planner:
    """Decides for one text, on what it and others before it taught."""

    costs: Costs
    acceptance: Acceptance
    num_tokens: int = 80  # draft tokens in a forward at most
    patience: float = 1.75  # how much faster than decoding a wait must bring tokens
    has_branches: bool = True  # the target scores trees; otherwise chains
    _rate: Rate = field(default_factory=lambda: Rate(_FADE))

    def choose(self, offers: Sequence[Offer], num_tokens: int, depth: int) -> Draft:
        """The connected subtree that brings the most tokens a second.

        Nodes in the order of their values are connected, since no node is likelier than its
        parent; n of them are worth (1 + the sum of their values) / T(n).
        """
        num_tokens = min(num_tokens, self.num_tokens, self.costs.room())
        merged = _Merged()
        for offer in offers:
            merged.add(offer, num_tokens, depth)
        order = sorted(range(len(merged.tokens)), key=lambda node: -merged.values[node])
        order = (order if self.has_branches else merged.chain(order))[:num_tokens]
        return merged.draft(order[: best_width([merged.values[n] for n in order], self.costs)])

    def can_pay(self) -> bool:
        """Whether some draft would pay if every token of it were accepted."""
        plain_s = self.costs.forward_s(0)
        widths = (1 << i for i in range(self.num_tokens.bit_length()))
        return any(self.costs.forward_s(n) < (1 + n) * plain_s for n in widths)

    def is_worth_waiting(self, tree: CandidateTree, values: Sequence[float]) -> bool:
        """Whether one more draft step is expected to bring tokens faster than decoding does."""
        gain = self.acceptance.coverage * unexpanded(tree, values, self.costs.step_leaves())
        rate = self._rate.value or 1 / max(_TICK_S, self.costs.forward_s(0))
        return gain > self.patience * rate * self.step_s(tree)

    def step_s(self, tree: CandidateTree) -> float:
        """Expected seconds until the drafter's next step is known here."""
        own_s = self.costs.step_s() if tree.is_expanded(ROOT) else self.costs.root_s()
        return own_s + _HANDOVER_S

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A round, from the end of the one before."""
        self._rate.observe(num_tokens, seconds)


def best_width(values: Iterable[float], costs: Costs) -> int:
    """How many draft tokens of these values, the highest first, bring the most tokens a second."""
    best, num_best, expected = 1 / max(_TICK_S, costs.forward_s(0)), 0, 1.0
    for num, value in enumerate(values, 1):
        expected += value
        rate = expected / max(_TICK_S, costs.forward_s(num))
        if rate > best:
            best, num_best = rate, num
    return num_best


class _Merged:
    """Several offers as one tree: a token is one node, of the highest value it was given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, offer: Offer, num_tokens: int, depth: int) -> None:
        """The likeliest nodes of an offer: no others can be among the likeliest of all."""
        placed: dict[int, int] = {ROOT: ROOT}
        depths: dict[int, int] = {ROOT: 0}
        for i in _likeliest(offer.values, num_tokens):
            token, parent, value = offer.tokens[i], offer.parents[i], offer.values[i]
            if parent not in placed or depths[parent] == depth:
                continue
            depths[i] = depths[parent] + 1
            node = self._nodes.setdefault((placed[parent], token), len(self.tokens))
            if node == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(placed[parent])
                self.values.append(value)
            else:
                self.values[node] = max(self.values[node], value)
            placed[i] = node

    def chain(self, nodes: Sequence[int]) -> list[int]:
        """Of these nodes, in the order of their values, the likeliest and its likeliest heirs."""
        found, end = [], ROOT
        for node in nodes:
            if self.parents[node] == end:
                found.append(node)
                end = node
        return found

    def draft(self, nodes: Sequence[int]) -> Draft:
        """These nodes, numbered so that parents come first and the likelier child before others."""
        place = {ROOT: ROOT}
        for node in nodes:
            place[node] = len(place) - 1
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parents[node]] for node in nodes),
        )


def _likeliest(values: Sequence[float], num: int) -> list[int]:
    """The nodes of the highest values in their own order, which has parents first; of equals, the
    earlier ones: so they are connected."""
    if len(values) <= num:
        return list(range(len(values)))
    order = np.argsort(-np.array(values), kind="stable")[:num]
    order.sort()
    nodes: list[int] = order.tolist()
    return nodes
