"""Estimate a target's memory before any weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from duodec.errors import ModelUnreadable
from duodec_torch.checkpoint.placing import DevicePlacement, size_words
from duodec_torch.forward.attention import BLOCK, TAIL
from duodec_torch.forward.spreading import Block, spread
from duodec_torch.library import torch

_LOWEST_CONTEXT, _STEP = 512, 256  # tokens
_DRAW_BYTES = 76  # for one number of a row: its noise in integers, and a sorted row (measured)
_SCORE_BYTES = 24  # for a score that torch's attention does not compute: copies of 4 bytes
_WITH_SINKS = ("gpt_oss",)  # architectures
_ACTIVATIONS = (8, 4)  # tensors of a layer's width and of its inner width that are alive at once


@dataclass(frozen=True)
class Extent:
    """How much a target caches and computes at once."""

    num_context: int  # tokens of a text
    num_slots: int  # texts
    num_rows: int  # of a forward pass that continues texts
    num_chunk: int  # tokens of a prompt that are prefilled at once

    @classmethod
    def on(cls, device_kind: str, num_context: int, num_slots: int = 1) -> Extent:
        """The extent for a GPU, whose time hardly depends on the rows, or a CPU, whose time
        does."""
        rows, chunk = (8, 64) if device_kind == "cpu" else (32, 512)
        return cls(num_context, num_slots, rows, chunk)

    @property
    def num_region(self) -> int:
        """Cells of a slot: its text and the deepest tree, in whole blocks."""
        return -(-(self.num_context + TAIL) // BLOCK) * BLOCK


@dataclass(frozen=True)
class Sizes:
    """The numbers that a model's memory depends on."""

    blocks: tuple[Block, ...]  # in the order of computation
    cached: int  # keys and values of a token in one layer
    width: int  # of a layer
    inner: int  # of its feed-forward part
    group: int  # query heads that share a key head
    num_vocab: int
    num_masks: int = 1  # kinds of layers, by what a row sees
    score_bytes: int = 0  # for each score of a key head's queries, beyond its mask

    @property
    def num_params(self) -> int:
        return sum(block.num_params for block in self.blocks)

    @property
    def num_layers(self) -> int:
        return sum(block.num_layers for block in self.blocks)


@dataclass(frozen=True)
class Need:
    """A model's sizes, and what it must hold besides its weights."""

    name: str
    sizes: Sizes
    num_context: int
    num_slots: int = 1
    num_head_params: int = 0  # of heads that draft, which are where the output matrix is

    def settle(
        self, places: Sequence[DevicePlacement]
    ) -> tuple[DevicePlacement, Mapping[str, str]]:
        """The first place where all of it fits, and the device of each module. Raises
        ModelUnreadable if none does, with a remedy."""
        for place in places:
            if (found := self.layout(place)) is not None:
                return place, found
        raise ModelUnreadable(self.complaint(places[-1]))

    def layout(self, place: DevicePlacement) -> Mapping[str, str] | None:
        """The device of each module; None if they do not fit."""
        numbers = spread(list(self._block_bytes(place)), self._free(place))
        if numbers is None:
            return None
        return {
            name: place.devices[number]
            for block, number in zip(self.sizes.blocks, numbers, strict=True)
            for name in block.names
        }

    def complaint(self, place: DevicePlacement) -> str:
        """One line on the memory needed, the memory available, and what would fit."""
        weights = self._weight_bytes(place)
        cache = self.sizes.num_layers * self._layer_cache_bytes(place)
        slots = f" in each of {self.num_slots} slots" if self.num_slots > 1 else ""
        loaded = f"{size_words(weights)} for its weights in {place.dtype_name}, " if weights else ""
        heads = self._head_bytes(place)
        drafting = f"{size_words(heads)} for its heads, " if heads else ""
        computing = self._draw_bytes(place) + self._work_bytes(place)
        return (
            f"{self.name} needs {loaded}{drafting}{size_words(cache)} for "
            f"{self.num_context} tokens of context{slots} and {size_words(computing)} "
            f"to compute, and {place.words} has {size_words(sum(place.free_bytes))} free; "
            f"{self._remedy(place)}"
        )

    def beside_weights(self) -> Need:
        """The needs once the weights are loaded."""
        blocks = tuple(replace(block, num_params=0) for block in self.sizes.blocks)
        return replace(self, sizes=replace(self.sizes, blocks=blocks))

    def _remedy(self, place: DevicePlacement) -> str:
        for option, need, there in self._smaller(place):
            if need.layout(there) is not None:
                return f"use {option}"
        return (
            "take a smaller model, or a quantised GGUF file of it with `target_backend=llama.cpp`"
        )

    def _smaller(self, place: DevicePlacement) -> Iterator[tuple[str, Need, DevicePlacement]]:
        """Smaller alternatives, the least costly first."""
        for num_slots in range(self.num_slots - 1, 0, -1):
            yield f"`num_slots={num_slots}`", replace(self, num_slots=num_slots), place
        alone = replace(self, num_slots=1)
        and_alone = " and `num_slots=1`" if self.num_slots > 1 else ""
        first = (self.num_context - 1) // _STEP * _STEP
        for num_context in range(first, _LOWEST_CONTEXT - 1, -_STEP):
            smaller = replace(alone, num_context=num_context)
            yield f"`context={num_context}` or less{and_alone}", smaller, place
        if place.dtype.itemsize > torch.bfloat16.itemsize:
            yield "`dtype=bfloat16`", alone, replace(place, dtype=torch.bfloat16)
        if self.num_head_params:
            yield "no heads", replace(alone, num_head_params=0), place

    # --- bytes

    def _free(self, place: DevicePlacement) -> list[int]:
        """Each device's memory for blocks: each needs work space for one layer."""
        work = self._work_bytes(place)
        return [max(0, free - work) for free in place.free_bytes]

    def _block_bytes(self, place: DevicePlacement) -> Iterator[int]:
        blocks, itemsize = self.sizes.blocks, place.dtype.itemsize
        for i, block in enumerate(blocks):
            is_last = i == len(blocks) - 1
            last = self._draw_bytes(place) + self._head_bytes(place) if is_last else 0
            cache = block.num_layers * self._layer_cache_bytes(place)
            yield block.num_params * itemsize + cache + last

    def _weight_bytes(self, place: DevicePlacement) -> int:
        return int(self.sizes.num_params * place.dtype.itemsize)

    def _extent(self, place: DevicePlacement) -> Extent:
        return Extent.on(place.devices[0].partition(":")[0], self.num_context, self.num_slots)

    def _num_cells(self, place: DevicePlacement) -> int:
        extent = self._extent(place)
        return self.num_slots * extent.num_region + extent.num_chunk

    def _layer_cache_bytes(self, place: DevicePlacement) -> int:
        return int(self._num_cells(place) * self.sizes.cached * place.dtype.itemsize)

    def _head_bytes(self, place: DevicePlacement) -> int:
        """The weights of heads, and the state of each cell's token."""
        if not self.num_head_params:
            return 0
        states = self._num_cells(place) * self.sizes.width
        return int((self.num_head_params + states) * place.dtype.itemsize)

    def _draw_bytes(self, place: DevicePlacement) -> int:
        """The logits of a full forward pass of each slot, and the tensors of their draws."""
        return self.num_slots * self._extent(place).num_rows * self.sizes.num_vocab * _DRAW_BYTES

    def _work_bytes(self, place: DevicePlacement) -> int:
        """One layer's prefill of a part of a prompt: its activations and its mask."""
        extent, itemsize = self._extent(place), place.dtype.itemsize
        wide, inner = _ACTIVATIONS
        passing = (wide * self.sizes.width + inner * self.sizes.inner) * itemsize
        scored = self.sizes.score_bytes
        biases = self.sizes.num_masks * (1 + (torch.float32.itemsize if scored else itemsize))
        mask = self.sizes.group * extent.num_region * (biases + scored)
        return int(extent.num_chunk * (passing + mask))


def sizes_of(config: Any, blocks: tuple[Block, ...]) -> Sizes:
    """The sizes that a model's configuration names."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    caps = getattr(config, "attn_logit_softcapping", None)
    is_scored = caps is not None or config.model_type in _WITH_SINKS
    return Sizes(
        blocks=blocks,
        cached=2 * kv_heads * head_size,
        width=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        group=heads // kv_heads,
        num_vocab=config.vocab_size,
        num_masks=len(set(getattr(config, "layer_types", None) or ())) or 1,
        score_bytes=_SCORE_BYTES if is_scored else 0,
    )
