"""Slow a drafter down, in a separate module, so that its process can import it."""

from __future__ import annotations

from dataclasses import dataclass
from time import sleep

from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.core.protocols import DraftModel, RowQuery
from duodec.core.rows import Row


@dataclass(frozen=True)
class Throttled:
    """A draft model whose forward passes take ten times as long."""

    recipe: LlamaRecipe
    pause_s: float = 0.0117  # nine times the shipped draft's time for one leaf

    def load(self) -> DraftModel:
        return _Slow(self.recipe.load(), self.pause_s)


@dataclass(eq=False)
class _Slow(DraftModel):
    model: DraftModel
    pause_s: float

    def rows(self, query: RowQuery) -> list[Row]:
        rows = self.model.rows(query)
        sleep(self.pause_s)
        return rows
