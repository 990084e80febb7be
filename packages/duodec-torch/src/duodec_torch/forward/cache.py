"""Hold the KV cache: one tensor for all layers of a device, whose cells a forward pass writes.

Compaction (the accepted path of a tree moves to its place in the text) is one gather and one
scatter for all layers of a device. Keys are stored after the rotation, and a node's depth gave it
the position of its final cell, so a move is a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformers.cache_utils import Cache, CacheLayerMixin

from duodec_torch.library import torch


class CellLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's cells. A forward pass writes to the cells of its plan; all cells are returned,
    and the plan decides which of them a row sees."""

    is_sliding = False

    def __init__(self, cells: CellCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._cells = cells
        self.keys: torch.Tensor = keys  # (1, kv heads, cells, head size), a view
        self.values: torch.Tensor = values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the cells were made with the cache."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        target = self._cells.written[self.device]
        self.keys.index_copy_(2, target, key_states)
        self.values.index_copy_(2, target, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0  # positions are always given, so it is unused

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class CellCache(Cache):  # type: ignore[misc]
    """All layers, each on its device, over one buffer a device; a layer's number is its place in
    ``devices``. ``written`` are the cells of the next forward pass's rows, on each device."""

    def __init__(
        self,
        devices: Sequence[torch.device],
        *,
        num_kv_heads: int,
        num_cells: int,
        head_size: int,
        dtype: torch.dtype,
    ) -> None:
        shape = (2, 1, num_kv_heads, num_cells, head_size)
        # zeros: a cell that no row sees is still multiplied by 0, and must not be NaN
        self.buffers = {
            device: torch.zeros((count, *shape), dtype=dtype, device=device)
            for device, count in Counter(devices).items()
        }
        self.num_cells = num_cells
        self.written: dict[torch.device, torch.Tensor] = {}
        parts = {device: iter(buffer) for device, buffer in self.buffers.items()}
        super().__init__(layers=[CellLayer(self, *next(parts[device])) for device in devices])

    def write_to(self, cells: torch.Tensor) -> None:
        """Set the cells of the next forward pass's rows."""
        self.written = {device: cells.to(device) for device in self.buffers}

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy cells to other cells, in all layers; the two may overlap."""
        for device, buffer in self.buffers.items():
            moved = buffer.index_select(4, source.to(device))
            buffer.index_copy_(4, target.to(device), moved)
