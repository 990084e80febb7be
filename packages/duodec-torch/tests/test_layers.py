"""Layers in few launches against transformers' own: in Triton's interpreter where there is no GPU.

Half precision is float16 here: the interpreter cuts numbers off to make them bfloat16.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton", reason="triton is not installed: it comes with torch for CUDA")

from fakes.torch_models import build, logits, oracle_rows, query_of, random_text
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from duodec.core.draft import Draft
from duodec.core.traits import Widths
from duodec_torch.forward import layer_kernels, network
from duodec_torch.forward.fusing import gains_by_fusing
from duodec_torch.forward.network import Network
from duodec_torch.target import TorchTarget

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TYPES = [torch.float32, torch.float16]
# what a sum in another order may change: one step of the type
STEPS = {torch.float32: 2e-6, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duodec_torch.forward.network.gains_by_fusing", lambda device: True)


def random(*shape: int, like: torch.dtype, seed: int = 0) -> torch.Tensor:
    maker = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=maker).to(DEVICE, like)


def assert_steps(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the last bits of a few numbers."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=STEPS[found.dtype], atol=1e-6)
    if found.dtype != torch.float32:
        assert (found != expected).float().mean() < 0.02


# --- kernels


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [32, 96, 576])
def test_a_norm_is_transformers(width: int, dtype: torch.dtype) -> None:
    x, weight = random(5, width, like=dtype), random(width, like=dtype, seed=1)
    norm = LlamaRMSNorm(width, eps=1e-2).to(DEVICE)
    norm.weight.data = weight
    with torch.inference_mode():
        assert_steps(layer_kernels.normed(x, weight, 1e-2), norm(x))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("inner", [64, 1024, 1536])
def test_a_gate_is_torchs(inner: int, dtype: torch.dtype) -> None:
    x = 3 * random(5, 2 * inner, like=dtype)
    gate, up = x.split(inner, dim=1)
    assert_steps(layer_kernels.gated(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", [(4, 2, 8), (7, 1, 64), (9, 3, 80), (1, 1, 128)])
@pytest.mark.parametrize("has_norms", [False, True])
def test_rows_are_rotated_and_put_in_their_cells(
    heads: tuple[int, int, int], has_norms: bool, dtype: torch.dtype
) -> None:
    num_heads, num_kv_heads, size = heads
    x = random(5, (num_heads + 2 * num_kv_heads) * size, like=dtype)
    angles = random(5, size, like=torch.float32, seed=1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    cells = torch.tensor([[3, 0], [11, 1], [0, 2], [4, 3], [7, 4]], device=DEVICE)[:, 0]
    by_norm = [random(size, like=dtype, seed=seed) for seed in (2, 3)]
    norms = (by_norm[0], by_norm[1], 1e-2) if has_norms else None

    by_head = x.view(5, -1, size).transpose(0, 1)[None]
    query, key, value = by_head.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if has_norms:
        query, key = (_normed(*pair) for pair in zip((query, key), by_norm, strict=True))
    query, key = apply_rotary_pos_emb(query, key, cos[None], sin[None])

    buffer = torch.full((2, num_kv_heads, 13, size), 7.0, dtype=dtype, device=DEVICE)
    found = layer_kernels.placed(x, cos, sin, cells, buffer[0], buffer[1], norms)
    assert_steps(found, query[0].transpose(0, 1))
    assert_steps(buffer[0, :, cells], key[0])
    assert torch.equal(buffer[1, :, cells], value[0])
    others = [cell for cell in range(13) if cell not in cells.tolist()]
    assert (buffer[:, :, others] == 7).all()


def _normed(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    norm = LlamaRMSNorm(heads.shape[-1], eps=1e-2).to(DEVICE)
    norm.weight.data = weight
    with torch.inference_mode():
        found: torch.Tensor = norm(heads)
    return found


# --- layers


def num_fused(model: Any) -> int:
    return sum("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_layers_are_the_models_until_the_network_closes(kind: str) -> None:
    changes = {"sliding_window": None} if kind == "mistral" else {}
    warnings: list[str] = []
    model = build(kind, **changes).to(DEVICE)
    text = random_text(60)
    with torch.inference_mode():
        expected = model(torch.tensor([text], device=DEVICE)).logits[0, -1].cpu()
    network = Network(model, warnings.append)
    target = TorchTarget(network, num_context=100, widths=Widths.only(8), num_chunk=32)
    assert warnings == []
    assert num_fused(model) == 2
    (rows,) = logits(target, query_of(text, num_prompt=50))
    assert (rows[0].cpu() - expected).abs().max() < 1e-4
    target.close()
    target.close()
    assert num_fused(model) == 0
    with torch.inference_mode():
        own = model(torch.tensor([text], device=DEVICE)).logits[0, -1].cpu()
    assert (own - expected).abs().max() < 1e-4


def test_a_closed_network_keeps_no_weights() -> None:
    model = build("llama").to(DEVICE)
    network = Network(model)
    layer = weakref.ref(model.model.layers[0])
    network.close()
    del model
    gc.collect()
    assert layer() is None


def test_branches_of_a_tree_are_the_models() -> None:
    target = TorchTarget(
        Network(build("llama").to(DEVICE)), num_context=200, widths=Widths.only(8), num_chunk=32
    )
    text, draft = random_text(90), Draft.sequences([[1, 2, 3], [4, 5], [4, 6]])
    (rows,) = logits(target, query_of(text, draft, num_prompt=70))
    assert abs(rows.cpu().numpy() - oracle_rows("llama", text, draft)).max() < 2e-4


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("phi", {}),
        ("gpt2", {}),
        ("granite", {"residual_multiplier": 0.5}),
        ("gemma", {"head_dim": 8}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"hidden_act": "gelu"}),
    ],
)
def test_what_computes_something_else_is_left_alone(kind: str, changes: dict[str, Any]) -> None:
    warnings: list[str] = []
    model = build(kind, **changes).to(DEVICE)
    network = Network(model, warnings.append)
    assert num_fused(model) == 0
    assert warnings == []
    network.close()


def test_an_outline_has_nothing_that_a_kernel_could_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch with pointers to nothing would break the device for good."""
    monkeypatch.undo()
    monkeypatch.setattr(network, "fuse_layers", lambda model: pytest.fail("no layer"))
    with torch.device("meta"):
        outline = build("llama")
    assert not gains_by_fusing(torch.device("meta"))
    Network(outline).close()


def test_a_layer_that_somebody_changed_is_left_alone() -> None:
    model = build("llama")
    model.model.layers[0].forward = model.model.layers[0].forward
    network = Network(model)
    assert model.model.layers[0].forward.__name__ == "forward", "theirs"
    network.close()
    assert "forward" in vars(model.model.layers[0])


@pytest.mark.parametrize("fault", ["wrong numbers", "no compiler"])
def test_kernels_that_cannot_be_used_cost_one_warning(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def gated(x: torch.Tensor) -> torch.Tensor:
        if fault == "no compiler":
            raise RuntimeError("no compiler\nand much more")
        return 3 * x[:, : x.shape[1] // 2]

    monkeypatch.setattr(layer_kernels, "gated", gated)
    warnings: list[str] = []
    model = build("llama")
    network = Network(model, warnings.append)
    assert [line.startswith("Triton's layers are off") for line in warnings] == [True]
    assert "\n" not in warnings[0]
    assert num_fused(model) == 0
    network.close()


class Launches(TorchDispatchMode):
    """What torch would launch on a GPU: all that is neither a view nor only memory."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and "empty" not in name:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_torch_launches_four_products_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them there are the kernels: four of these, and attention's two."""
    launches = Launches()
    ours: list[str] = []

    def stub(name: str, answer: Any) -> None:
        def launched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            ours.append(name)
            found: torch.Tensor = answer(x)
            return found

        monkeypatch.setattr(layer_kernels, name, launched)

    stub("normed", torch.empty_like)
    stub("placed", lambda x: x.new_empty(len(x), 4, 8))
    stub("gated", lambda x: x.new_empty(len(x), 64))
    monkeypatch.setattr(Network, "check_logits", lambda self, expected: None)
    model = build("llama")
    network = Network(model)
    cache, places = network.cache(512), torch.arange(8)
    cache.write_to(places)
    x, turn = torch.zeros(1, 8, 32), torch.zeros(1, 8, 8)
    layer, plan = model.model.layers[0], Attended()
    with torch.inference_mode(), launches:
        layer(x, cache=cache, position_embeddings=(turn, turn), plan=plan)
    assert launches.seen == ["linear", "addmm_", "linear", "addmm_"]
    assert ours == ["normed", "placed", "normed", "gated"]


class Attended:
    """Answers as `SplitPlan` lays it out."""

    def attend(self, query: torch.Tensor, *_: Any) -> torch.Tensor:
        kv_heads, group, rows, size = query.shape
        return query.new_empty(rows, kv_heads, group, size).permute(1, 2, 0, 3)
