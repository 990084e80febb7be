"""Run Llama-like decoder layers in ten launches: four matrix products and six kernels.

transformers' own layer has 37, and on a GPU a forward pass of few rows waits for each of them. The
layer keeps its weights and its place in the model; only its ``forward`` is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from duodec_torch.forward.attention import AttentionMetadata, Scoring
from duodec_torch.forward.cache import CellCache
from duodec_torch.forward.fusing import shared_by
from duodec_torch.library import torch

# models whose layers compute the same as `_Launches`; others may only look like it
_KINDS = {f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}


def fuse_layers(model: Any) -> Callable[[], None]:
    """Replace the ``forward`` of every layer of these kinds, which needs fused projections; returns
    a function that restores them. Raises ImportError without Triton."""
    found = [(layer, _Launches.of(layer)) for layer in model.modules() if _is_of_the_kind(layer)]
    for layer, forward in found:
        layer.forward = forward

    def undo() -> None:
        for layer, _ in found:
            vars(layer).pop("forward", None)
        found.clear()  # so that a reference to this keeps no weights alive

    return undo


def _is_of_the_kind(layer: Any) -> bool:
    if type(layer).__name__ not in _KINDS or "forward" in vars(layer):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    products = [attention.o_proj, mlp.down_proj]
    return (
        type(layer).__module__.startswith("transformers.models.")
        and shared_by(attention.q_proj, attention.k_proj, attention.v_proj) is not None
        and shared_by(mlp.gate_proj, mlp.up_proj) is not None
        and all(type(p) is torch.nn.Linear and p.bias is None for p in products)
        and type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and attention.head_dim % 2 == 0
        and _window(attention) is None
    )


def _window(attention: Any) -> int | None:
    """What its layer passes on, by its own field or the config's."""
    found: int | None = getattr(
        attention, "sliding_window", getattr(attention.config, "sliding_window", None)
    )
    return found


@dataclass(frozen=True)
class _Launches:
    """The forward pass of one layer; rows are all of one sequence's batch."""

    layer: Any
    number: int
    qkv: Any  # fused projections
    gate_up: Any
    norms: tuple[torch.Tensor, torch.Tensor, float] | None  # of the heads of queries and keys
    kernels: Any

    @classmethod
    def of(cls, layer: Any) -> _Launches:
        from duodec_torch.forward import layer_kernels

        attention = layer.self_attn
        norms = None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm, attention.k_norm
            norms = (query.weight, key.weight, query.variance_epsilon)
        qkv = shared_by(attention.q_proj, attention.k_proj, attention.v_proj)
        gate_up = shared_by(layer.mlp.gate_proj, layer.mlp.up_proj)
        return cls(layer, attention.layer_idx, qkv, gate_up, norms, layer_kernels)

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        plan: AttentionMetadata,
        cache: CellCache | None = None,
        past_key_values: CellCache | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """As the layer's own ``forward``: (1, rows, width); the output overwrites the input. The
        cache has its second name before transformers 5.24."""
        layer, kernels, x = self.layer, self.kernels, hidden_states[0]
        cache = past_key_values if cache is None else cache
        assert cache is not None
        attention, own = layer.self_attn, cache.layers[self.number]
        keys, values = own.keys[0], own.values[0]
        cos, sin = position_embeddings

        qkv = self.qkv.of(self._normed(x, layer.input_layernorm))
        cells = cache.written[x.device]
        query = kernels.placed(qkv, cos[0], sin[0], cells, keys, values, self.norms)
        by_group = query.unflatten(1, (len(keys), -1)).permute(1, 2, 0, 3)
        seen = plan.attend(by_group, keys, values, Scoring(attention.scaling))
        x.addmm_(seen.permute(2, 0, 1, 3).flatten(1), attention.o_proj.weight.T)

        gate_up = self.gate_up.of(self._normed(x, layer.post_attention_layernorm))
        x.addmm_(kernels.gated(gate_up), layer.mlp.down_proj.weight.T)
        return hidden_states

    def _normed(self, x: torch.Tensor, norm: Any) -> torch.Tensor:
        found: torch.Tensor = self.kernels.normed(x, norm.weight, norm.variance_epsilon)
        return found
