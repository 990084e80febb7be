"""The KV cache: one tensor for all layers, cells written where a forward says.

Compaction (the accepted path of a tree moves to its place in the text) is one gather and one
scatter for all layers. Keys are stored after the rotation, and a node's depth gave it the
position of its final cell, so moving is copying.
"""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import Cache, CacheLayerMixin

from duodec.backends.torch.library import torch


class CellLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's cells. What a forward writes goes where its plan says; all cells come back,
    and the plan says which of them a row sees."""

    is_sliding = False

    def __init__(self, cells: CellCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._cells = cells
        self.keys: torch.Tensor = keys  # (1, kv heads, cells, head size), a view
        self.values: torch.Tensor = values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the cells were made with the cache."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        target = self._cells.written
        self.keys.index_copy_(2, target, key_states)
        self.values.index_copy_(2, target, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0  # positions are always given, so nobody counts on it

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length  # its name before transformers 5.20


class CellCache(Cache):  # type: ignore[misc]
    """All layers over one buffer. ``written`` are the cells of the next forward's rows."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        num_cells: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 2, 1, num_kv_heads, num_cells, head_size)
        # zeros: a cell that no row sees is still multiplied by 0, and must not be NaN
        self.buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.written = torch.zeros(0, dtype=torch.int64, device=device)
        super().__init__(layers=[CellLayer(self, keys, values) for keys, values in self.buffer])

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy cells to other cells, in all layers; the two may overlap."""
        self.buffer.index_copy_(4, target, self.buffer.index_select(4, source))
