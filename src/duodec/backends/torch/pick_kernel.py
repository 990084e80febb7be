"""Compute `pick` with one Triton kernel: a row is read once, its noise is never written.

The same sequence of fp32 operations as `duodec.backends.torch.noise`, none fused with the next, on
integers of 32 bits that wrap by themselves. Products use ``mul_rn``: for Blackwell the compiler
pairs plain ones with sums, and the assembler fuses these whatever its options. A program takes a
part of a row; a few operations on small tensors combine the parts' results.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from triton.language.extra.libdevice import (  # type: ignore[import-not-found, unused-ignore]
    mul_rn,
)

from duodec.backends.torch.library import torch
from duodec.backends.torch.noise import LN2_HIGH, LN2_LOW, LOG_COEFFICIENTS, SQRT_HALF

_PART = 2048  # tokens of a program


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _mixed(z, half):  # type: ignore[no-untyped-def]
    z = z ^ half
    z = z ^ (z >> 16)
    z = z * 0x7FEB352D
    z = z ^ (z >> 15)
    z = z * 0x846CA68B
    return z ^ (z >> 16)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _log(  # type: ignore[no-untyped-def]
    x, near_one, sqrt_half: tl.constexpr, high: tl.constexpr, low: tl.constexpr,
    c0: tl.constexpr, c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr, c4: tl.constexpr,
    c5: tl.constexpr, c6: tl.constexpr, c7: tl.constexpr, c8: tl.constexpr,
):  # fmt: skip
    """ln x; ``near_one`` is x - 1, which may be finer than x where that is about 1."""
    pattern = x.to(tl.int32, bitcast=True) - sqrt_half
    e = (pattern >> 23).to(tl.float32)
    f = ((pattern & 0x007FFFFF) + sqrt_half).to(tl.float32, bitcast=True) - 1.0
    f = tl.where(e == 0.0, near_one, f)
    square = mul_rn(f, f)
    y = mul_rn(f, c0)
    y = mul_rn(y + c1, f)
    y = mul_rn(y + c2, f)
    y = mul_rn(y + c3, f)
    y = mul_rn(y + c4, f)
    y = mul_rn(y + c5, f)
    y = mul_rn(y + c6, f)
    y = mul_rn(y + c7, f)
    y = mul_rn(mul_rn(y + c8, f), square)
    y = y + mul_rn(e, low)
    y = y - mul_rn(square, 0.5)
    y = y + f
    return y + mul_rn(e, high)


# one binary, the checked one, for all vocabularies
@triton.jit(do_not_specialize=["row_step", "num_vocab", "num_parts"])  # type: ignore[untyped-decorator, unused-ignore]
def _pick_kernel(  # type: ignore[no-untyped-def]
    logits, inverses, lows, highs, best_out, token_out, second_out,
    row_step, num_vocab, num_parts,
    part: tl.constexpr, sqrt_half: tl.constexpr, high: tl.constexpr, low: tl.constexpr,
    c0: tl.constexpr, c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr, c4: tl.constexpr,
    c5: tl.constexpr, c6: tl.constexpr, c7: tl.constexpr, c8: tl.constexpr,
):  # fmt: skip
    """Grid: (parts, rows)."""
    row = tl.program_id(1)
    token = tl.program_id(0) * part + tl.arange(0, part)
    is_in = token < num_vocab
    at = row.to(tl.int64) * row_step + token
    score = mul_rn(tl.load(logits + at, mask=is_in, other=float("-inf")), tl.load(inverses + row))
    z = token.to(tl.uint32) * 0x9E3779B1
    z = _mixed(z, tl.load(lows + row).to(tl.uint32))
    z = _mixed(z, tl.load(highs + row).to(tl.uint32))
    uniform = mul_rn(z.to(tl.float32) + 0.5, 2.3283064365386962890625e-10)  # 2**-32
    rest = mul_rn((z ^ 0xFFFFFFFF).to(tl.float32) + 0.5, 2.3283064365386962890625e-10)
    inner = -_log(uniform, -rest, sqrt_half, high, low, c0, c1, c2, c3, c4, c5, c6, c7, c8)
    noise = -_log(inner, inner - 1.0, sqrt_half, high, low, c0, c1, c2, c3, c4, c5, c6, c7, c8)
    score = tl.where(is_in, score + noise, float("-inf"))
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, token, num_vocab + part), 0)  # the first of equals
    second = tl.max(tl.where(token == winner, float("-inf"), score), 0)
    out = row * num_parts + tl.program_id(0)
    tl.store(best_out + out, best)
    tl.store(token_out + out, winner)
    tl.store(second_out + out, second)


def fused_pick(
    logits: torch.Tensor, inverse: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `duodec.backends.torch.picking.pick`."""
    num_rows, num_vocab = logits.shape
    num_parts = triton.cdiv(num_vocab, _PART)
    bests, seconds = (logits.new_empty((num_rows, num_parts)) for _ in range(2))
    tokens = logits.new_empty((num_rows, num_parts), dtype=torch.int64)
    with torch.cuda.device_of(logits):  # kernels are launched where the thread is
        _pick_kernel[(num_parts, num_rows)](
            logits, inverse.contiguous(), low.contiguous(), high.contiguous(),
            bests, tokens, seconds, logits.stride(0), num_vocab, num_parts,
            part=_PART, sqrt_half=SQRT_HALF, high=LN2_HIGH, low=LN2_LOW,
            **{f"c{i}": value for i, value in enumerate(LOG_COEFFICIENTS)},
            enable_fp_fusion=False,
        )  # fmt: skip
    first = bests.amax(-1, keepdim=True)
    token = tokens.masked_fill(bests != first, num_vocab).amin(-1, keepdim=True)
    is_its_part = (tokens == token) & (bests == first)
    second = torch.where(is_its_part, seconds, bests).amax(-1, keepdim=True)
    margin = torch.where(second == -torch.inf, torch.inf, first - second)
    return token[:, 0], margin[:, 0]
