"""Copy the cells of a text from one llama.cpp context to another, in place of computing them again.

A text's keys and values have the same bits in every context of a target, so a copy is as good as a
forward pass and takes a fraction of its time. llama.cpp writes a sequence as

    magic, sequence id, number of streams, then for each stream: number of cells, the cells

and reads only what has as many streams as the context. All streams but one are empty for a single
sequence, so the head is rewritten for the context that reads it, and the cells stay in place.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from duodec.core.sampling.sampler import Tokens

LEAST_COPIED = 9  # tokens that a copy has to save; fewer are a round, not a prompt
# Most copied tokens per saved token: a token is computed in the time of 30 copies, or of 150.
_TOKENS_A_SAVED = 32
_HEAD = 4  # numbers before the cells: magic, sequence, streams, cells
_WORD = 4  # bytes of each


@dataclass(frozen=True)
class Place:
    """Locate a sequence of a context: its text lies in the ``stream``-th of ``num_streams``
    parts."""

    handle: object
    seq: int
    stream: int = 0
    num_streams: int = 1


class Holder(Protocol):
    """Hold texts in a context, by slot."""

    def num_held(self, slot: int, text: Tokens) -> int:
        """Return how many tokens of a text need not be computed."""

    def place(self, slot: int) -> Place:
        """Return where the slot's text lies, if it holds any."""

    def make_room(self, slot: int, text: Tokens) -> Place:
        """Forget what the slot holds; ``text`` will lie there."""

    def forget(self, slot: int) -> None:
        """Forget what the slot holds."""


def pays(num_own: int, num_other: int) -> bool:
    """Return whether to copy ``num_other`` tokens of a text if ``num_own`` are already held."""
    num_saved = num_other - num_own
    return num_saved >= LEAST_COPIED and num_saved * _TOKENS_A_SAVED >= num_other


def copy_text(
    lib: Any, source: Holder, from_slot: int, target: Holder, to_slot: int, text: Tokens
) -> bool:
    """Copy the cells of ``text``, which the source holds. Return False if the library refuses: then
    the slot holds nothing."""
    origin = source.place(from_slot)
    end = len(text)
    place = target.make_room(to_slot, text)
    memory = lib.llama_get_memory(place.handle)
    if not _copy(lib, origin, place) or not lib.llama_memory_seq_rm(memory, place.seq, end, -1):
        target.forget(to_slot)
        return False
    return True


def _copy(lib: Any, origin: Place, place: Place) -> bool:
    size = lib.llama_state_seq_get_size(origin.handle, origin.seq)
    behind = _WORD * (origin.num_streams - 1 - origin.stream)  # bytes of empty streams
    buffer = np.empty(size + _WORD * place.num_streams, dtype=np.uint8)
    bytes_at = ctypes.POINTER(ctypes.c_uint8)
    start = ctypes.cast(buffer.ctypes.data, bytes_at)
    if lib.llama_state_seq_get_data(origin.handle, start, size, origin.seq) != size:
        return False
    magic = int.from_bytes(buffer[:_WORD].tobytes(), "little")
    cells = _WORD * (_HEAD + origin.stream)
    begin = cells - _WORD * _HEAD
    head = buffer[begin:cells].view(np.uint32)
    head[:3] = magic, origin.seq, place.num_streams
    end = size - behind + _WORD * (place.num_streams - 1)
    buffer[size - behind : end] = 0
    moved = ctypes.cast(buffer.ctypes.data + begin, bytes_at)
    num_read = lib.llama_state_seq_set_data(place.handle, moved, end - begin, place.seq)
    return bool(num_read == end - begin)
