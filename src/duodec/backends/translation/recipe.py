"""Describe how the drafter's process makes a draft model of another vocabulary than the
target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from duodec.backends.drafter.process import Recipe
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.translation.model import TranslatedModel
from duodec.backends.translation.renumbering import RenumberedModel
from duodec.backends.translation.rows import Correspondence
from duodec.backends.translation.spelling import Spelling
from duodec.backends.translation.text import Frame
from duodec.core.drafters import DraftModel
from duodec.core.tokenizers import Speller
from duodec.errors import VocabularyMismatch


class VocabularyRecipe(Protocol):
    """Make a target's vocabulary in the child; a picklable value."""

    def load(self) -> Speller:
        """Load it. Raises the typed errors of loading."""


@dataclass(frozen=True)
class TranslatedRecipe:
    """Make ``draft``, whose model names its ``vocabulary``, for a target of another one."""

    draft: Recipe
    target: VocabularyRecipe
    frames: tuple[Frame, ...] = ()

    def load(self) -> DraftModel:
        """Load it. Raises VocabularyMismatch if the two have no token in common."""
        model: Any = self.draft.load()
        target = self.target.load()
        words = Correspondence(Spelling(target), Spelling(model.vocabulary))
        if not words.num_shared:
            raise VocabularyMismatch(
                "the draft and the target have no token in common; use another draft, or "
                "`draft=none`"
            )
        mask = Masks(target).mask
        if words.is_renumbering:
            return RenumberedModel(model, words, mask)
        return TranslatedModel(model, words, mask, self.frames)
