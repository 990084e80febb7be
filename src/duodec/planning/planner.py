"""Which of the candidates to score, and whether to wait for more: expected tokens by the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.planning.acceptance import Acceptance, unexpanded
from duodec.planning.costs import Costs
from duodec.planning.rate import Rate
from duodec.planning.selection import Selection, Source

_TICK_S = 1e-9  # no forward takes less
_HANDOVER_S = 3e-4  # from one process to the other: measured 0.2 ms
_FADE = 0.9  # of earlier rounds in the running rate
_SLOW_FADE = 0.98


@dataclass
class Planner:
    """Decides for one text, on what it and others before it taught."""

    costs: Costs
    acceptance: Acceptance  # of the draft model's candidates
    num_tokens: int = 80  # draft tokens in a forward pass at most
    patience: float = 1.75  # how much faster than decoding a wait must bring tokens
    has_branches: bool = True  # the target scores trees; otherwise chains
    _rate: Rate = field(default_factory=lambda: Rate(_FADE))
    _without_draft: Rate = field(default_factory=lambda: Rate(_SLOW_FADE, 3.0, 6.0))

    def select(
        self, sources: Sequence[Source], agreement: Acceptance, num_tokens: int, depth: int
    ) -> Selection:
        """The likeliest candidates of all sources, the draft model's tree being the first: at most
        ``num_tokens`` of them, ``depth`` tokens deep."""
        selection = Selection(sources, agreement)
        num_tokens = min(num_tokens, self.num_tokens, self.costs.room())
        selection.grow(num_tokens, depth, has_branches=self.has_branches)
        return selection

    def can_pay(self) -> bool:
        """Whether some draft would pay if every token of it were accepted."""
        plain_s = self.costs.forward_s(0)
        widths = (1 << i for i in range(self.num_tokens.bit_length()))
        return any(self.costs.forward_s(n) < (1 + n) * plain_s for n in widths)

    def is_worth_waiting(self, tree: CandidateTree, selection: Selection) -> bool:
        """Whether one more step of the draft model, whose tree this is, is expected to bring tokens
        faster than decoding does: beyond what the other sources propose already."""
        rate = self._rate.value or 1 / max(_TICK_S, self.costs.forward_s(0))
        return self._gain(tree, selection) > self.patience * rate * self.step_s(tree)

    def _gain(self, tree: CandidateTree, selection: Selection) -> float:
        """Accepted tokens that one more draft step is expected to add."""
        coverage = self.acceptance.coverage
        if not tree.is_expanded(ROOT):
            reach = selection.reach
            further = max(1.0, sum(selection.values) / reach) if reach else 1.0
            return coverage * (1.0 - reach) * further
        values = self.acceptance.values(tree)
        missed = 1.0 - self._without_draft.value
        return coverage * missed * unexpanded(tree, values, self.costs.step_leaves())

    def step_s(self, tree: CandidateTree) -> float:
        """Expected seconds until the drafter's next step is known here."""
        own_s = self.costs.step_s() if tree.is_expanded(ROOT) else self.costs.root_s()
        return own_s + _HANDOVER_S

    def learn(self, selection: Selection, tokens: Sequence[int]) -> None:
        """The tokens that came where these candidates were selected from."""
        selection.learn(tokens)
        if selection.num_labelled:
            self._without_draft.observe(selection.num_without_draft, selection.num_labelled)

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
