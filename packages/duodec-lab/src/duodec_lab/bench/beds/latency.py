"""Say how long a target's forward passes take on a test bed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duodec.backends.curves import CostCurve
from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query
from duodec_lab.bench.beds.shapes import TREE, Shape


@dataclass(frozen=True)
class LatencyCurve:
    """Seconds of a forward pass: by the rows that a backend of this shape computes, and
    ``prefill_s`` a token of the prompt."""

    forward: CostCurve
    prefill_s: float = 0.0
    shape: Shape = TREE

    @property
    def forward_s(self) -> float:
        """Of a forward pass of plain decoding."""
        return self.shape.seconds(self.forward, 1)

    def seconds(self, num_rows: int, num_new_tokens: int) -> float:
        """One forward pass of so many rows, after so many text tokens not read before."""
        return self.shape.seconds(self.forward, num_rows) + self.prefill_s * max(
            0, num_new_tokens - 1
        )


class PrefillCounter:
    """How much of each slot's text a target has not read before."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tokens, Draft]] = {}

    def num_new(self, queries: Sequence[Query]) -> int:
        """Tokens that these queries add to what was read; the last token of a text is new."""
        total = 0
        for query in queries:
            known, draft = self._known.get(query.slot, (query.text[:0], Draft()))
            num_known = common_prefix(known, query.text)
            if num_known == len(known):  # what was scored as a draft needs no reading as text
                node = ROOT
                for token in query.text[num_known:].tolist():
                    child = draft.child(node, token)
                    if child is None:
                        break
                    node, num_known = child, num_known + 1
            total += len(query.text) - min(num_known, len(query.text) - 1)
            self._known[query.slot] = (query.text, query.draft)
        return total
