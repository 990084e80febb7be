"""Fused projections: the model's numbers, without a second copy of its weights."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from fakes.torch_models import build, random_text

from duodec_torch.forward import fusing
from duodec_torch.forward.fusing import fuse
from duodec_torch.forward.network import Network


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([random_text(40)])).logits[0]
    return found


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "phi", "gpt2"])
def test_a_fused_model_is_the_model(kind: str) -> None:
    model = build(kind, **({"sliding_window": None} if kind == "mistral" else {}))
    expected, names = logits(model), [name for name, _ in model.named_parameters()]
    fuse(model)
    assert (logits(model) - expected).abs().max() < 1e-5 * expected.std()
    assert [name for name, _ in model.named_parameters()] == names
    num_fused = sum(type(module) is fusing._Slice for module in model.modules())
    assert num_fused == {"gpt2": 0, "phi": 2 * 3}.get(kind, 2 * 5)


def test_weights_are_not_kept_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("qwen2", num_hidden_layers=8)
    parts = [getattr(layer.self_attn, name) for layer in model.model.layers
             for name in ("q_proj", "k_proj", "v_proj")]  # fmt: skip
    originals = [weakref.ref(part.weight) for part in parts]
    weights = sum(p.nbytes for p in model.parameters())
    del parts
    num_left: list[int] = []
    make = fusing._Shared.__init__

    def counted(self: fusing._Shared, parts: Any) -> None:
        num_left.append(sum(ref() is not None for ref in originals))
        make(self, parts)

    monkeypatch.setattr(fusing._Shared, "__init__", counted)
    fuse(model)
    assert num_left[::2] == [24, 21, 18, 15, 12, 9, 6, 3]  # attention, then what feeds forward
    kept = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes()
            for p in model.parameters()}  # fmt: skip
    assert sum(kept.values()) == weights


def test_a_fused_model_is_not_fused_again() -> None:
    model = build("llama")
    fuse(model)
    before = {id(module) for module in model.modules()}
    fuse(model)
    assert {id(module) for module in model.modules()} == before


def test_nothing_of_a_forward_is_kept() -> None:
    model = build("llama")
    fuse(model)
    logits(model)
    shared = {m._shared for m in model.modules() if isinstance(m, fusing._Slice)}
    assert len(shared) == 4
    assert all(each._input is None and each._product is None for each in shared)


def test_projections_of_different_inputs_are_each_right() -> None:
    """A model may ask for one of them alone, or in another order."""
    attention = build("llama").model.layers[0].self_attn
    wanted = {name: getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")}
    a, b = torch.randn(3, 32), torch.randn(3, 32)
    asked = [("k_proj", a), ("q_proj", b), ("v_proj", a), ("v_proj", b), ("q_proj", b)]
    with torch.inference_mode():
        expected = [wanted[name](x) for name, x in asked]
        fuse(attention)
        found = [getattr(attention, name)(x) for name, x in asked]
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right)


def test_a_network_fuses_and_notices_if_that_went_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = build("qwen2")
    Network(alone).close()
    assert type(alone.model.layers[0].self_attn.q_proj) is torch.nn.Linear, "on a CPU"
    monkeypatch.setattr("duodec_torch.forward.network.gains_by_fusing", lambda device: True)
    model = build("qwen2")
    Network(model).close()
    assert type(model.model.layers[0].self_attn.q_proj) is fusing._Slice
    monkeypatch.setattr(fusing._Shared, "next_rows", lambda self, count: slice(0, count))
    with pytest.raises(Exception, match="different logits"):
        Network(build("qwen2"))
