"""Fuse projections of the same input: fewer, larger matrix products.

A forward pass of few rows takes as long as reading its weights, and small matrices are read below
the memory's speed. The weights of a layer's query, key and value are concatenated, and those of
gate and up, if modules have the names that most models use; each module keeps its own as a view.
One layer at a time is copied, so memory holds a model and one of its layers at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duodec_torch.library import torch

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def gains_by_fusing(device: torch.device) -> bool:
    """False on a CPU: a forward pass of SmolLM2 took 2% longer. False for an outline, whose weights
    have no memory that a kernel could read."""
    return device.type not in ("cpu", "meta")


def fuse(model: Any) -> None:
    """Fuse all projections that can be, permanently and in place; leaves a fused model
    unchanged."""
    # by name: a list of modules would keep the replaced ones alive, with their weights
    for path in [path for path, _ in model.named_modules()]:
        for names in _TOGETHER:
            _fuse_parts(model.get_submodule(path), names)


def _fuse_parts(module: Any, names: Sequence[str]) -> None:
    parts: list[Any] = [getattr(module, name, None) for name in names]
    if not _are_alike(parts):
        return
    shared = _Shared(parts)
    for name, part in zip(names, parts, strict=True):
        setattr(module, name, _Slice(shared, part.out_features))
    if shared.weight.is_cuda:
        del part, parts
        torch.cuda.empty_cache()  # freed memory is in pieces too small for the next layer's


def shared_by(*parts: Any) -> _Shared | None:
    """The fused weights of exactly these projections, in this order; None if there are none."""
    found = {part._shared if type(part) is _Slice else None for part in parts}
    shared = found.pop()
    begins = [part._rows.start for part in parts] if shared else []
    if found or shared is None or begins != sorted(begins) or shared.num_slices != len(parts):
        return None
    return shared


def _are_alike(parts: Sequence[Any]) -> bool:
    # a subclass may compute something else, and so may a module whose forward was replaced
    if not all(type(part) is torch.nn.Linear and "forward" not in vars(part) for part in parts):
        return False
    kinds = {(p.in_features, p.bias is None, p.weight.dtype, p.weight.device) for p in parts}
    return len(kinds) == 1


class _Shared:
    """The concatenated weights of several projections, and their last product."""

    def __init__(self, parts: Sequence[Any]) -> None:
        with torch.no_grad():
            self.weight = torch.cat([part.weight for part in parts])
            has_bias = parts[0].bias is not None
            self.bias = torch.cat([part.bias for part in parts]) if has_bias else None
        self.num_rows = 0
        self._left = self.num_slices = len(parts)
        self._input: torch.Tensor | None = None
        self._product: torch.Tensor | None = None

    def next_rows(self, count: int) -> slice:
        """The place of the next projection's rows."""
        begin, self.num_rows = self.num_rows, self.num_rows + count
        return slice(begin, self.num_rows)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` by all the weights."""
        return torch.nn.functional.linear(x, self.weight, self.bias)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """`of`, computed for the first projection, and forgotten after the last one."""
        if self._input is not x or self._product is None:
            self._input, self._left = x, self.num_slices
            self._product = self.of(x)
        found = self._product
        self._left -= 1
        if not self._left:
            self._input = self._product = None
        return found


class _Slice(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """One of several fused projections."""

    def __init__(self, shared: _Shared, out_features: int) -> None:
        super().__init__()
        self._shared, self._rows = shared, shared.next_rows(out_features)
        self.out_features, self.in_features = out_features, shared.weight.shape[1]
        self.weight = torch.nn.Parameter(shared.weight[self._rows], requires_grad=False)
        bias = None if shared.bias is None else shared.bias[self._rows]
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.product(x)[..., self._rows]
