"""Sort rows of logits on the device: largest first, lowest index first among equals."""

from __future__ import annotations

from duodec.core.targets import NUM_CANDIDATES
from duodec_torch.library import torch

TOKEN, MARGIN, IS_SETTLED, LARGEST, TOP = range(5)  # columns of a row's summary
NUM_TOP = NUM_CANDIDATES  # tokens from `TOP` on, their logits after them
NUM_COLUMNS = TOP + 2 * NUM_TOP
_LOW = 0xFFFFFFFF


def top(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row, (rows, k) fp32, and their indices, as `duodec.core.rows.top`.

    Value and index are packed in one integer, because `torch.topk` breaks ties arbitrarily.
    """
    num_values = values.shape[-1]
    pattern = (values + 0.0).view(torch.int32).long()  # + 0: no negative zero
    ascending = torch.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern)
    indices = torch.arange(num_values, device=values.device)
    packed = (ascending << 32) | (_LOW - indices)
    if k < num_values:
        packed = torch.topk(packed, k, dim=-1).values
    else:
        packed = torch.sort(packed, dim=-1, descending=True).values
    found = _LOW - (packed & _LOW)
    return values.gather(-1, found), found


def best(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of each row's largest value, and its margin over the next: few kernels, for the
    greedy case."""
    winner = values.argmax(-1, keepdim=True)  # the first among equals
    second = values.scatter(-1, winner, -torch.inf).amax(-1, keepdim=True)
    margin = values.gather(-1, winner) - second
    margin = torch.where(second == -torch.inf, torch.inf, margin)
    return winner[:, 0], margin[:, 0]
