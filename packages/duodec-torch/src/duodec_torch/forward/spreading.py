"""Spread a model over several devices: place its layers, and move tensors between them.

Layers follow one another from device to device, so a token passes all of them in turn: more devices
hold a larger model but do not make it faster. Layers are the modules that transformers does not
split, as in `device_map`; the arguments of a module are moved, as in accelerate, but each tensor
once a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duodec.errors import ModelUnreadable
from duodec_torch.library import torch


@dataclass(frozen=True)
class Block:
    """Modules that stay together."""

    names: tuple[str, ...]
    num_params: int
    num_layers: int  # that keep keys and values


def blocks(model: Any) -> tuple[Block, ...]:
    """A model's modules in the order of computation: those before the layers, each layer, and those
    after them. Weights that both ends share are placed with the last."""
    before, layers, after = _parts(model)
    shared = {id(p) for name in before for p in model.get_submodule(name).parameters()}
    if any(id(p) in shared for name in after for p in model.get_submodule(name).parameters()):
        weighed = [n for n in before if any(True for _ in model.get_submodule(n).parameters())]
        before, after = [n for n in before if n not in weighed], [*after, *weighed]
    groups = [(before, 0), *(([name], 1) for name in layers), (after, 0)]
    return tuple(
        Block(tuple(names), _num_params(model, names), num_layers)
        for names, num_layers in groups
        if names
    )


def _parts(model: Any) -> tuple[list[str], list[str], list[str]]:
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    before: list[str] = []
    layers: list[str] = []
    after: list[str] = []

    def walk(module: Any, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if type(child).__name__ in kinds:
                layers.append(path)
            elif any(type(inner).__name__ in kinds for inner in child.modules()):
                walk(child, f"{path}.")
            elif layers and any(True for _ in child.parameters()):
                after.append(path)
            else:  # a rotary embedding has no weights, and is used first wherever it is listed
                before.append(path)

    walk(model, "")
    return before, layers, after


def _num_params(model: Any, names: Sequence[str]) -> int:
    found = {id(p): p.numel() for name in names for p in model.get_submodule(name).parameters()}
    return sum(found.values())


def spread(sizes: Sequence[int], free: Sequence[int]) -> tuple[int, ...] | None:
    """The device of each block, in order, so that the fullest device keeps the most free memory;
    None if they do not fit. ``sizes`` and ``free`` are bytes."""
    for percent in range(1, 101):
        found = _filled(sizes, [room * percent // 100 for room in free])
        if found is not None:
            return found
    return None


def _filled(sizes: Sequence[int], room: Sequence[int]) -> tuple[int, ...] | None:
    """Each device filled up before the next."""
    found: list[int] = []
    number, used = 0, 0
    for size in sizes:
        while number < len(room) and used + size > room[number]:
            number, used = number + 1, 0
        if number == len(room):
            return None
        found.append(number)
        used += size
    return tuple(found)


def join(model: Any) -> Callable[[], None]:
    """Move tensors between devices in every forward pass of a model whose blocks are on several;
    returns a function that undoes this. Raises ModelUnreadable if a layer itself is split."""
    if len({parameter.device for parameter in model.parameters()}) < 2:
        return lambda: None
    _unhook(model)
    passage = _Passage({})
    handles = [model.register_forward_pre_hook(lambda *_: passage.moved.clear())]
    handles += [model.register_forward_hook(lambda *_: passage.moved.clear())]
    devices = dict(_devices(model))
    for name, device in devices.items():
        handles.append(
            model.get_submodule(name).register_forward_pre_hook(
                passage.to(device), with_kwargs=True
            )
        )

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def _devices(model: Any) -> Iterator[tuple[str, torch.device]]:
    """The device of each module of a block; the first layer's for one without weights."""
    before, layers, after = _parts(model)
    first = next(model.get_submodule(layers[0]).parameters()).device
    for name in (*before, *layers, *after):
        found = {parameter.device for parameter in model.get_submodule(name).parameters()}
        if len(found) > 1:
            raise ModelUnreadable(
                f"{model.config.model_type} has its {name} on {len(found)} devices; spread whole "
                "layers"
            )
        yield name, found.pop() if found else first


def _unhook(model: Any) -> None:
    """Remove accelerate's hooks, which would move every result back to its arguments' device."""
    if getattr(model, "hf_device_map", None):
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(model, recurse=True)


@dataclass(frozen=True)
class _Passage:
    """Tensors moved in this forward pass, by device and source; the source is kept, so that no
    other gets its address."""

    moved: dict[tuple[torch.device, int], tuple[torch.Tensor, torch.Tensor]]

    def to(self, device: torch.device) -> Callable[..., Any]:
        def before(module: Any, args: Any, kwargs: Any) -> Any:
            return self._there(args, device), self._there(kwargs, device)

        return before

    def _there(self, found: Any, device: torch.device) -> Any:
        if isinstance(found, torch.Tensor):
            if found.device == device:
                return found
            key = (device, id(found))
            if key not in self.moved:
                self.moved[key] = (found, found.to(device))
            return self.moved[key][1]
        if type(found) in (tuple, list):
            return type(found)(self._there(item, device) for item in found)
        if isinstance(found, Mapping) and type(found) is dict:
            return {name: self._there(item, device) for name, item in found.items()}
        return found
