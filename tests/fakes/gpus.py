"""Forward passes and rounds of models on GPUs that do not exist: torch's fake tensors have shapes
and devices and no numbers, and refuse to be mixed as real ones would, or to be looked at.

Run as a program, since torch keeps what is registered here; it prints what it saw as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from fakes.torch_models import build
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import duodec_torch
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.errors import ModelUnreadable
from duodec_torch import target
from duodec_torch.forward import forwards, spreading
from duodec_torch.forward import network as networks
from duodec_torch.forward.attention import PerDevice, Rows, TreeWindow
from duodec_torch.forward.forwards import Forwards
from duodec_torch.forward.graphs import Queue
from duodec_torch.forward.network import Network
from duodec_torch.sampling import draws, penalties

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
        "layers in few launches": sum("forward" in vars(m) for m in network._model.modules()),
    }


class Counting(dict[Any, Any]):
    """Counts what is moved."""

    num_set = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.num_set += 1
        super().__setitem__(key, value)


def crossings(kind: str) -> int:
    """How many tensors were moved in a forward pass."""
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


class Crossings(TorchDispatchMode):
    """Operations between devices: each of them would make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values(), found]
        if len({part.device for part in given if isinstance(part, torch.Tensor)}) > 1:
            self.names.append(func.overloadpacket.__name__)
        return found


SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.7, seed=1),
    "cut": SamplingParams(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1),
    "penalised": SamplingParams(presence_penalty=0.5, repetition_penalty=1.2, logit_bias={3: 1.0}),
}


def waits() -> dict[str, list[str]]:
    """Where the host waits for the device in a round that goes on after an accepted draft."""
    model = build("llama")
    put(model, FIRST)
    network, found = Network(model), {}
    crossings = Crossings()

    def copied(self: Queue, tensor: torch.Tensor) -> Any:
        def arrived() -> Any:
            crossings.names.append("to_host")
            return np.ones(tensor.shape)

        crossings.names.append("copy")
        return arrived

    def sent(values: Any, device: torch.device, dtype: Any = None) -> torch.Tensor:
        known = torch.from_numpy(np.zeros(1, np.asarray(values).dtype)).dtype
        return torch.zeros(np.shape(values), dtype=dtype or known, device=device)

    Queue.copied = copied  # type: ignore[method-assign]
    Forwards._send = lambda *_: None  # type: ignore[method-assign]
    for module in (draws, penalties, forwards, target):
        module.upload = sent  # type: ignore[attr-defined]
    for is_exact in (True, False):
        options: Any = {"widths": Widths.only(8), "num_chunk": 32, "is_width_exact": is_exact}
        on_fake = target.TorchTarget(network, num_context=200, **options)
        for name, params in SAMPLINGS.items():
            sampler, draft = Sampler(params, num_prompt_tokens=40), Draft.sequences([[1, 2], [4]])
            for text in ([7] * 50, [7] * 50 + [4]):
                crossings.names.clear()
                with crossings:
                    query = Query(0, np.array(text, np.int32), draft, sampler, 3)
                    launched = on_fake.queued([query])
                    crossings.names.append("launched")
                    launched.result()
            found[f"{name}, {'exact' if is_exact else 'fast'}"] = list(crossings.names)
    return found


class Kernels:
    """What Triton's kernels take and return: nothing can be launched on fake tensors."""

    @staticmethod
    def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return x * weight

    @staticmethod
    def gated(x: torch.Tensor) -> torch.Tensor:
        return x[:, : x.shape[1] // 2]

    @staticmethod
    def placed(x: Any, cos: Any, sin: Any, cells: Any, keys: Any, values: Any, norms: Any) -> Any:
        num_kv_heads, _, size = keys.shape
        heads = x.unflatten(1, (-1, size)) * (cos * sin)[:, None]
        for buffer in (keys, values):
            buffer.index_copy_(1, cells, heads[:, :num_kv_heads].transpose(0, 1))
        return heads[:, : -2 * num_kv_heads]


def main() -> None:
    _setup_privateuseone_for_python_backend("toy")
    Network.check_logits = lambda self, expected: None  # type: ignore[method-assign]  # no numbers
    torch.tensor = tensor  # type: ignore[assignment]
    sys.modules["duodec_torch.forward.layer_kernels"] = Kernels  # type: ignore[assignment]
    duodec_torch.forward.layer_kernels = Kernels
    with FakeTensorMode():
        found = {
            "forward": {
                kind: forward(Network(spread(kind))) for kind in ("llama", "qwen2", "gpt2", "phi")
            },
            "crossings": crossings("llama"),
            "hooks left": hooks_left(spread("llama")),
            "waits": waits(),
        }
        split = spread("llama")
        put(split.model.layers[0].mlp, LAST)
        found["split layer"] = refusal(split)
        networks.join = lambda model: lambda: None  # type: ignore[attr-defined]
        found["without movers"] = refusal(spread("llama"))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
