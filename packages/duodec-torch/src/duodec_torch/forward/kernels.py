"""Compute `Rowwise` attention with two Triton kernels: the same guarantee, without copying keys.

Prefixes are split by absolute position, whatever a row's length: a program computes one split for
one key head and some rows, and returns at once where no row reaches. A second kernel computes each
row's tail from its listed cells, and merges it with the row's splits in their order. Lengths are
read on the device, so one graph serves all of them.

A row's arithmetic depends on its own sequence only: keys past a row's reach have weight 0 and do
not change its maximum, so that its sums are scaled by exactly 1. Bits differ from those of
`Rowwise`, which stays the readable oracle. Tested in Triton's interpreter and compiled for GPUs,
but never run on one where they were written, so `check` compares them with the oracle before a
target uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

from duodec_torch.forward.attention import BLOCK, TAIL, Rows, Rowwise, Scoring
from duodec_torch.library import torch

SPLIT = BLOCK  # positions
_TILE = 64  # rows, and positions, that a program computes at once; fewer where they are long
_TILE_BYTES = 16 << 10  # of a tile of keys: three of them, and as many values, fit a GPU's 99 KB
_TAIL_TILE = 16  # divides TAIL
_ALL = 1 << 30  # positions of a window that hides nothing


# Triton compiles anew when an integer is 1 or a multiple of 16, or a pointer is aligned. Arguments
# that may differ between two forward passes of a target are excluded from that, so that several
# slots use one binary and nothing is compiled during a request
_COUNTS = ("num_rows", "num_bases", "num_splits", "window")
_VIEWS = ("positions", "row_bases", "bases", "tails")


def _jit(function):  # type: ignore[no-untyped-def]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(
        do_not_specialize=[name for name in _COUNTS if name in names],
        do_not_specialize_on_alignment=[name for name in _VIEWS if name in names],
    )(function)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _capped(score, cap):  # type: ignore[no-untyped-def]
    """``cap * tanh(score / cap)``."""
    return cap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * score / cap)))


@_jit  # type: ignore[untyped-decorator, unused-ignore]
def _split_kernel(  # type: ignore[no-untyped-def]
    query, keys, values, positions, row_bases, bases, best_out, total_out, sum_out,
    query_head, query_group, query_row, cell_head, cell_step, position_step, base_step,
    scaling, cap, window, num_rows, num_bases, num_splits,
    num_group: tl.constexpr, size: tl.constexpr, wide: tl.constexpr, tile_rows: tl.constexpr,
    num_tail: tl.constexpr, length: tl.constexpr, tile: tl.constexpr, is_capped: tl.constexpr,
):  # fmt: skip
    """Grid: (tiles of rows, splits, key heads * slots)."""
    split = tl.program_id(1)
    head = (tl.program_id(2) // num_bases).to(tl.int64)
    base = tl.load(bases + tl.program_id(2) % num_bases)
    line = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)  # rows and the heads of a group
    row, group = line // num_group, line % num_group
    is_row = row < num_rows
    position = tl.load(positions + row * position_step, mask=is_row, other=0)
    is_own = is_row & (tl.load(row_bases + row * base_step, mask=is_row, other=-1) == base)
    reach = tl.where(is_own, position - num_tail, -1)
    since = tl.where(is_own, position - window + 1, position + length * tl.num_programs(1))
    begin = split * length
    if (tl.max(reach, 0) >= begin) & (tl.min(since, 0) < begin + length):
        d = tl.arange(0, wide)
        is_d = (d < size)[None, :]
        at = head * query_head + group * query_group + row * query_row
        q = tl.load(query + at[:, None] + d[None, :], mask=is_own[:, None] & is_d, other=0.0)
        best = tl.full([tile_rows], float("-inf"), tl.float32)
        total = tl.zeros([tile_rows], tl.float32)
        summed = tl.zeros([tile_rows, wide], tl.float32)
        for start in range(0, length, tile):
            place = begin + start + tl.arange(0, tile)
            cells = head * cell_head + (base + place)[:, None] * cell_step + d[None, :]
            k = tl.load(keys + cells, mask=is_d, other=0.0)
            v = tl.load(values + cells, mask=is_d, other=0.0)
            score = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
            if is_capped:
                score = _capped(score, cap)
            is_seen = (place[None, :] <= reach[:, None]) & (place[None, :] >= since[:, None])
            score = tl.where(is_seen, score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            weight = tl.exp(score - safe[:, None])
            scale = tl.exp(best - safe)
            total = total * scale + tl.sum(weight, 1)
            seen = tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            summed = summed * scale[:, None] + seen
            best = higher
        out = (head * num_rows * num_group + line) * num_splits + split
        tl.store(best_out + out, best, mask=is_own)
        tl.store(total_out + out, total, mask=is_own)
        tl.store(sum_out + out[:, None] * size + d[None, :], summed, mask=is_own[:, None] & is_d)


@_jit  # type: ignore[untyped-decorator, unused-ignore]
def _tail_kernel(  # type: ignore[no-untyped-def]
    query, keys, values, positions, tails, best_in, total_in, sum_in, sinks, output,
    query_head, query_group, query_row, cell_head, cell_step, position_step, tail_step,
    scaling, cap, window, num_rows, num_splits,
    num_group: tl.constexpr, wide_group: tl.constexpr, size: tl.constexpr, wide: tl.constexpr,
    num_tail: tl.constexpr, length: tl.constexpr, tile: tl.constexpr, is_capped: tl.constexpr,
    has_sinks: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, key heads)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    group, d = tl.arange(0, wide_group), tl.arange(0, wide)
    is_in = (group < num_group)[:, None] & (d < size)[None, :]
    position = tl.load(positions + row * position_step)
    at = head * query_head + row * query_row + group[:, None] * query_group + d[None, :]
    q = tl.load(query + at, mask=is_in, other=0.0)
    best = tl.full([wide_group], float("-inf"), tl.float32)
    total = tl.zeros([wide_group], tl.float32)
    summed = tl.zeros([wide_group, wide], tl.float32)
    for start in range(0, num_tail, tile):
        t = start + tl.arange(0, tile)
        cell = tl.load(tails + row * tail_step + t)
        cells = head * cell_head + cell[:, None] * cell_step + d[None, :]
        k = tl.load(keys + cells, mask=(d < size)[None, :], other=0.0)
        v = tl.load(values + cells, mask=(d < size)[None, :], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        if is_capped:
            score = _capped(score, cap)
        place = position - num_tail + 1 + t
        is_seen = (place >= 0) & (place > position - window)
        score = tl.where(is_seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - safe[:, None])
        scale = tl.exp(best - safe)
        total = total * scale + tl.sum(weight, 1)
        summed = summed * scale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = higher
    line = (head * num_rows + row) * num_group + group
    reach = position - num_tail
    first = tl.maximum(position - window + 1, 0) // length
    for split in range(first, tl.where(reach >= 0, reach // length + 1, 0)):
        part = line * num_splits + split
        its_best = tl.load(best_in + part, mask=group < num_group, other=0.0)
        its_total = tl.load(total_in + part, mask=group < num_group, other=0.0)
        its_sum = tl.load(sum_in + part[:, None] * size + d[None, :], mask=is_in, other=0.0)
        higher = tl.maximum(best, its_best)
        scale, its_scale = tl.exp(best - higher), tl.exp(its_best - higher)
        total = total * scale + its_total * its_scale
        summed = summed * scale[:, None] + its_sum * its_scale[:, None]
        best = higher
    if has_sinks:
        sink = tl.load(sinks + head * num_group + group, mask=group < num_group, other=0.0)
        higher = tl.maximum(best, sink)
        scale = tl.exp(best - higher)
        total = total * scale + tl.exp(sink - higher)
        summed = summed * scale[:, None]
    out = ((row * tl.num_programs(1) + head) * num_group + group)[:, None] * size + d[None, :]
    tl.store(output + out, (summed / total[:, None]).to(q.dtype), mask=is_in)


def most_in_a_tile(wide: int, num_bytes: int) -> int:
    """Rows, and positions, of a tile with heads of ``wide`` numbers of so many bytes."""
    return min(_TILE, max(16, _TILE_BYTES // (wide * num_bytes)))


@dataclass(frozen=True)
class SplitPlan:
    """`Rowwise`, by the kernels."""

    rows: Rows
    bases: torch.Tensor  # (slots,) where the slots of these rows begin
    num_splits: int

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scoring: Scoring
    ) -> torch.Tensor:
        num_kv_heads, group, num_rows, size = query.shape
        rows, num_bases = self.rows, len(self.bases)
        assert query.stride(3) == keys.stride(2) == 1, "numbers of a head are contiguous"
        assert keys.stride() == values.stride(), "keys and values have one layout"
        lines = (num_kv_heads, num_rows * group, self.num_splits)
        best, total = (query.new_empty(lines, dtype=torch.float32) for _ in range(2))
        summed = query.new_empty((*lines, size), dtype=torch.float32)
        out = query.new_empty((num_rows, num_kv_heads, group, size))
        wide = max(16, triton.next_power_of_2(size))
        most = most_in_a_tile(wide, query.element_size())
        tile = min(most, max(16, triton.next_power_of_2(num_rows * group)))
        steps = (*query.stride()[:3], *keys.stride()[:2], rows.positions.stride(0))
        window = _ALL if scoring.window is None else scoring.window
        changes = scoring.scaling, 1.0 if scoring.cap is None else scoring.cap, window
        is_capped, has_sinks = scoring.cap is not None, scoring.sinks is not None
        sinks = best if scoring.sinks is None else scoring.sinks.float().contiguous()
        grid = (triton.cdiv(num_rows * group, tile), self.num_splits, num_kv_heads * num_bases)
        with torch.cuda.device_of(query):  # kernels are launched where the thread is
            if self.num_splits:
                _split_kernel[grid](
                    query, keys, values, rows.positions, rows.bases, self.bases, best, total,
                    summed, *steps, rows.bases.stride(0), *changes, num_rows, num_bases,
                    self.num_splits, num_group=group, size=size, wide=wide, tile_rows=tile,
                    num_tail=TAIL, length=SPLIT, tile=most, is_capped=is_capped,
                    num_warps=8 if tile == 64 else 4,  # so that no thread's registers overflow
                    enable_fp_fusion=True,
                )  # fmt: skip
            _tail_kernel[(num_rows, num_kv_heads)](
                query, keys, values, rows.positions, rows.tails, best, total, summed, sinks, out,
                *steps, rows.tails.stride(0), *changes, num_rows, self.num_splits,
                num_group=group, wide_group=max(16, triton.next_power_of_2(group)), size=size,
                wide=wide, num_tail=TAIL, length=SPLIT, tile=_TAIL_TILE, is_capped=is_capped,
                has_sinks=has_sinks, enable_fp_fusion=True,
            )  # fmt: skip
        return out.permute(1, 2, 0, 3)


@dataclass(frozen=True)
class Splits:
    """As many splits as a slot has. If the rows are of one slot, they name it; otherwise all
    ``num_slots`` are scanned. So one graph serves each single slot, and one serves all of them."""

    num_splits: int
    num_slots: int = 1

    def plan(self, rows: Rows) -> SplitPlan:
        bases = rows.bases[:1]
        if self.num_slots > 1:
            slots = torch.arange(self.num_slots, device=bases.device)
            bases = slots * (self.num_splits * SPLIT)
        return SplitPlan(rows, bases, self.num_splits)


def check(
    num_kv_heads: int,
    group: int,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    num_rows: int,
    num_splits: int,
    scorings: Sequence[Scoring] = (),
) -> float:
    """The largest difference between the kernels and `Rowwise` on random numbers around 1, with the
    shapes and strides of a target's forward passes, so that the checked code is what runs, and with
    the ``scorings`` of its layers."""
    maker = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=maker, device=device).to(dtype)

    num_cells = num_splits * SPLIT
    query = random(num_rows, num_kv_heads, group, size).permute(1, 2, 0, 3)
    keys, values = random(num_kv_heads, num_cells, size), random(num_kv_heads, num_cells, size)
    edges = [min(edge, num_cells - 1) for edge in (0, 50, TAIL, SPLIT + 9, num_cells)]
    lines = torch.zeros(num_rows, 7 + TAIL, dtype=torch.int64, device=device)  # as in `Forwards`
    lines[:, 1] = torch.tensor([edges[i % len(edges)] for i in range(num_rows)], device=device)
    lines[:, 7:] = (lines[:, 1:2] + torch.arange(1 - TAIL, 1, device=device)).clamp(min=0)
    rows = Rows(lines[:, 1], lines[:, 3], lines[:, 7:])
    oracle = Rowwise(rows, tuple(range(0, num_cells, SPLIT)))
    plan, offs = Splits(num_splits).plan(rows), []
    for scoring in scorings or [Scoring(size**-0.5)]:
        if scoring.sinks is not None:
            scoring = replace(scoring, sinks=scoring.sinks.to(device))
        expected = oracle.attend(query, keys, values, scoring)
        found = plan.attend(query, keys, values, scoring)
        offs.append((found.float() - expected.float()).abs().max())
    return float(torch.stack(offs).max())  # NaN, if any is
