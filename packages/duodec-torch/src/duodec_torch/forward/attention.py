"""Compute tree attention, in which each row of a forward pass sees its own path, in two ways.

A row at position p sees the positions up to p of its own sequence: those up to ``p - TAIL`` lie in
the cells of its slot in order, the last ``TAIL`` of them (a tree is no deeper) in cells that the
row lists. Both ways take groups of query heads as rows of one matrix, so that no key is repeated.

- `Masked` is one call of torch's attention over a window of cells, under a mask.
- `Rowwise` gives a row the same bits wherever its keys are, whatever the other rows: its prefix is
  computed in blocks by absolute position, its tail from a gathered copy, and both have shapes that
  no text, tree or row changes. Unseen keys add exact zeros.

Both compute what architectures change in the scores: windows, soft caps, sinks (`Scoring`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from duodec.errors import ModelUnreadable
from duodec_torch.library import torch, transformers

NAME = "duodec"  # of this attention among those of transformers
TAIL = 80  # positions whose cells a row lists: the depth of the deepest tree
BLOCK = 256  # positions of a block of `Rowwise`


@dataclass(frozen=True)
class Scoring:
    """What a layer makes of the products of queries and keys."""

    scaling: float
    window: int | None = None  # positions that a row sees, its own included; None: all
    cap: float | None = None  # scores stay within it, by a tanh; None: they are not capped
    sinks: torch.Tensor | None = None  # (kv heads, group): a score that takes weight from all keys

    def of(self, products: torch.Tensor) -> torch.Tensor:
        """The scores of products, which the scaling is part of already."""
        return products if self.cap is None else self.cap * torch.tanh(products / self.cap)

    def since(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that a row at each of these sees."""
        if self.window is None:
            return torch.zeros_like(positions)
        return (positions - self.window + 1).clamp(min=0)


class AttentionMetadata(Protocol):
    """What the rows of a forward pass see."""

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """``query`` (kv heads, group, rows, size) over ``keys`` and ``values`` (kv heads, cells,
        size): the shape and type of ``query``."""


@dataclass(frozen=True)
class Rows:
    """The place of each row of a forward pass; the tensors are on the device."""

    positions: torch.Tensor  # (rows,) in its sequence
    bases: torch.Tensor  # (rows,) first cell of its slot
    tails: torch.Tensor  # (rows, TAIL) cells of the positions p - TAIL + 1 .. p

    def to(self, device: torch.device) -> Rows:
        """The same rows, for the layers of a device."""
        return Rows(*(part.to(device) for part in (self.positions, self.bases, self.tails)))

    def sees(
        self, begin: int, num_cells: int, since: torch.Tensor, reach: torch.Tensor
    ) -> torch.Tensor:
        """Which of ``num_cells`` cells from ``begin`` on hold positions from ``since`` up to
        ``reach`` of the row's slot: (rows, cells) bool."""
        cells = torch.arange(begin, begin + num_cells, device=reach.device)
        places = cells - self.bases[:, None]
        return (places >= since[:, None]) & (places <= reach[:, None])


@dataclass(frozen=True)
class Masked:
    """Attention over ``num_cells`` cells of the cache, under one mask for each kind of layer."""

    begin: int
    num_cells: int
    mask: Callable[[Scoring], torch.Tensor]  # (rows, cells) bool
    _biases: dict[tuple[int, torch.dtype, int | None], torch.Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        part = slice(self.begin, self.begin + self.num_cells)
        keys, values = keys[:, part], values[:, part]
        if scoring.cap is not None or scoring.sinks is not None:
            return self._attend_by_head(query, keys, values, scoring)
        out = torch.nn.functional.scaled_dot_product_attention(
            query.flatten(1, 2)[None],
            keys[None],
            values[None],
            attn_mask=self._bias(query.shape[1], query.dtype, scoring),
            scale=scoring.scaling,
        )
        return out.view_as(query)

    def _attend_by_head(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        """What torch's attention has not; one key head after the other, since all scores of a long
        prompt at once would take much memory."""
        bias = self._bias(query.shape[1], torch.float32, scoring)
        found = []
        for head, rows in enumerate(query.flatten(1, 2)):
            scores = scoring.of(rows.float() * scoring.scaling @ keys[head].float().T) + bias
            if scoring.sinks is not None:
                sinks = scoring.sinks[head].float().repeat_interleave(query.shape[2])
                scores = torch.cat([scores, sinks[:, None]], dim=1)
            weights = torch.softmax(scores, dim=1)[:, : self.num_cells]
            found.append(weights @ values[head].float())
        return torch.stack(found).to(query.dtype).view_as(query)

    def _bias(self, group: int, dtype: torch.dtype, scoring: Scoring) -> torch.Tensor:
        """The mask as torch would convert it in every layer: (group * rows, cells), in the query's
        type."""
        kind = group, dtype, scoring.window
        if kind not in self._biases:
            hidden = ~self.mask(scoring).repeat(group, 1)
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._biases[kind] = bias.masked_fill_(hidden, -torch.inf)
        return self._biases[kind]


@dataclass(frozen=True)
class Rowwise:
    """Attention whose arithmetic depends on a row's own sequence only."""

    rows: Rows
    blocks: tuple[int, ...]  # cells where blocks of the prefixes begin, in order for each slot

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        num_kv_heads, group, num_rows, size = query.shape
        by_row = (query.float() * scoring.scaling).transpose(1, 2)  # (kv heads, rows, group, size)
        flat = by_row.reshape(num_kv_heads, num_rows * group, size)
        tails, positions = self.rows.tails, self.rows.positions
        places = torch.arange(TAIL, device=query.device) + (positions[:, None] - TAIL + 1)
        own_keys, own_values = keys[:, tails].float(), values[:, tails].float()
        since, reach = scoring.since(positions), positions - TAIL
        scores = [
            scoring.of(torch.matmul(by_row, own_keys.transpose(2, 3))).masked_fill(
                (places < since[:, None])[:, None], -torch.inf
            )
        ]
        for begin in self.blocks:
            found = torch.matmul(flat, keys[:, begin : begin + BLOCK].float().transpose(1, 2))
            is_hidden = ~self.rows.sees(begin, BLOCK, since, reach)
            scores.append(
                scoring.of(found.view(num_kv_heads, num_rows, group, BLOCK)).masked_fill(
                    is_hidden[:, None], -torch.inf
                )
            )
        best = torch.stack([part.amax(-1) for part in scores]).amax(0)[..., None]
        weights = [torch.exp(part - best) for part in scores]
        total = weights[0].sum(-1, keepdim=True)
        if scoring.sinks is not None:  # it may overflow: then all weights are 0
            total = total + torch.exp(scoring.sinks.float()[:, None, :, None] - best)
        out = torch.matmul(weights[0], own_values)
        for weight, begin in zip(weights[1:], self.blocks, strict=True):
            total = total + weight.sum(-1, keepdim=True)
            rows = weight.reshape(num_kv_heads, num_rows * group, BLOCK)
            seen = torch.matmul(rows, values[:, begin : begin + BLOCK].float())
            out = out + seen.view_as(out)
        return (out / total).transpose(1, 2).to(query.dtype)


@dataclass(frozen=True)
class PerDevice:
    """A plan for the layers of each device."""

    plans: Mapping[torch.device, AttentionMetadata]

    @classmethod
    def of(cls, layout: Layout, rows: Rows, devices: Iterable[torch.device]) -> PerDevice:
        return cls({device: layout.plan(rows.to(device)) for device in devices})

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        return self.plans[query.device].attend(query, keys, values, scoring)


class Layout(Protocol):
    """The fixed part of all forward passes of one kind; makes the plan of one. Hashable."""

    def plan(self, rows: Rows) -> AttentionMetadata: ...


@dataclass(frozen=True)
class TextWindow:
    """Every row's sequence lies in the cells of its slot, in order, within this window."""

    begin: int
    num_cells: int

    def plan(self, rows: Rows) -> Masked:
        return Masked(self.begin, self.num_cells, partial(self._mask, rows))

    def _mask(self, rows: Rows, scoring: Scoring) -> torch.Tensor:
        since = scoring.since(rows.positions)
        return rows.sees(self.begin, self.num_cells, since, rows.positions)


@dataclass(frozen=True)
class TreeWindow:
    """Rows see their prefix and their tail, both within this window."""

    begin: int
    num_cells: int

    def plan(self, rows: Rows) -> Masked:
        return Masked(self.begin, self.num_cells, partial(self._mask, rows))

    def _mask(self, rows: Rows, scoring: Scoring) -> torch.Tensor:
        since = scoring.since(rows.positions)
        mask = rows.sees(self.begin, self.num_cells, since, rows.positions - TAIL)
        num_seen = TAIL if scoring.window is None else min(TAIL, scoring.window)
        return mask.scatter(1, rows.tails[:, TAIL - num_seen :] - self.begin, True)


@dataclass(frozen=True)
class Blocks:
    """Blocks that hold the prefixes of all rows; further blocks change no bit."""

    begins: tuple[int, ...]

    def plan(self, rows: Rows) -> Rowwise:
        return Rowwise(rows, self.begins)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    plan: AttentionMetadata | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls: (1, heads, rows, size) to (1, rows, heads, size)."""
    if plan is None:
        raise ModelUnreadable("this architecture does not pass arguments to its attention")
    if options.get("position_bias") is not None:
        raise ModelUnreadable("attention with position_bias is not computed by the torch backend")
    _, num_heads, num_rows, size = query.shape
    num_kv_heads = key.shape[1]
    folded = query.view(num_kv_heads, num_heads // num_kv_heads, num_rows, size)
    sinks = options.get("s_aux")
    scoring = Scoring(
        size**-0.5 if scaling is None else scaling,
        options.get("sliding_window"),
        options.get("softcap"),
        None if sinks is None else sinks.view(num_kv_heads, num_heads // num_kv_heads),
    )
    out = plan.attend(folded, key[0], value[0], scoring)
    return out.reshape(num_heads, num_rows, size).transpose(0, 1)[None], None


transformers.AttentionInterface.register(NAME, attend)
