"""Compute `summarise` with two Triton kernels: a row is read once, its noise is never written.

The same sequence of fp32 operations as `duodec_torch.sampling.noise`, none fused with the
next, on integers of 32 bits that wrap by themselves. Products use ``mul_rn``: for Blackwell the
compiler pairs plain ones with sums, and the assembler fuses these whatever its options. A program
takes a part of a row and lists its best tokens; a second kernel merges the parts of each row.

Both are launched from a forward pass's graph: all that differs between two passes is read from the
device's memory.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
from triton.language.extra.libdevice import (  # type: ignore[import-not-found, unused-ignore]
    mul_rn,
)

from duodec_torch.library import torch
from duodec_torch.sampling.noise import LN2_HIGH, LN2_LOW, LOG_COEFFICIENTS, SQRT_HALF
from duodec_torch.sampling.rows import (
    IS_SETTLED,
    LARGEST,
    MARGIN,
    NUM_COLUMNS,
    NUM_TOP,
    TOKEN,
    TOP,
)

_PART = 2048  # tokens of a program
_NO_KEY = -(1 << 63)  # below all keys
# one binary, the checked one, whatever rows of a target's buffers it is given
_ANY = {
    "do_not_specialize": ["row_step", "way_step", "out_step", "num_vocab", "num_parts"],
    "do_not_specialize_on_alignment": ["logits", "ways", "summaries"],
}


def _jit(function):  # type: ignore[no-untyped-def]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    options = {what: [n for n in some if n in names] for what, some in _ANY.items()}
    return triton.jit(**options)(function)


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


@_jit  # type: ignore[untyped-decorator, unused-ignore]
def _part_kernel(  # type: ignore[no-untyped-def]
    logits, ways, best_out, token_out, second_out, largest_out, key_out,
    row_step, way_step, num_vocab, num_parts,
    part: tl.constexpr, num_top: tl.constexpr, no_key: tl.constexpr,
    sqrt_half: tl.constexpr, high: tl.constexpr, low: tl.constexpr,
    c0: tl.constexpr, c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr, c4: tl.constexpr,
    c5: tl.constexpr, c6: tl.constexpr, c7: tl.constexpr, c8: tl.constexpr,
):  # fmt: skip
    """Grid: (parts, rows)."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * part + tl.arange(0, part)
    is_in = token < num_vocab
    logit = tl.load(logits + row * row_step + token, mask=is_in, other=float("-inf"))
    way = ways + row * way_step
    inverse = tl.load(way).to(tl.int32).to(tl.float32, bitcast=True)
    is_nan = logit != logit
    number = tl.where(is_nan, float("-inf"), logit)
    score = number
    if inverse >= 0:
        z = token.to(tl.uint32) * 0x9E3779B1
        z = _mixed(z, tl.load(way + 1).to(tl.uint32))
        z = _mixed(z, tl.load(way + 2).to(tl.uint32))
        uniform = mul_rn(z.to(tl.float32) + 0.5, 2.3283064365386962890625e-10)  # 2**-32
        rest = mul_rn((z ^ 0xFFFFFFFF).to(tl.float32) + 0.5, 2.3283064365386962890625e-10)
        inner = -_log(uniform, -rest, sqrt_half, high, low, c0, c1, c2, c3, c4, c5, c6, c7, c8)
        noise = -_log(inner, inner - 1.0, sqrt_half, high, low, c0, c1, c2, c3, c4, c5, c6, c7, c8)
        score = tl.where(is_in, mul_rn(number, inverse) + noise, float("-inf"))
    best = tl.max(score, 0)
    winner = tl.min(tl.where(score == best, token, num_vocab + part), 0)  # the first of equals
    second = tl.max(tl.where(token == winner, float("-inf"), score), 0)
    largest = tl.max(number, 0)
    out = row * num_parts + tl.program_id(0)
    tl.store(best_out + out, best)
    tl.store(token_out + out, winner)
    tl.store(second_out + out, second)
    tl.store(largest_out + out, tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), largest))

    # logit and token in one integer, as in `duodec_torch.sampling.rows`: the first of
    # equals leads
    pattern = tl.where(logit == 0.0, 0, logit.to(tl.int32, bitcast=True))  # no negative zero
    pattern = tl.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern)
    key = (pattern.to(tl.int64) << 32) | (0xFFFFFFFF - token.to(tl.int64))
    key = tl.where(is_in, key, no_key)
    for rank in range(num_top):
        first = tl.max(key, 0)
        tl.store(key_out + out * num_top + rank, first)
        key = tl.where(key == first, no_key, key)


@_jit  # type: ignore[untyped-decorator, unused-ignore]
def _merge_kernel(  # type: ignore[no-untyped-def]
    best_in, token_in, second_in, largest_in, key_in, summaries, out_step, num_parts,
    wide: tl.constexpr, num_top: tl.constexpr, no_key: tl.constexpr,
    token_at: tl.constexpr, margin_at: tl.constexpr, settled_at: tl.constexpr,
    largest_at: tl.constexpr, top_at: tl.constexpr,
):  # fmt: skip
    """Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, wide)
    is_part, at = part < num_parts, row * num_parts + part
    best = tl.load(best_in + at, mask=is_part, other=float("-inf"))
    token = tl.load(token_in + at, mask=is_part, other=0x7FFFFFFF)
    second = tl.load(second_in + at, mask=is_part, other=float("-inf"))
    largest = tl.load(largest_in + at, mask=is_part, other=float("-inf"))
    first = tl.max(best, 0)
    winner = tl.min(tl.where(best == first, token, 0x7FFFFFFF), 0)
    next_best = tl.max(tl.where(token == winner, second, best), 0)
    margin = tl.where(next_best == float("-inf"), float("inf"), first - next_best)
    is_nan = largest != largest
    most = tl.max(tl.where(is_nan, float("-inf"), largest), 0)
    most = tl.where(tl.max(is_nan.to(tl.int32), 0) > 0, float("nan"), most)
    out = summaries + row * out_step
    tl.store(out + token_at, winner.to(tl.float64))
    tl.store(out + margin_at, margin.to(tl.float64))
    tl.store(out + settled_at, tl.full([], 1.0, tl.float64))
    tl.store(out + largest_at, most.to(tl.float64))

    place = tl.arange(0, wide * num_top)
    key = tl.load(
        key_in + row * num_parts * num_top + place, mask=place < num_parts * num_top, other=no_key
    )
    for rank in range(num_top):
        leader = tl.max(key, 0)
        pattern = (leader >> 32).to(tl.int32)
        pattern = tl.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern)
        logit = pattern.to(tl.float32, bitcast=True)
        tl.store(out + top_at + rank, (0xFFFFFFFF - (leader & 0xFFFFFFFF)).to(tl.float64))
        tl.store(out + top_at + num_top + rank, logit.to(tl.float64))
        key = tl.where(key == leader, no_key, key)


def fused_summarise(logits: torch.Tensor, ways: torch.Tensor, summaries: torch.Tensor) -> None:
    """As `duodec_torch.sampling.summaries.summarise`; of -0.0, the logit is 0.0."""
    num_rows, num_vocab = logits.shape
    num_parts = triton.cdiv(num_vocab, _PART)
    bests, seconds, largest = (logits.new_empty((num_rows, num_parts)) for _ in range(3))
    tokens = logits.new_empty((num_rows, num_parts), dtype=torch.int32)
    keys = logits.new_empty((num_rows, num_parts, NUM_TOP), dtype=torch.int64)
    with torch.cuda.device_of(logits):  # kernels are launched where the thread is
        _part_kernel[(num_parts, num_rows)](
            logits, ways, bests, tokens, seconds, largest, keys,
            logits.stride(0), ways.stride(0), num_vocab, num_parts,
            part=_PART, num_top=NUM_TOP, no_key=_NO_KEY,
            sqrt_half=SQRT_HALF, high=LN2_HIGH, low=LN2_LOW,
            **{f"c{i}": value for i, value in enumerate(LOG_COEFFICIENTS)},
            enable_fp_fusion=False,
        )  # fmt: skip
        _merge_kernel[(num_rows,)](
            bests, tokens, seconds, largest, keys, summaries, summaries.stride(0), num_parts,
            wide=triton.next_power_of_2(num_parts), num_top=NUM_TOP, no_key=_NO_KEY, token_at=TOKEN,
            margin_at=MARGIN, settled_at=IS_SETTLED, largest_at=LARGEST, top_at=TOP,
            enable_fp_fusion=False,
        )  # fmt: skip


def fused_pick(
    logits: torch.Tensor, inverse: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `duodec_torch.sampling.summaries.pick`."""
    pattern = inverse.contiguous().view(torch.int32).long()
    summaries = logits.new_empty((len(logits), NUM_COLUMNS), dtype=torch.float64)
    fused_summarise(logits, torch.cat([pattern, low, high], -1), summaries)
    return summaries[:, TOKEN].long(), summaries[:, MARGIN].float()
