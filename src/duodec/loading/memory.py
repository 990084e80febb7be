"""Report what memory a loaded pair takes, as far as that is known before it decodes."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.backends.loaded import LoadedTarget
from duodec.loading.resolve import ResolvedPair


@dataclass(frozen=True)
class MemoryUse:
    """Count the bytes of a pair where its target computes, and of its draft. On a CPU, caches grow
    up to ``cache_bytes`` as texts fill them; on a GPU they are allocated at once."""

    weight_bytes: int
    cache_bytes: int
    draft_bytes: int
    num_slots: int
    num_context: int  # most tokens of a text

    @classmethod
    def of(cls, pair: ResolvedPair, target: LoadedTarget) -> MemoryUse | None:
        """Return the memory of what was loaded; None if the target's caches were not estimated."""
        if target.footprint is None:
            return None
        return cls(
            target.footprint.weight_bytes,
            target.footprint.cache_bytes_per_token * target.num_context,
            pair.draft.num_bytes if pair.draft else 0,
            pair.config.num_slots,
            target.num_context,
        )
