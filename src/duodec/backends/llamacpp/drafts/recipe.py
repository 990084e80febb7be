"""Describe a draft model by value; the drafter's process makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.devices import Device
from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.drafts.head import Head, frequency
from duodec.backends.llamacpp.drafts.parallel import parallel
from duodec.backends.llamacpp.drafts.recurrent_draft import LlamaRecurrentDraft
from duodec.backends.llamacpp.model import LlamaModel


@dataclass(frozen=True)
class LlamaRecipe:
    """Describe how a separate process makes the draft model."""

    path: Path
    num_context: int
    num_threads: int
    num_vocab: int | None = None  # size of the target's vocabulary
    num_texts: int = 1  # texts that it knows at once
    max_window: int | None = None  # tokens of each text that it holds; None: chosen here
    uses_flash_attention: bool | None = None  # None: whichever is faster for few rows
    num_head: int | None = None  # rows of its head, the most frequent; None: chosen here; 0: all
    has_small_weights: bool = True  # use 4.5 bits, if those of the file are larger
    num_parallel: int | None = None  # tokens that a step drafts at once; None: as it was trained
    num_gpu_layers: int = 0  # layers that a device computes; -1: all
    on: tuple[Device, ...] = ()  # these devices; by default all
    num_slots: int = 1  # texts that are drafted for in turn: a recurrent model has as many states

    def load(self) -> LlamaDraftModel | LlamaRecurrentDraft:
        lib = library.load()
        known = frequency(lib, self.path, self.num_head)
        head = Head(lib, known) if known else None
        small = self.has_small_weights
        return self.over(
            LlamaModel(
                self.path,
                num_gpu_layers=self.num_gpu_layers,
                on=self.on,
                head=head,
                has_small_weights=small,
            )
        )

    def on_device(self, on: tuple[Device, ...]) -> LlamaRecipe:
        """Return the recipe for a device: the whole model as in its file, with flash attention."""
        return replace(
            self,
            num_gpu_layers=-1,
            on=on,
            num_head=0,
            has_small_weights=False,
            uses_flash_attention=True,
        )

    def over(self, model: LlamaModel) -> LlamaDraftModel | LlamaRecurrentDraft:
        """Return the draft model of a file that is already loaded."""
        if model.is_recurrent:
            return LlamaRecurrentDraft(
                model,
                num_context=self.num_context,
                num_threads=self.num_threads,
                num_vocab=self.num_vocab,
                num_texts=max(self.num_texts, self.num_slots),
                max_window=self.max_window,
            )
        return LlamaDraftModel(
            model,
            num_context=self.num_context,
            num_threads=self.num_threads,
            num_vocab=self.num_vocab,
            num_texts=self.num_texts,
            max_window=self.max_window,
            uses_flash_attention=self.uses_flash_attention,
            parallel=parallel(model.lib, self.path, self.num_parallel),
        )
