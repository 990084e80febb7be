"""Forwards of models over two GPUs that do not exist: torch's fake tensors have shapes and devices
and no numbers, and refuse to be mixed as real ones would.

Run as a program, since torch keeps what is registered here; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from test_torch_models import build
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from duodec.backends.torch import network as networks
from duodec.backends.torch import spreading
from duodec.backends.torch.attention import PerDevice, Rows, TreeWindow
from duodec.backends.torch.network import Network
from duodec.errors import ModelUnreadable

torch.utils.rename_privateuse1_backend("toy")
FIRST, LAST = torch.device("toy:0"), torch.device("toy:1")


def tensor(data: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """As `torch.tensor`, which cannot make fake ones."""
    return torch.zeros(np.shape(data), dtype=dtype or torch.int64, device=device)


def put(module: Any, device: torch.device) -> None:
    """As `to`, which cannot move fake weights."""
    for inner in module.modules():
        for name, weight in inner._parameters.items():
            if weight is None:
                continue
            there = torch.empty(weight.shape, dtype=weight.dtype, device=device)
            inner._parameters[name] = torch.nn.Parameter(there, requires_grad=False)
        for name, buffer in inner._buffers.items():
            inner._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)


def spread(kind: str, **changes: Any) -> Any:
    """A model whose second layer and end lie on the second device."""
    model = build(kind, num_hidden_layers=3, **changes)
    for block, device in zip(
        spreading.blocks(model), (FIRST, FIRST, LAST, LAST, LAST), strict=True
    ):
        for name in block.names:
            put(model.get_submodule(name), device)
    return model


def forward(network: Network) -> dict[str, object]:
    cache = network.cache(256)
    places = torch.arange(5, device=network.device)
    cache.write_to(places)
    rows = Rows(places, torch.zeros_like(places), places[:, None].expand(5, 80))
    plan = PerDevice.of(TreeWindow(0, 256), rows, network.devices)
    logits = network.forward(places, places, cache, plan, places[:2])
    cache.move(places[3:4], places[2:3])
    return {
        "devices": list(map(str, network.devices)),
        "layers": [str(layer.keys.device) for layer in cache.layers],
        "logits": [str(logits.device), *logits.shape],
    }


class Counting(dict[Any, Any]):
    """Counts what is moved."""

    num_set = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.num_set += 1
        super().__setitem__(key, value)


def crossings(kind: str) -> int:
    """How many tensors were moved in a forward."""
    moved, passage = Counting(), spreading._Passage
    spreading._Passage = lambda _: passage(moved)  # type: ignore[assignment, misc]
    network = Network(spread(kind))
    spreading._Passage = passage  # type: ignore[misc]
    moved.num_set = 0
    forward(network)
    return moved.num_set


def hooks_left(model: Any) -> int:
    Network(model).close()
    return sum(
        len(inner._forward_pre_hooks) + len(inner._forward_hooks) for inner in model.modules()
    )


def refusal(model: Any) -> str:
    try:
        Network(model)
    except (ModelUnreadable, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    _setup_privateuseone_for_python_backend("toy")
    Network._check_logits = lambda self, expected: None  # type: ignore[method-assign]  # no numbers
    torch.tensor = tensor  # type: ignore[assignment]
    with FakeTensorMode():
        found = {
            "forward": {
                kind: forward(Network(spread(kind))) for kind in ("llama", "qwen2", "gpt2", "phi")
            },
            "crossings": crossings("llama"),
            "hooks left": hooks_left(spread("llama")),
        }
        split = spread("llama")
        put(split.model.layers[0].mlp, LAST)
        found["split layer"] = refusal(split)
        networks.join = lambda model: lambda: None  # type: ignore[attr-defined]
        found["without movers"] = refusal(spread("llama"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
