"""Make a draft model fit a target: as it is where both have one vocabulary, or translated."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from duodec.backends.drafter.process import Recipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.recipe import LlamaRecipe
from duodec.backends.translation.recipe import FileVocabulary, TranslatedRecipe, VocabularyRecipe
from duodec.backends.translation.text import Frame
from duodec.chat.frames import frames_of
from duodec.core.protocols import Tokenizer
from duodec.models.pairing import difference

_SAMPLED_STRIDE = 16  # tokens compared at load; `duodec doctor` compares all of them


@runtime_checkable
class _ByValue(Protocol):
    """A vocabulary that can be sent to another process."""

    def by_value(self) -> VocabularyRecipe: ...


def recipe_for(target: Tokenizer, recipe: LlamaRecipe) -> Recipe:
    """How to make the draft model of ``recipe`` for a target with this vocabulary. Raises
    ModelUnreadable for a model that cannot draft."""
    draft = LlamaModel(recipe.path, vocabulary_only=True, num_gpu_layers=0)
    try:
        if difference(target, draft, stride=_SAMPLED_STRIDE) is None:
            return recipe
        frames = tuple(Frame(*frame) for frame in frames_of(target, draft))
    finally:
        draft.close()
    vocabulary = _vocabulary_recipe(target)
    return TranslatedRecipe(replace(recipe, num_vocab=None), vocabulary, frames)


def _vocabulary_recipe(target: Tokenizer) -> VocabularyRecipe:
    vocabulary = getattr(target, "vocabulary", target)  # of a model of torch
    if isinstance(vocabulary, _ByValue):
        return vocabulary.by_value()
    assert isinstance(vocabulary, LlamaModel), "every other vocabulary is sent by value"
    return FileVocabulary(vocabulary.path)
