"""Plan for vLLM's batches: measure steps by batch size, and choose the drafts that pay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from duodec.core.round import median
from duodec.drafting import constants
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import best_width
from duodec.planning.trial import Trial

_MANY_ROWS = 4  # in a step that shows whether drafting from earlier text only would be better
_WIDTHS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
_MOST_WHOLE = 64  # draft tokens of a whole step: larger batches are no slower in parts
_NUM_WHOLE = 16  # latest whole steps whose median is taken
_MAX_PAUSE = 128  # other steps, until a whole one is tried again


@dataclass(frozen=True)
class ProposedChain:
    """A continuation of one text, and how likely each token is accepted with all before it."""

    tokens: Sequence[int] = ()
    values: Sequence[float] = ()
    room: int = 0  # draft tokens that the step allows after this text

    @property
    def expected(self) -> float:
        """The expected number of accepted tokens."""
        return sum(self.values)


@dataclass
class BatchSize:
    """Batches of about one size.

    A step is whole if every row has ``num_whole`` draft tokens: the engine replays it as one graph
    on the device. It is timed apart from others, and may also be faster than one without drafts,
    which some versions of vLLM do not replay so.
    """

    governor: Governor
    num_whole: int = 0  # 0: no step is whole
    # a step has many rows, of which one more is a small part of what plain decoding takes
    costs: Costs = field(default_factory=lambda: Costs(cliff=0.0))
    _whole_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_WHOLE))
    _whole: Trial = field(
        default_factory=lambda: Trial(
            first_pause=constants.LOOK_AGAIN_AFTER,
            max_pause=_MAX_PAUSE,
            rest=constants.LOOK_AGAIN_AFTER,
        )
    )

    def observe(
        self, sources: Sources, drafted: Sequence[int], num_tokens: int, seconds: float
    ) -> None:
        """Add a step that verified ``drafted`` tokens by row, of these sources, and yielded
        ``num_tokens``."""
        if self.num_whole and set(drafted) == {self.num_whole}:
            self._whole_s.append(seconds)
        else:
            self.costs.observe_forward(seconds, sum(drafted))
            self._whole.tick()
        self.governor.observe(sources, num_tokens, seconds)
        for width in _WIDTHS:  # computed before they are needed
            self.costs.forward_s(width)

    def lengths(self, chains: Sequence[ProposedChain], num_rows: int) -> list[int]:
        """How much of every chain to verify, so that all rows together yield the most tokens a
        second; in a whole step more than a chain has.

        A step gives every row a token anyway. So R rows with the chosen nodes' values v yield R +
        sum(v) tokens, which is R times what the planner maximises for one text where the values are
        v / R. Of a chain, no token is likelier than those before it.
        """
        order = sorted(
            (-value / num_rows, row) for row, chain in enumerate(chains) for value in chain.values
        )
        width = best_width([-value for value, _ in order], self.costs)
        promised = 1 - sum(value for value, _ in order[:width])  # of each row
        if self._is_whole_better(chains, num_rows, width, promised):
            return [self.num_whole] * len(chains)
        lengths = [0] * len(chains)
        for _, row in order[:width]:
            lengths[row] += 1
        return lengths

    def _is_whole_better(
        self, chains: Sequence[ProposedChain], num_rows: int, width: int, promised: float
    ) -> bool:
        """Whether a whole step yields more tokens a second than ``width`` draft tokens, which
        promise so many of each row, or is to be tried."""
        num_drafted = num_rows * self.num_whole
        if not 0 < num_drafted <= _MOST_WHOLE or len(chains) < num_rows:
            return False
        if any(chain.room < self.num_whole for chain in chains):
            return False
        if not self._whole.rest:
            self._whole.fails()  # until it turns out to be faster
            return True
        if len(self._whole_s) < constants.MIN_PASSES_OF_WIDTH:
            return False
        expected = sum(sum(chain.values[: self.num_whole]) for chain in chains)
        seconds = self.costs.forward_s(width)
        is_better = (1 + expected / num_rows) * seconds > promised * median(self._whole_s)
        if is_better:
            self._whole.pays()
        return is_better


class DraftLengths:
    """By the size of the batch: 1, 2 to 3, 4 to 7, ..."""

    def __init__(self, allowed: Sequence[Sources], num_whole: int = 0) -> None:
        self._allowed, self._num_whole = allowed, num_whole
        self._by_size: dict[int, BatchSize] = {}

    def at(self, num_rows: int) -> BatchSize:
        size = num_rows.bit_length()
        if size not in self._by_size:
            simpler = self._allowed[:-1] if num_rows >= _MANY_ROWS else ()
            governor = Governor(self._allowed, probes=(Sources.NONE, *simpler))
            self._by_size[size] = BatchSize(governor, self._num_whole)
        return self._by_size[size]
