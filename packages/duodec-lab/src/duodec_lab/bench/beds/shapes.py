"""Describe the shape of a backend's forward pass on a test bed: its rows, and trees or chains.

tree            as many rows as a draft has, trees of up to 80 tokens
chain           the same, but the first chain of a draft only
torch           trees, in passes of 8, 16 or 32 rows, as torch on a GPU chooses for the curve; a
                wider tree takes several (torch:64: of 64; torch:8+16: of 8 or 16)
llama.cpp       chains in passes of as many rows as llama.cpp on a device chooses for the curve
                (llama.cpp:8: of 8; llama.cpp:1+2+4: of 1, 2 or 4, whose rows have equal bits)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.target.chains import chain_of
from duodec.backends.llamacpp.target.trees import MAX_WIDTH
from duodec.backends.llamacpp.target.width_choice import WIDTHS
from duodec.backends.widths.choice import CHAINS, TREES, WidthChoice
from duodec.core.draft import Draft
from duodec.core.traits import Widths
from duodec.errors import BadOption

TORCH_WIDTHS = (8, 16, 32)  # `duodec_torch.width_choice` says the same
NAMES = ("tree", "chain", "torch", "llama.cpp")
_FREE = ("tree", "chain")  # take no number of rows
_SIXTEEN_BITS = re.compile(r"b?f16|fp16|16bit")  # in a curve's name
_QUANTISED = re.compile(r"i?q\d|mxfp4|nvfp4")


@dataclass(frozen=True)
class Shape:
    """What a forward pass scores, and the rows that it may have."""

    name: str
    widths: Widths = Widths()  # noqa: RUF009  frozen
    has_branches: bool = True
    draws_on_device: bool = False  # with candidates; no row is copied to the host

    @classmethod
    def parse(
        cls, text: str, curve: CostCurve, copy_s: float = 0.0, option: str = "simulate-as"
    ) -> Shape:
        """The shape of this name for a target of these costs, ``copy_s`` being what it takes to
        copy a row to the host. Raises BadOption."""
        name, colon, rows = text.strip().partition(":")
        numbers = rows.split("+") if colon else []
        if name not in NAMES or (name in _FREE and colon) or not all(map(str.isdecimal, numbers)):
            raise BadOption(
                f"{option} is {text or 'empty'}; choose from: {', '.join(NAMES)} (or, with the "
                "rows of a pass, torch:64, llama.cpp:8, llama.cpp:1+2+4)"
            )
        if not all(1 <= int(number) <= 128 for number in numbers):
            raise BadOption(f"{option} is {text}; use 1 to 128 rows")
        if name in _FREE:
            return cls(name, has_branches=name == "tree")
        widths = Widths(tuple(sorted({int(number) for number in numbers})))
        if name == "torch":
            seconds = {n: curve.seconds(n) for n in TORCH_WIDTHS}
            return cls(text, widths or _chosen(seconds, TREES), draws_on_device=True)
        seconds = {n: curve.seconds(n) + n * copy_s for n in WIDTHS}  # as a device measures them
        return cls(text, widths or _chosen(seconds, CHAINS), has_branches=False)

    @staticmethod
    def usual(curve: CostCurve) -> str:
        """The name of the shape that a card of this curve has: that of llama.cpp where weights are
        quantised, of torch where they have 16 bits; of a given number, which is no card, trees."""
        text = curve.text.lower()
        if _SIXTEEN_BITS.search(text):
            return "torch"
        is_card = text.startswith("roofline:") or _QUANTISED.search(text)
        return "llama.cpp" if is_card else "tree"

    @property
    def max_draft(self) -> int:
        """Draft tokens that are scored at most: a wider tree takes several passes, and a longer
        chain is cut."""
        return MAX_WIDTH if self.has_branches or not self.widths else self.widths.most - 1

    def cut(self, draft: Draft) -> Draft:
        """What of a draft is scored."""
        if self.has_branches:
            return draft
        return Draft.chain(chain_of(draft)[: self.max_draft])

    def num_computed(self, num_wanted: int) -> int:
        """Rows that are computed for so many, padding included."""
        return sum(self.widths.passes(num_wanted))

    def seconds(self, curve: CostCurve, num_wanted: int) -> float:
        """To score so many rows."""
        return sum(curve.seconds(width) for width in self.widths.passes(num_wanted))

    @property
    def words(self) -> str:
        """For people."""
        kind = "trees" if self.has_branches else "chains"
        rows = f"{self.widths} rows a pass" if self.widths else "as many rows as wanted"
        return f"{self.name}: {kind}, {rows}"


def _chosen(seconds: Mapping[int, float], yields: Mapping[int, float]) -> Widths:
    """As a device chooses them whose widths do not agree: which do, only a card can tell."""
    return WidthChoice(seconds, seconds, [(n,) for n in seconds], yields).widths


TREE = Shape("tree")
