"""Projections of the same input computed as one: fewer, larger products of matrices.

A forward of few rows takes as long as its weights take to be read, and small matrices are read
below the speed of memory. The weights of a layer's query, key and value are laid end to end, those
of gate and up too, where modules have the names that most models give them; each keeps its own as
a view. One layer at a time is copied, so memory holds a model and one of its layers at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duodec.backends.torch.library import torch

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def gains_by_fusing(device: torch.device) -> bool:
    """A CPU does not: a forward of SmolLM2 took 2% longer there. Nor does an outline, whose
    weights have no memory that a kernel could read."""
    return device.type not in ("cpu", "meta")


def fuse(model: Any) -> None:
    """Fuse what can be, in place, for good; a model that is fused is left alone."""
    # by name: a list of modules would keep those that are replaced, and their weights
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
        torch.cuda.empty_cache()  # what was freed is in pieces too small for the next layer's


def shared_by(*parts: Any) -> _Shared | None:
    """What holds the weights of just these projections, in this order; None where nothing does."""
    found = {part._shared if type(part) is _Slice else None for part in parts}
    shared = found.pop()
    begins = [part._rows.start for part in parts] if shared else []
    if found or shared is None or begins != sorted(begins) or shared.num_slices != len(parts):
        return None
    return shared


def _are_alike(parts: Sequence[Any]) -> bool:
    # a subclass may compute something else, and so may one whose forward somebody has replaced
    if not all(type(part) is torch.nn.Linear and "forward" not in vars(part) for part in parts):
        return False
    kinds = {(p.in_features, p.bias is None, p.weight.dtype, p.weight.device) for p in parts}
    return len(kinds) == 1


class _Shared:
    """The weights of several projections end to end, and the last product by them."""

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
        """`of`, computed when the first projection asks, and forgotten when the last one has."""
        if self._input is not x or self._product is None:
            self._input, self._left = x, self.num_slices
            self._product = self.of(x)
        found = self._product
        self._left -= 1
        if not self._left:
            self._input = self._product = None
        return found


class _Slice(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """One of several projections."""

    def __init__(self, shared: _Shared, out_features: int) -> None:
        super().__init__()
        self._shared, self._rows = shared, shared.next_rows(out_features)
        self.out_features, self.in_features = out_features, shared.weight.shape[1]
        self.weight = torch.nn.Parameter(shared.weight[self._rows], requires_grad=False)
        bias = None if shared.bias is None else shared.bias[self._rows]
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.product(x)[..., self._rows]
