"""Describe the shape of a backend's forward pass on a test bed: its rows, and trees or chains.

tree            as many rows as a draft has, trees of up to 80 tokens
chain           the same, but the first chain of a draft only
torch           trees, in passes of 32 rows: a wider one takes several (torch:64: of 64)
llama.cpp       chains in passes of as many rows as llama.cpp on a device chooses for the curve
                (llama.cpp:8: of 8)
"""

from __future__ import annotations

from dataclasses import dataclass

from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.target.chains import chain_of
from duodec.backends.llamacpp.target.row_choice import WIDTHS, RowChoice
from duodec.backends.llamacpp.target.trees import MAX_WIDTH
from duodec.core.draft import Draft
from duodec.errors import BadOption

TORCH_ROWS = 32  # of a pass on a GPU; `duodec.backends.torch.checkpoint.memory` says the same
NAMES = ("tree", "chain", "torch", "llama.cpp")
_FREE = ("tree", "chain")  # take no number of rows


@dataclass(frozen=True)
class Shape:
    """What a forward pass scores. ``num_rows`` of every pass; None: as many as are wanted."""

    name: str
    num_rows: int | None = None
    has_branches: bool = True
    draws_on_device: bool = False  # with candidates; no row is copied to the host

    @classmethod
    def parse(
        cls, text: str, curve: CostCurve, copy_s: float = 0.0, option: str = "simulate-as"
    ) -> Shape:
        """The shape of this name for a target of these costs, ``copy_s`` being what it takes to
        copy a row to the host. Raises BadOption."""
        name, colon, rows = text.strip().partition(":")
        if name not in NAMES or (colon and (name in _FREE or not rows.isdecimal())):
            raise BadOption(
                f"{option} is {text or 'empty'}; choose from: {', '.join(NAMES)} (or, with the "
                "rows of a pass, torch:64, llama.cpp:8)"
            )
        if colon and not 1 <= int(rows) <= 128:
            raise BadOption(f"{option} is {text}; use 1 to 128 rows")
        if name in _FREE:
            return cls(name, has_branches=name == "tree")
        if name == "torch":
            return cls(text, int(rows or TORCH_ROWS), draws_on_device=True)
        seconds = {n: curve.seconds(n) + n * copy_s for n in WIDTHS}  # as a device measures them
        num_rows = int(rows) if rows else RowChoice.of(seconds).num_rows
        return cls(text, num_rows, has_branches=False)

    @property
    def max_draft(self) -> int:
        """Draft tokens that are scored at most: a wider tree takes several passes, and a longer
        chain is cut."""
        return MAX_WIDTH if self.has_branches or self.num_rows is None else self.num_rows - 1

    def cut(self, draft: Draft) -> Draft:
        """What of a draft is scored."""
        if self.has_branches:
            return draft
        return Draft.chain(chain_of(draft)[: self.max_draft])

    def num_computed(self, num_wanted: int) -> int:
        """Rows that are computed for so many, padding included."""
        if self.num_rows is None:
            return num_wanted
        return -(-num_wanted // self.num_rows) * self.num_rows

    def seconds(self, curve: CostCurve, num_wanted: int) -> float:
        """To score so many rows."""
        if self.num_rows is None:
            return curve.seconds(num_wanted)
        return self.num_computed(num_wanted) // self.num_rows * curve.seconds(self.num_rows)

    @property
    def words(self) -> str:
        """For people."""
        kind = "trees" if self.has_branches else "chains"
        rows = "as many rows as wanted" if self.num_rows is None else f"{self.num_rows} rows a pass"
        return f"{self.name}: {kind}, {rows}"


TREE = Shape("tree")
