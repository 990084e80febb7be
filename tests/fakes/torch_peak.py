"""How much memory a piece of work on torch's CPU takes at most."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Peak(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._live: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _is(t)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if _is(tensor) and tensor.untyped_storage().data_ptr() not in known:
                self._add(tensor.untyped_storage())
        return found

    def _add(self, storage: Any) -> None:
        place = storage.data_ptr()
        if place and place not in self._live:
            self._live[place] = storage.nbytes()
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self._now -= self._live.pop(place, 0)


def _is(found: object) -> bool:
    return isinstance(found, torch.Tensor)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that tensors made by ``work`` take at one time."""
    with _Peak() as mode, torch.inference_mode():
        work()
    return mode.peak
