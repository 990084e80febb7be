"""Start a pair's draft model where it is to compute, translated where vocabularies differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from duodec.backends.drafter.in_turns import DrafterInTurns
from duodec.backends.drafter.process import ProcessDrafter, Recipe
from duodec.backends.drafter.window import DEFAULT_WINDOW
from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.devices import Device
from duodec.backends.llamacpp.drafts.draft import NUM_EXTRA_CELLS, LlamaDraftModel
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.drafts.recurrent_draft import LlamaRecurrentDraft
from duodec.backends.llamacpp.footprint import Footprint
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.translation.recipe import TranslatedRecipe, VocabularyRecipe
from duodec.backends.translation.text import Frame
from duodec.backends.translation.wrapped import Wrapped
from duodec.chat.frames import frames_of
from duodec.core.drafters import DraftModel
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BackendUnavailable, warn
from duodec.loading.resolve import ResolvedPair
from duodec.loading.vetting import vetted
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import available_cores
from duodec.models.vocabularies import difference

_SAMPLED_STRIDE = 16  # tokens compared at load; `duodec doctor` compares all of them
_CACHE_TOKENS = 1 << 14  # for all texts together


class SentVocabulary(Tokenizer, Protocol):
    """Define a target's vocabulary that the drafter's process makes again."""

    def by_value(self) -> VocabularyRecipe: ...


def recipe_for(target: SentVocabulary, recipe: LlamaRecipe) -> Recipe:
    """Return how to make the draft model of ``recipe`` for a target with this vocabulary. Raises
    ModelUnreadable if the model cannot draft."""
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
    """Start the draft model in its own process, which loads while the target does. Raises an error
    if something is wrong with it, or with the pair."""
    recipe = _recipe(pair, target, num_context, plan)
    return ProcessDrafter(
        recipe_for(target, recipe),
        # On the target's cores it takes turns with the target.
        cores=available_cores() if plan.shares_cores else plan.draft_cores,
        num_threads=plan.target_alone if plan.shares_cores else len(plan.draft_cores),
        on_warning=on_warning,
    )


def on_device(
    pair: ResolvedPair,
    target: SentVocabulary,
    num_context: int,
    plan: CorePlan,
    on: tuple[Device, ...],
    *,
    on_warning: Callable[[str], None] = warn,
) -> DrafterInTurns:
    """Load the draft model on the target's device, in this process. Raises BackendUnavailable if
    memory is estimated to be too short, and an error if something is wrong with the model, or with
    the pair."""
    recipe = _recipe(pair, target, num_context, plan).on_device(on)
    check_room(recipe, on)
    model = recipe_for(target, recipe).load()

    def fall_back() -> ProcessDrafter:
        return open_drafter(pair, target, num_context, plan, on_warning=on_warning)

    return DrafterInTurns(
        model, free=partial(_free, model), fall_back=fall_back, on_warning=on_warning
    )


def _free(model: DraftModel) -> None:
    """Free a draft model of a `LlamaRecipe`, whatever translates its vocabulary."""
    while isinstance(model, Wrapped):
        model = model.model
    assert isinstance(model, LlamaDraftModel | LlamaRecurrentDraft), "the recipe makes these"
    model.close()
    model.vocabulary.close()


def needed_bytes(recipe: LlamaRecipe) -> int:
    """Estimate the bytes that a draft model takes on a device."""
    lib = library.load()
    header = Header.read(lib, recipe.path)
    if header is None:
        return 0  # loading reports what is wrong with the file
    footprint = Footprint.of(lib, header, CacheTypes(), recipe.num_texts, num_lone=0)
    num_cells = (recipe.max_window or DEFAULT_WINDOW) + NUM_EXTRA_CELLS
    return footprint.weight_bytes + footprint.least_bytes(num_cells)


def check_room(recipe: LlamaRecipe, on: tuple[Device, ...]) -> None:
    """Raise BackendUnavailable if a device has too little free memory for a draft model, as far as
    its driver tells."""
    free, need = devices.free_bytes(library.load(), on), needed_bytes(recipe)
    if 0 < free < need:
        where = ", ".join(device.name for device in on) or "the device"
        raise BackendUnavailable(
            f"the draft model would take {need / 1e9:.1f} GB on {where}, where {free / 1e9:.1f} GB "
            "are free"
        )


def _recipe(
    pair: ResolvedPair, target: SentVocabulary, num_context: int, plan: CorePlan
) -> LlamaRecipe:
    assert pair.draft, "the caller checked for a draft"
    config = pair.config
    window = min(num_context, config.draft_window or DEFAULT_WINDOW)
    known = pair.profile
    return LlamaRecipe(
        vetted(pair.draft).path,
        num_context,
        len(plan.draft_cores),
        target.num_vocab,
        num_texts=min(config.num_slots, max(1, _CACHE_TOKENS // window)),
        max_window=window,
        uses_flash_attention=known.draft_uses_flash_attention if known else None,
        num_head=config.draft_head,
        has_small_weights=config.draft_weights == "auto",
        num_parallel=config.draft_parallel,
        num_slots=config.num_slots,
    )
