"""Choose the widths of llama.cpp's forward passes on a device, once for a model and a build."""

from __future__ import annotations

from contextlib import closing

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.backends.widths.choice import WidthChoice, content, keep, kept, key_of, measured
from duodec.backends.widths.classes import DEPTHS, fitting, num_cells
from duodec.core.traits import Widths

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)  # rows that a forward pass may have


def choice_for(model: LlamaModel, *, num_threads: int) -> WidthChoice:
    """Return the choice for this model on this device, and make it now if there is none. Raises
    ComputeFailed."""
    if found := kept_choice(model):
        return found
    most = max(WIDTHS)
    depths = fitting(DEPTHS, model.num_context_train, most)
    target = LlamaPadded(
        model,
        widths=Widths(WIDTHS),
        num_context=num_cells(depths, most),
        num_threads=num_threads,
    )
    with closing(target):
        choice = measured(target, WIDTHS, model.num_vocab, depths)
    keep(_key(model), choice)
    return choice


def kept_choice(model: LlamaModel) -> WidthChoice | None:
    """Return the choice that was made for this model on this device, if there is a valid one."""
    return kept(_key(model))


def _key(model: LlamaModel) -> str:
    build = library.digest(library.folder(model.lib)), library.kernels(model.lib)
    return key_of(content(model.path), model.placed_as, build)
