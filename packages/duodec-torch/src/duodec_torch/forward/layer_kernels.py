"""Compute a decoder layer between its matrix products with three Triton kernels.

transformers launches some thirty small kernels there, each of which reads and writes all rows. The
roundings between them are kept, so results differ at most by the order of a norm's sum. A row's
results depend on the row only.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

from duodec_torch.library import torch

_PART = 1024  # numbers of a row that a program gates
_HEADS = 8  # that a program rotates


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _norm_kernel(  # type: ignore[no-untyped-def]
    x, weight, out, eps, width: tl.constexpr, wide: tl.constexpr
):
    """Grid: (rows,)."""
    d = tl.arange(0, wide)
    at = tl.program_id(0).to(tl.int64) * width + d
    value = tl.load(x + at, mask=d < width, other=0.0)
    exact = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / width + eps)
    normed = (exact * scale).to(value.dtype).to(tl.float32)
    by = tl.load(weight + d, mask=d < width, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * by).to(value.dtype), mask=d < width)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gate_kernel(x, out, inner, part: tl.constexpr):  # type: ignore[no-untyped-def]
    """Grid: (rows, parts of a row)."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * part + tl.arange(0, part)
    gate = tl.load(x + 2 * row * inner + i, mask=i < inner, other=0.0)
    up = tl.load(x + (2 * row + 1) * inner + i, mask=i < inner, other=0.0)
    exact = gate.to(tl.float32)
    silu = (exact / (1.0 + tl.exp(-exact))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * inner + i, (silu * up.to(tl.float32)).to(gate.dtype), mask=i < inner)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _turned(a, b, by_a, by_b, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The products are rounded before their sum."""
    first = (a * by_a).to(dtype).to(tl.float32)
    return (first + (b * by_b).to(dtype).to(tl.float32)).to(dtype)


# the cells are a column of a forward pass's inputs, at any alignment
@triton.jit(do_not_specialize_on_alignment=["cells"])  # type: ignore[untyped-decorator, unused-ignore]
def _place_kernel(  # type: ignore[no-untyped-def]
    x, cos, sin, cells, query_norm, key_norm, query, keys, values, cell_column, head_step, eps,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, half: tl.constexpr, wide: tl.constexpr,
    num_tile: tl.constexpr, has_norms: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, tiles of heads). Heads are those of the query, the keys and the values."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * num_tile + tl.arange(0, num_tile)
    d = tl.arange(0, wide)
    is_query, is_value = head < num_heads, head >= num_heads + num_kv_heads
    is_d, is_in = (d < half)[None, :], head < num_heads + 2 * num_kv_heads
    at = x + (row * (num_heads + 2 * num_kv_heads) + head)[:, None] * (2 * half) + d[None, :]
    low = tl.load(at, mask=is_in[:, None] & is_d, other=0.0)
    high = tl.load(at + half, mask=is_in[:, None] & is_d, other=0.0)
    dtype = low.dtype
    a, b = low.to(tl.float32), high.to(tl.float32)
    if has_norms:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half) + eps)[:, None]
        norm = tl.where(is_query[:, None], query_norm + d[None, :], key_norm + d[None, :])
        by_low = tl.load(norm, mask=is_d, other=0.0).to(tl.float32)
        by_high = tl.load(norm + half, mask=is_d, other=0.0).to(tl.float32)
        a = ((a * scale).to(dtype).to(tl.float32) * by_low).to(dtype).to(tl.float32)
        b = ((b * scale).to(dtype).to(tl.float32) * by_high).to(dtype).to(tl.float32)
    turn = row * (2 * half) + d
    cos_low = tl.load(cos + turn, mask=d < half, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos + turn + half, mask=d < half, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin + turn, mask=d < half, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin + turn + half, mask=d < half, other=0.0).to(tl.float32)[None, :]
    low = tl.where(is_value[:, None], low, _turned(a, -b, cos_low, sin_low, dtype))
    high = tl.where(is_value[:, None], high, _turned(b, a, cos_high, sin_high, dtype))
    to_query = query + (row * num_heads + head)[:, None] * (2 * half) + d[None, :]
    tl.store(to_query, low, mask=is_query[:, None] & is_d)
    tl.store(to_query + half, high, mask=is_query[:, None] & is_d)
    in_cell = tl.load(cells + row * cell_column) * (2 * half) + d[None, :]
    to_keys = keys + (head - num_heads).to(tl.int64)[:, None] * head_step + in_cell
    is_key = (~is_query & ~is_value)[:, None] & is_d
    tl.store(to_keys, low, mask=is_key)
    tl.store(to_keys + half, high, mask=is_key)
    to_values = (
        values + (head - num_heads - num_kv_heads).to(tl.int64)[:, None] * head_step + in_cell
    )
    tl.store(to_values, low, mask=(is_value & is_in)[:, None] & is_d)
    tl.store(to_values + half, high, mask=(is_value & is_in)[:, None] & is_d)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The root mean square norm of rows: (rows, width)."""
    num_rows, width = x.shape
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):  # kernels are launched where the thread is
        _norm_kernel[(num_rows,)](
            x, weight, out, eps, width=width, wide=triton.next_power_of_2(width), num_warps=8,
            enable_fp_fusion=True,
        )  # fmt: skip
    return out


def gated(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of rows that hold both, concatenated: (rows, 2 * inner) to (rows, inner)."""
    num_rows, inner = x.shape[0], x.shape[1] // 2
    out = x.new_empty(num_rows, inner)
    with torch.cuda.device_of(x):
        _gate_kernel[(num_rows, triton.cdiv(inner, _PART))](
            x, out, inner, part=_PART, enable_fp_fusion=True
        )
    return out


def placed(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
) -> torch.Tensor:
    """Put the keys and values of rows into their cells, and return the query: (rows, heads, size).

    ``x`` (rows, all heads * size) holds query, keys and values, concatenated; ``cos`` and ``sin``
    (rows, size) rotate the first two, after the norms of their heads if there are any. ``cells``
    (rows,) are those of ``keys`` and ``values`` (kv heads, cells, size).
    """
    num_rows, (num_kv_heads, _, size) = len(x), keys.shape
    num_heads = x.shape[1] // size - 2 * num_kv_heads
    assert keys.stride() == values.stride(), "keys and values have one layout"
    assert keys.stride()[1:] == (size, 1), "cells are contiguous"
    query = x.new_empty(num_rows, num_heads, size)
    query_norm, key_norm, eps = norms or (x, x, 0.0)
    with torch.cuda.device_of(x):
        _place_kernel[(num_rows, triton.cdiv(num_heads + 2 * num_kv_heads, _HEADS))](
            x, cos.contiguous(), sin.contiguous(), cells, query_norm, key_norm, query, keys, values,
            cells.stride(0), keys.stride(0), eps, num_heads=num_heads, num_kv_heads=num_kv_heads,
            half=size // 2, wide=triton.next_power_of_2(size // 2), num_tile=_HEADS,
            has_norms=norms is not None, enable_fp_fusion=True,
        )  # fmt: skip
    return query
