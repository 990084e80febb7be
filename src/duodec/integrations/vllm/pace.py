"""The planner on vLLM's clock: what a step takes by the size of its batch, and what pays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import best_width

_MANY_ROWS = 4  # whose step tells whether drafting from earlier text alone would be better
_WIDTHS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Chain:
    """What may follow one text, and how likely each token and all before it come true."""

    tokens: Sequence[int] = ()
    values: Sequence[float] = ()

    @property
    def expected(self) -> float:
        """Its tokens that are expected to come true."""
        return sum(self.values)


@dataclass
class Regime:
    """Batches of about one size."""

    governor: Governor
    costs: Costs = field(default_factory=Costs)

    def observe(self, sources: Sources, num_drafted: int, num_tokens: int, seconds: float) -> None:
        """A step that verified so many draft tokens of these sources, and brought so many."""
        self.costs.observe_forward(seconds, num_drafted)
        self.governor.observe(sources, num_tokens, seconds)
        for width in _WIDTHS:  # looked up before they are needed
            self.costs.forward_s(width)

    def lengths(self, chains: Sequence[Chain], num_rows: int) -> list[int]:
        """How much of every chain to verify, so that all rows together gain most tokens a second.

        A step gives every row a token anyway. So R rows with the chosen nodes' values v bring
        R + sum(v) tokens, which is R times what the planner maximises for one text where the
        values are v / R. Of a chain, no token is likelier than those before it.
        """
        order = sorted(
            (-value / num_rows, row) for row, chain in enumerate(chains) for value in chain.values
        )
        width = best_width([-value for value, _ in order], self.costs)
        lengths = [0] * len(chains)
        for _, row in order[:width]:
            lengths[row] += 1
        return lengths


class Pace:
    """Regimes by the size of the batch: 1, 2 to 3, 4 to 7, ..."""

    def __init__(self, allowed: Sequence[Sources]) -> None:
        self._allowed = allowed
        self._regimes: dict[int, Regime] = {}

    def regime(self, num_rows: int) -> Regime:
        size = num_rows.bit_length()
        if size not in self._regimes:
            simpler = self._allowed[:-1] if num_rows >= _MANY_ROWS else ()
            governor = Governor(self._allowed, probes=(Sources.NONE, *simpler))
            self._regimes[size] = Regime(governor)
        return self._regimes[size]
