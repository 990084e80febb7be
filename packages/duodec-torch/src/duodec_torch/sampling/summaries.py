"""Say what the host needs of each row: its draw, and its likeliest tokens.

`pick` and `summarise` are the readable versions, some sixty passes over the rows and a sort of
them; `drawers` finds the Triton kernels that do all of it in one pass, if they give the same bits
on this GPU. They were not run on one where they were written, so they are compared with the
readable versions before a target uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from duodec_torch.library import first_line, torch
from duodec_torch.sampling.noise import gumbel
from duodec_torch.sampling.rows import IS_SETTLED as IS_SETTLED
from duodec_torch.sampling.rows import LARGEST as LARGEST
from duodec_torch.sampling.rows import MARGIN as MARGIN
from duodec_torch.sampling.rows import NUM_COLUMNS as NUM_COLUMNS
from duodec_torch.sampling.rows import NUM_TOP as NUM_TOP
from duodec_torch.sampling.rows import TOKEN as TOKEN
from duodec_torch.sampling.rows import TOP as TOP
from duodec_torch.sampling.rows import best, top

GREEDY = -1.0  # in place of an inverse temperature

Two = tuple[torch.Tensor, torch.Tensor]  # tokens, margins
Pick = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Two]
"""Logits (rows, vocab) fp32, the inverse temperature (rows, 1) fp32 and the low and high half of
the key (rows, 1) int64 of each row."""

Summarise = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Logits (rows, vocab) fp32; how each row is drawn (rows, 3) int64: the pattern of its inverse
temperature, or of `GREEDY`, and both halves of its key; and the summaries that are written,
(rows, NUM_COLUMNS) float64."""


def pick(logits: torch.Tensor, inverse: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> Two:
    """The token of each row's largest perturbed score, and its margin."""
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    return best(logits * inverse + gumbel(low, high, tokens))


def summarise(logits: torch.Tensor, ways: torch.Tensor, summaries: torch.Tensor) -> None:
    """Draw each row and list its best tokens. Of a vocabulary of fewer than `NUM_TOP` tokens, the
    last places are left as they are."""
    inverse = ways[:, :1].int().view(torch.float32)
    drawn, greedy = pick(logits, inverse, ways[:, 1:2], ways[:, 2:3]), best(logits)
    is_greedy = inverse[:, 0] == GREEDY
    for column, (sampled, likeliest) in enumerate(zip(drawn, greedy, strict=True)):
        summaries[:, column] = torch.where(is_greedy, likeliest, sampled).double()
    summaries[:, IS_SETTLED] = 1
    summaries[:, LARGEST] = logits.amax(-1)
    num_top = min(NUM_TOP, logits.shape[-1])
    values, tokens = top(logits, num_top)
    summaries[:, TOP : TOP + num_top] = tokens.double()
    summaries[:, TOP + NUM_TOP : TOP + NUM_TOP + num_top] = values.double()


class Drawers(NamedTuple):
    """How a device draws rows that no sampler cuts, and whether it does so in the forward pass."""

    pick: Pick = pick
    summarise: Summarise | None = None


def drawers(device: torch.device, num_vocab: int, on_warning: Callable[[str], None]) -> Drawers:
    """The kernels if they compile on this GPU and agree with the readable versions to the last
    bit, otherwise `pick` alone."""
    if device.type != "cuda":
        return Drawers()
    try:
        from duodec_torch.sampling.summary_kernel import fused_pick, fused_summarise

        if agree(fused_summarise, device, num_vocab):
            return Drawers(fused_pick, fused_summarise)
        reason = "its bits differ"
    except Exception as error:  # noqa: BLE001  # a compiler may raise anything
        reason = first_line(error)
    on_warning(f"Triton's draw is off, sampling will be slower: {reason}")
    return Drawers()


def agree(fused: Summarise, device: torch.device, num_vocab: int) -> bool:
    maker = torch.Generator(device).manual_seed(0)
    logits = 4 * torch.randn((6, num_vocab), generator=maker, device=device)
    logits[1] = logits[1].half().float()  # with many equal values
    logits[2, : -(num_vocab // 2)] = -torch.inf
    logits[3] = 0
    logits[5, num_vocab // 3] = torch.nan
    inverse = torch.tensor([1.0, 1.25, 0.5, 3.0, GREEDY, GREEDY], device=device)
    halves = torch.randint(1 << 32, (6, 2), generator=maker, device=device)
    ways = torch.cat([inverse.view(torch.int32).long()[:, None], halves], -1)
    expected, found = (
        torch.zeros((6, NUM_COLUMNS), dtype=torch.float64, device=device) for _ in range(2)
    )
    summarise(logits, ways, expected)
    fused(logits, ways, found)
    num_top = min(NUM_TOP, num_vocab)
    columns = [*range(TOP + num_top), *range(TOP + NUM_TOP, TOP + NUM_TOP + num_top)]
    is_same = torch.equal(expected[:-1, columns], found[:-1, columns])
    return is_same and bool(found[-1, LARGEST].isnan())
