"""Draw blocks of quantised weights as GGUF files have them, and say what they stand for.

Read off the specification of the format, byte by byte; shares nothing with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from fakes import grids

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Parts = tuple[Floats, Floats]  # codes times scales, and minima; a weight is their sum

_NORMAL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64
)
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _half(raw: Bytes) -> Floats:
    """(..., 2) bytes to (..., 1) numbers."""
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float64)


def _nibbles(raw: Bytes) -> Bytes:
    """16 bytes to 32 codes: first the low halves, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _bits(raw: Bytes) -> Bytes:
    """4 bytes to 32 bits, the lowest first."""
    return np.unpackbits(raw, axis=-1, bitorder="little")


def _q4_0(b: Bytes) -> Parts:
    return (_nibbles(b[..., 2:18]) - 8.0) * _half(b[..., :2]), np.zeros(1)


def _q4_1(b: Bytes) -> Parts:
    return _nibbles(b[..., 4:20]) * _half(b[..., :2]), _half(b[..., 2:4])


def _q5_0(b: Bytes) -> Parts:
    codes = _nibbles(b[..., 6:22]) + 16.0 * _bits(b[..., 2:6])
    return (codes - 16) * _half(b[..., :2]), np.zeros(1)


def _q5_1(b: Bytes) -> Parts:
    codes = _nibbles(b[..., 8:24]) + 16.0 * _bits(b[..., 4:8])
    return codes * _half(b[..., :2]), _half(b[..., 2:4])


def _q8_0(b: Bytes) -> Parts:
    return b[..., 2:34].view(np.int8) * _half(b[..., :2]), np.zeros(1)


def _sixes(raw: Bytes) -> tuple[Floats, Floats]:
    """12 bytes to eight scales and eight minima of six bits."""
    low, high, last = raw[..., 0:4], raw[..., 4:8], raw[..., 8:12]
    scales = np.concatenate([low & 63, (last & 15) | (low >> 6) << 4], axis=-1)
    minima = np.concatenate([high & 63, (last >> 4) | (high >> 6) << 4], axis=-1)
    return scales.astype(np.float64), minima.astype(np.float64)


def _pairs(raw: Bytes) -> Bytes:
    """128 bytes to 8 x 32 codes: of 32 bytes first the low halves, then the high ones."""
    raw = raw.reshape(*raw.shape[:-1], 4, 1, 32)
    return np.concatenate([raw & 15, raw >> 4], axis=-2).reshape(*raw.shape[:-3], 8, 32)


def _k(b: Bytes, codes: Floats) -> Parts:
    scales, minima = _sixes(b[..., 4:16])
    scales, minima = scales * _half(b[..., :2]), minima * _half(b[..., 2:4])
    return codes * scales[..., None], -minima[..., None]


def _quarters(raw: Bytes) -> Bytes:
    """64 bytes to 8 x 32 codes of two bits: of 32 bytes first the lowest two of each."""
    raw = raw.reshape(*raw.shape[:-1], 2, 1, 32)
    codes = raw >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    return codes.reshape(*raw.shape[:-3], 8, 32)


def _by_sixteen(codes: Floats, scales: Floats) -> Floats:
    """(..., 8, 32) codes times (..., 16) scales."""
    by_sixteen = codes.reshape(*codes.shape[:-2], 16, 16) * scales[..., None]
    return np.asarray(by_sixteen.reshape(codes.shape))


def _q2_k(b: Bytes) -> Parts:
    codes = _quarters(b[..., 16:80]).astype(np.float64)
    scales = (b[..., :16] & 15) * _half(b[..., 80:82])
    minima = (b[..., :16] >> 4) * _half(b[..., 82:84])
    return _by_sixteen(codes, scales), -_by_sixteen(np.ones_like(codes), minima)


def _q3_k(b: Bytes) -> Parts:
    above = np.stack([b[..., :32] >> j & 1 for j in range(8)], axis=-2)
    codes = _quarters(b[..., 32:96]) + 4.0 * above - 4
    low = np.concatenate([b[..., 96:104] & 15, b[..., 96:104] >> 4], axis=-1)
    high = np.concatenate([b[..., 104:108] >> j & 3 for j in range(0, 8, 2)], axis=-1)
    scales = low + 16.0 * high - 32
    return _by_sixteen(codes, scales * _half(b[..., 108:110])), np.zeros(1)


def _thirds(raw: Bytes, num: int) -> Bytes:
    """The first digits to the base of three of fractions of 256, first those of all bytes."""
    powers = 3 ** np.arange(num, dtype=np.uint16)[:, None]
    digits = (raw[..., None, :] * powers % 256) * 3 >> 8
    return digits.reshape(*raw.shape[:-1], -1).astype(np.uint8)


def _tq1_0(b: Bytes) -> Parts:
    parts = [_thirds(b[..., :32], 5), _thirds(b[..., 32:48], 5), _thirds(b[..., 48:52], 4)]
    return (np.concatenate(parts, axis=-1) - 1.0) * _half(b[..., 52:54]), np.zeros(1)


def _tq2_0(b: Bytes) -> Parts:
    codes = _quarters(b[..., :64]).reshape(*b.shape[:-1], 256) - 1.0
    return codes * _half(b[..., 64:66]), np.zeros(1)


def _q4_k(b: Bytes) -> Parts:
    return _k(b, _pairs(b[..., 16:144]).astype(np.float64))


def _q5_k(b: Bytes) -> Parts:
    above = np.stack([b[..., 16:48] >> j & 1 for j in range(8)], axis=-2)
    return _k(b, _pairs(b[..., 48:176]) + 16.0 * above)


def _q6_k(b: Bytes) -> Parts:
    low, above = b[..., :128], b[..., 128:192]
    halves = []
    for h in range(2):  # of 128 weights
        first, second = low[..., 64 * h : 64 * h + 32], low[..., 64 * h + 32 : 64 * h + 64]
        for j, part in enumerate([first & 15, second & 15, first >> 4, second >> 4]):
            halves.append(part | (above[..., 32 * h : 32 * h + 32] >> 2 * j & 3) << 4)
    codes = np.concatenate(halves, axis=-1).reshape(*b.shape[:-1], 16, 16) - 32.0
    scales = b[..., 192:208].view(np.int8) * _half(b[..., 208:210])
    return codes * scales[..., None], np.zeros(1)


def _iq4_nl(b: Bytes) -> Parts:
    return _NORMAL[_nibbles(b[..., 2:18])] * _half(b[..., :2]), np.zeros(1)


def _iq4_xs(b: Bytes) -> Parts:
    above = np.ascontiguousarray(b[..., 2:4]).view(np.uint16)
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1).reshape(*b.shape[:-1], 8)
    scales = low + (above >> np.arange(0, 16, 2) & 3) * 16.0 - 32
    scales = scales * _half(b[..., :2])
    codes = _nibbles(b[..., 8:].reshape(*b.shape[:-1], 8, 16))
    return _NORMAL[codes] * scales[..., None], np.zeros(1)


def _mxfp4(b: Bytes) -> Parts:
    return _FP4[_nibbles(b[..., 1:17])] * 2.0 ** (b[..., :1].astype(np.float64) - 127), np.zeros(1)


def _nvfp4(b: Bytes) -> Parts:
    exponent, fraction = (b[..., :4] >> 3 & 15).astype(np.float64), (b[..., :4] & 7) / 8.0
    scales = np.where(exponent, (1 + fraction) * 2 ** (exponent - 7), fraction * 2.0**-6)
    scales[b[..., :4] == 127] = 0
    by_sixteen = b[..., 4:].reshape(*b.shape[:-1], 4, 8)
    return (_FP4[_nibbles(by_sixteen)] * scales[..., None]).reshape(*b.shape[:-1], 64), np.zeros(1)


def _q1_0(b: Bytes) -> Parts:
    return (2.0 * _bits(b[..., 2:]) - 1) * _half(b[..., :2]), np.zeros(1)


def _q2_0(b: Bytes) -> Parts:
    codes = b[..., 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    return (codes.reshape(*b.shape[:-1], 64) - 1.0) * _half(b[..., :2]), np.zeros(1)


def _float16(b: Bytes) -> Parts:
    return _half(b), np.zeros(1)


def _bfloat16(b: Bytes) -> Parts:
    bits = np.ascontiguousarray(b).view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64), np.zeros(1)


def _float32(b: Bytes) -> Parts:
    return np.ascontiguousarray(b).view(np.float32).astype(np.float64), np.zeros(1)


@dataclass(frozen=True)
class Format:
    """A type of GGUF's tensors: ``block_bytes`` bytes stand for ``block_columns`` weights."""

    name: str
    type: int  # ggml's number
    block_columns: int
    block_bytes: int
    read: Callable[[Bytes], Parts]
    halves: tuple[int, ...] = (0,)  # where a block has numbers of 16 bits: scales

    @property
    def is_float(self) -> bool:
        return self.block_columns == 1

    def parts(self, raw: Bytes) -> Parts:
        """Codes times scales and minima of ``raw``, (rows, bytes), as (rows, columns) float64."""
        num_blocks = raw.shape[1] // self.block_bytes
        scaled, minima = self.read(raw.reshape(len(raw), num_blocks, self.block_bytes))
        shape = (len(raw), num_blocks * self.block_columns)
        return scaled.reshape(shape), np.broadcast_to(minima, scaled.shape).reshape(shape)

    def weights(self, raw: Bytes) -> Floats:
        """What ``raw`` stands for, exactly."""
        scaled, minima = self.parts(raw)
        return scaled + minima

    def draw(self, rng: np.random.Generator, num_rows: int, num_columns: int) -> Bytes:
        """Any codes; scales of either sign, of ordinary size, some zero and some subnormal."""
        num_blocks = num_columns // self.block_columns
        shape = (num_rows, num_blocks)
        raw = rng.integers(0, 256, (*shape, self.block_bytes), dtype=np.uint8)
        if self.name == "MXFP4":
            raw[..., 0] = rng.integers(117, 137, shape)
        elif self.name == "F32":
            raw[:] = rng.standard_normal(shape).astype(np.float32)[..., None].view(np.uint8)
        elif self.name == "BF16":
            numbers = rng.standard_normal(shape).astype(np.float32)[..., None]
            raw[:] = numbers.view(np.uint8)[..., 2:]
        else:
            for at in self.halves:
                numbers = rng.standard_normal(shape) * 0.02
                kind = rng.integers(0, 16, shape)
                numbers[kind == 0] = 0.0
                numbers[kind == 1] *= 1e-4  # subnormal as a half
                self._put_half(raw, at, numbers)
        return raw.reshape(num_rows, num_blocks * self.block_bytes)

    def every_byte(self, num_columns: int) -> Bytes:
        """256 rows: row b has the byte b everywhere but in its scales of 16 bits."""
        raw = np.empty((256, num_columns // self.block_columns, self.block_bytes), np.uint8)
        raw[:] = np.arange(256, dtype=np.uint8)[:, None, None]
        for at in self.halves:
            self._put_half(raw, at, np.array([-0.02]))
        return raw.reshape(256, -1)

    def _put_half(self, raw: Bytes, at: int, numbers: Floats) -> None:
        halves = numbers.astype(np.float16)[..., None]
        if self.name != "IQ1_M":
            raw[..., at : at + 2] = halves.view(np.uint8)
            return
        for i in range(4):  # four bits of it are above scales
            high = (halves.view(np.uint16)[..., 0] >> 4 * i & 15) << 4
            raw[..., at + 2 * i + 1] = (raw[..., at + 2 * i + 1] & 15) | high


FORMATS = (
    Format("Q4_0", 2, 32, 18, _q4_0),
    Format("Q4_1", 3, 32, 20, _q4_1, (0, 2)),
    Format("Q5_0", 6, 32, 22, _q5_0),
    Format("Q5_1", 7, 32, 24, _q5_1, (0, 2)),
    Format("Q8_0", 8, 32, 34, _q8_0),
    Format("Q2_K", 10, 256, 84, _q2_k, (80, 82)),
    Format("Q3_K", 11, 256, 110, _q3_k, (108,)),
    Format("Q4_K", 12, 256, 144, _q4_k, (0, 2)),
    Format("Q5_K", 13, 256, 176, _q5_k, (0, 2)),
    Format("Q6_K", 14, 256, 210, _q6_k, (208,)),
    Format("IQ1_S", 19, 256, 50, grids.iq1_s),
    Format("IQ1_M", 29, 256, 56, grids.iq1_m, (48,)),
    Format("IQ2_XXS", 16, 256, 66, grids.iq2_xxs),
    Format("IQ2_XS", 17, 256, 74, grids.iq2_xs),
    Format("IQ2_S", 22, 256, 82, grids.iq2_s),
    Format("IQ3_XXS", 18, 256, 98, grids.iq3_xxs),
    Format("IQ3_S", 21, 256, 110, grids.iq3_s),
    Format("IQ4_NL", 20, 32, 18, _iq4_nl),
    Format("IQ4_XS", 23, 256, 136, _iq4_xs),
    Format("TQ1_0", 34, 256, 54, _tq1_0, (52,)),
    Format("TQ2_0", 35, 256, 66, _tq2_0, (64,)),
    Format("MXFP4", 39, 32, 17, _mxfp4, ()),
    Format("NVFP4", 40, 64, 36, _nvfp4, ()),
    Format("Q1_0", 41, 128, 18, _q1_0),
    Format("Q2_0", 42, 64, 18, _q2_0),
    Format("F16", 1, 1, 2, _float16),
    Format("BF16", 30, 1, 2, _bfloat16),
    Format("F32", 0, 1, 4, _float32),
)
