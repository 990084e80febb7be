"""Start a pair's draft model in a process of its own, translated where vocabularies differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from duodec.backends.drafter.process import ProcessDrafter, Recipe
from duodec.backends.drafter.window import DEFAULT_WINDOW
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.translation.recipe import TranslatedRecipe, VocabularyRecipe
from duodec.backends.translation.text import Frame
from duodec.chat.frames import frames_of
from duodec.core.protocols import Tokenizer
from duodec.errors import warn
from duodec.loading.resolve import ResolvedPair
from duodec.loading.vetting import vetted
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import available_cores
from duodec.models.vocabularies import difference

_SAMPLED_STRIDE = 16  # tokens compared at load; `duodec doctor` compares all of them
_CACHE_TOKENS = 1 << 14  # for all texts together


class SentVocabulary(Tokenizer, Protocol):
    """A target's vocabulary, which the drafter's process makes again."""

    def by_value(self) -> VocabularyRecipe: ...


def recipe_for(target: SentVocabulary, recipe: LlamaRecipe) -> Recipe:
    """How to make the draft model of ``recipe`` for a target with this vocabulary. Raises
    ModelUnreadable for a model that cannot draft."""
    draft = LlamaModel(recipe.path, vocabulary_only=True, num_gpu_layers=0)
    try:
        if difference(target, draft, stride=_SAMPLED_STRIDE) is None:
            return recipe
        frames = tuple(Frame(*frame) for frame in frames_of(target, draft))
    finally:
        draft.close()
    return TranslatedRecipe(replace(recipe, num_vocab=None), target.by_value(), frames)


def open_drafter(
    pair: ResolvedPair,
    target: SentVocabulary,
    num_context: int,
    plan: CorePlan,
    *,
    on_warning: Callable[[str], None] = warn,
) -> ProcessDrafter:
    """Start the draft model in its own process, which loads while the target does. Raises what is
    wrong with it, or with the pair."""
    assert pair.draft, "the caller checked for a draft"
    config, num_threads = pair.config, len(plan.draft_cores)
    window = min(num_context, config.draft_window or DEFAULT_WINDOW)
    known = pair.profile
    recipe = LlamaRecipe(
        vetted(pair.draft).path,
        num_context,
        num_threads,
        target.num_vocab,
        num_texts=min(config.num_slots, max(1, _CACHE_TOKENS // window)),
        max_window=window,
        uses_flash_attention=known.draft_uses_flash_attention if known else None,
        num_head=config.draft_head,
        has_small_weights=config.draft_weights == "auto",
        num_parallel=config.draft_parallel,
        num_slots=config.num_slots,
    )
    return ProcessDrafter(
        recipe_for(target, recipe),
        # on the target's cores it takes turns with it
        cores=available_cores() if plan.shares_cores else plan.draft_cores,
        num_threads=plan.target_alone if plan.shares_cores else num_threads,
        on_warning=on_warning,
    )
