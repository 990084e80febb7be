"""Draw from rows that no sampler cuts: temperature, noise and the best token.

`pick` is the readable version, some sixty passes over the rows; `picker` returns one Triton kernel
if the device has one that gives the same bits. It was not run on a GPU where it was written, so it
is compared with `pick` before a target uses it.
"""

from __future__ import annotations

from collections.abc import Callable

from duodec.backends.torch.library import first_line, torch
from duodec.backends.torch.noise import gumbel
from duodec.backends.torch.rows import best

Two = tuple[torch.Tensor, torch.Tensor]  # tokens, margins
Pick = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Two]
"""Logits (rows, vocab) fp32, the inverse temperature (rows, 1) fp32 and the low and high half of
the key (rows, 1) int64 of each row."""

_CHECKED = 70_001  # tokens of the rows that a kernel is checked with


def pick(logits: torch.Tensor, inverse: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Two:
    """The token of each row's largest perturbed score, and its margin."""
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    return best(logits * inverse + gumbel(low, high, tokens))


def picker(device: torch.device, on_warning: Callable[[str], None]) -> Pick:
    """The kernel if it compiles on this GPU and agrees with `pick` to the last bit, otherwise
    `pick`."""
    if device.type != "cuda":
        return pick
    try:
        from duodec.backends.torch.pick_kernel import fused_pick

        if _agree(fused_pick, device):
            return fused_pick
        reason = "its bits differ"
    except Exception as error:  # noqa: BLE001  # a compiler may raise anything
        reason = first_line(error)
    on_warning(f"Triton's draw is off, sampling will be slower: {reason}")
    return pick


def _agree(fused: Pick, device: torch.device) -> bool:
    maker = torch.Generator(device).manual_seed(0)
    logits = 4 * torch.randn((4, _CHECKED), generator=maker, device=device)
    logits[1] = logits[1].half().float()  # with many equal values
    logits[2, :-3] = -torch.inf
    logits[3] = 0
    inverse = torch.tensor([[1.0], [1.25], [0.5], [3.0]], device=device)
    low, high = (torch.randint(1 << 32, (4, 1), generator=maker, device=device) for _ in range(2))
    expected, found = (way(logits, inverse, low, high) for way in (pick, fused))
    return all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
