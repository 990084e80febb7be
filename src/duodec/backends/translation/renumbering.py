"""Use a draft model whose vocabulary differs from the target's in a few tokens, and in their
numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from duodec.backends.translation.rows import NONE, Correspondence
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.draft import Draft
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.traits import DraftTraits


class RenumberedModel(Wrapped):
    """Use ``model`` over the target's tokens, each by its number in the model's own vocabulary.

    A token that the model lacks is read as the first token that the model spells it with, and is
    never proposed. ``mask`` makes the mask of a grammar on the target's vocabulary.
    """

    def __init__(
        self, model: DraftModel, words: Correspondence, mask: Callable[[Grammar], Mask]
    ) -> None:
        super().__init__(model)
        self._mask = mask
        self._words = words
        self._numbers = words.of_target.copy()
        filler = max(0, words.draft.vocabulary.eos)
        for token in np.flatnonzero(self._numbers == NONE).tolist():
            spelled = words.draft.tokens_of(words.target.pieces[token])
            self._numbers[token] = spelled[0] if spelled else filler

    @property
    def traits(self) -> DraftTraits:
        return replace(self.model.traits, has_masks=True)

    def mask(self, grammar: Grammar) -> Mask:
        return self._mask(grammar)

    def rows(self, query: RowQuery) -> list[Row]:
        """Return logits over the target's vocabulary."""
        draft = Draft(tuple(self._numbers[list(query.draft.tokens)].tolist()), query.draft.parents)
        own = replace(query, text=self._numbers[query.text], draft=draft)
        return [self._words.gathered(row) for row in self.model.rows(own)]
