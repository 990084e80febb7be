"""Round weights as the file will hold them, while they are trained.

A forward pass computes with the rounded weights, and its gradients move the exact ones (the
straight-through estimator, arXiv 1308.3432). Without it, training moves most weights by less than
the width of a step of a coarse format, and writing takes back what was learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duodec_lab.distill.library import torch

BLOCK = 32  # weights that share a scale
_BLOCKS_AT_ONCE = 4096  # so that what is computed stays in a core's cache: 4 times as fast


@contextmanager
def rounded(student: Any, kind: str) -> Iterator[None]:
    """Within, the matrices of ``student`` that are trained have the values of a file in the format
    ``kind``."""
    matrices = [weight for weight in student.parameters() if weight.ndim > 1]
    exact = {weight: weight.data for weight in matrices if weight.requires_grad}
    try:
        for weight, data in exact.items():
            weight.data = as_stored(data, kind)
        yield
    finally:
        for weight, data in exact.items():
            weight.data = data


def as_stored(data: Any, kind: str) -> Any:
    """A matrix as it is read again from a file in the format ``kind``, in float32; one whose rows
    are not whole blocks is stored in float16. As gguf's reference quantises, but for ties; what is
    rounded so is written as it is."""
    if kind == "f16" or data.shape[-1] % BLOCK:
        return data.half().float()
    blocks = data.reshape(-1, BLOCK).split(_BLOCKS_AT_ONCE)
    return torch.cat([_of_blocks(part, kind) for part in blocks]).reshape(data.shape)


def _of_blocks(blocks: Any, kind: str) -> Any:
    """Blocks of weights, a row each."""
    least, most = blocks.aminmax(dim=1, keepdim=True)
    furthest = torch.where(most >= -least, most, least)
    scale = furthest / -8 if kind == "q4_0" else furthest.abs() / 127
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    steps = blocks * inverse
    if kind == "q4_0":
        steps.add_(8.5).trunc_().clamp_(0, 15).sub_(8)
    else:
        steps = torch.trunc(steps.abs() + 0.5).copysign(steps)  # half away from zero
    return steps.mul_(scale.half().float())
