"""Estimate the memory that a target takes in llama.cpp, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.gguf.overrides import CPU, Override, device_of
from duodec.backends.llamacpp.target.caches import CacheTypes
from duodec.backends.llamacpp.target.recurrent import NUM_SNAPSHOTS

UNKNOWN_CONTEXT = 2048  # tokens, for the few models that do not say
_LEAST = 2048  # tokens; only a user chooses fewer
_ROWS = 3 * 80  # rows of logits, as measured: those of a widest forward pass, and work of that size
_MASK_BYTES = 1 << 10  # for a token of context: attention's mask while a prompt is read
_SHARE = 0.5  # share of what weights leave, for caches by default
_STEP = 256  # llama.cpp rounds up to this many tokens


@dataclass(frozen=True)
class Footprint:
    """Estimate the bytes that a target takes."""

    weight_bytes: int
    cache_bytes_per_token: int  # for the context, in all of its caches
    row_bytes: int
    state_bytes: int = 0  # states of recurrent layers, of all slots, with their snapshots
    fixed_bytes: int = 0  # weights that cannot be read again from their file at need

    @classmethod
    def of(
        cls,
        lib: Any,
        header: Header,
        cache: CacheTypes,
        num_slots: int = 1,
        num_lone: int = 1,
        num_contexts: int = 2,
    ) -> Footprint:
        """Estimate a target's memory. A server's slots have a cache each, and on a CPU a single
        request has one more (``num_lone``), for trees. They lie in at most ``num_contexts``, each
        of which has buffers of its own."""
        has_states = header.state_bytes > 0  # then a single request has no cache of its own
        num_caches = num_slots if num_slots == 1 or has_states else num_slots + num_lone
        return cls(
            weight_bytes=header.num_bytes,
            cache_bytes_per_token=num_caches * (cache.bytes_per_token(lib, header) + _MASK_BYTES),
            row_bytes=min(num_caches, num_contexts) * _ROWS * header.num_vocab * 4,
            state_bytes=num_slots * (1 + NUM_SNAPSHOTS) * header.state_bytes,
        )

    def on_gpu(self, header: Header, placed: Sequence[Override], num_layers: int) -> Footprint:
        """Return the part that lies on a GPU when it computes ``num_layers`` (-1: all of them)."""
        most = max(1, len(header.kv_heads))
        part = 1.0 if num_layers < 0 else min(1.0, num_layers / most)
        kept = sum(n for name, n in header.tensors.items() if device_of(placed, name) == CPU)
        weight_bytes = int(part * (self.weight_bytes - kept))
        return replace(
            self,
            weight_bytes=weight_bytes,
            fixed_bytes=weight_bytes,
            cache_bytes_per_token=max(1, int(part * self.cache_bytes_per_token)),
        )

    def least_bytes(self, num_context: int | None) -> int:
        """Return what texts of ``num_context`` tokens need besides weights; None: a short
        context."""
        caches = self.cache_bytes_per_token * (num_context or _LEAST)
        return caches + self.row_bytes + self.state_bytes

    def most_context(self, free_bytes: int) -> int:
        """Return how many tokens' caches fit. On a CPU the weights need not fit: a file's are read
        again at need."""
        left = max(0, free_bytes - self.fixed_bytes - self.row_bytes - self.state_bytes)
        return left // self.cache_bytes_per_token

    def good_context(self, free_bytes: int) -> int:
        """Return how many tokens' caches take no more than a share of what weights leave."""
        left = max(0, free_bytes - self.weight_bytes - self.row_bytes - self.state_bytes)
        return max(_LEAST, int(_SHARE * left) // self.cache_bytes_per_token // _STEP * _STEP)
