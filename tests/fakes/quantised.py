"""Draw blocks of quantised weights as GGUF files have them, and say what they stand for.

Read off the specification of the format, byte by byte; shares nothing with the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
                raw[..., at : at + 2] = numbers.astype(np.float16)[..., None].view(np.uint8)
        return raw.reshape(num_rows, num_blocks * self.block_bytes)

    def every_byte(self, num_columns: int) -> Bytes:
        """256 rows: row b has the byte b everywhere but in its scales of 16 bits."""
        raw = np.empty((256, num_columns // self.block_columns, self.block_bytes), np.uint8)
        raw[:] = np.arange(256, dtype=np.uint8)[:, None, None]
        for at in self.halves:
            raw[..., at : at + 2] = np.array([-0.02], np.float16).view(np.uint8)
        return raw.reshape(256, -1)


FORMATS = (
    Format("Q4_0", 2, 32, 18, _q4_0),
    Format("Q4_1", 3, 32, 20, _q4_1, (0, 2)),
    Format("Q5_0", 6, 32, 22, _q5_0),
    Format("Q5_1", 7, 32, 24, _q5_1, (0, 2)),
    Format("Q8_0", 8, 32, 34, _q8_0),
    Format("Q4_K", 12, 256, 144, _q4_k, (0, 2)),
    Format("Q5_K", 13, 256, 176, _q5_k, (0, 2)),
    Format("Q6_K", 14, 256, 210, _q6_k, (208,)),
    Format("IQ4_NL", 20, 32, 18, _iq4_nl),
    Format("IQ4_XS", 23, 256, 136, _iq4_xs),
    Format("MXFP4", 39, 32, 17, _mxfp4, ()),
    Format("F16", 1, 1, 2, _float16),
    Format("BF16", 30, 1, 2, _bfloat16),
    Format("F32", 0, 1, 4, _float32),
)
