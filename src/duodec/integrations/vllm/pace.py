"""Plan for vLLM's batches: measure steps by batch size, and choose the drafts that pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import best_width

_MANY_ROWS = 4  # in a step that shows whether drafting from earlier text only would be better
_WIDTHS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Chain:
    """A continuation of one text, and how likely each token is accepted with all before it."""

    tokens: Sequence[int] = ()
    values: Sequence[float] = ()

    @property
    def expected(self) -> float:
        """The expected number of accepted tokens."""
        return sum(self.values)


@dataclass
class Regime:
    """Batches of about one size."""

    governor: Governor
    costs: Costs = field(default_factory=Costs)

    def observe(self, sources: Sources, num_drafted: int, num_tokens: int, seconds: float) -> None:
        """Add a step that verified ``num_drafted`` tokens of these sources and yielded
        ``num_tokens``."""
        self.costs.observe_forward(seconds, num_drafted)
        self.governor.observe(sources, num_tokens, seconds)
        for width in _WIDTHS:  # computed before they are needed
            self.costs.forward_s(width)

    def lengths(self, chains: Sequence[Chain], num_rows: int) -> list[int]:
        """How much of every chain to verify, so that all rows together yield the most tokens a
        second.

        A step gives every row a token anyway. So R rows with the chosen nodes' values v yield R +
        sum(v) tokens, which is R times what the planner maximises for one text where the values are
        v / R. Of a chain, no token is likelier than those before it.
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
