"""A drafter that reads all of a text before it drafts: in a module of its own, so that its process
can import it."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.backends.drafter.window import Window
from duodec.backends.llamacpp.draft import LlamaDraftModel
from duodec.backends.llamacpp.recipe import LlamaRecipe


@dataclass(frozen=True)
class Eager:
    """A draft model without a window that grows."""

    recipe: LlamaRecipe

    def load(self) -> LlamaDraftModel:
        model = self.recipe.load()
        assert isinstance(model, LlamaDraftModel), "it has a window"
        model.window.__class__ = _Whole
        return model


class _Whole(Window):
    def is_long(self, num_new: int, num_known: int) -> bool:
        return False
