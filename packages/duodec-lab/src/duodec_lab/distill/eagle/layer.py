"""An EAGLE-3 head in torch, as llama.cpp computes it, begun from its target's last layer.

One decoder layer reads a token's embedding beside a state: the target's of the token before, of
three layers in one, or its own where it goes on from tokens that it has proposed itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec_lab.distill.library import gguf, torch
from duodec_lab.distill.source import SourceFile

_NORM = torch.nn.functional.rms_norm
_SOFT = 0.005  # of a weight that begins at random
_OWN_PART = 0.1  # of a token's embedding, by the size of the state that it is added to
_LIKENESS = 2**0.5  # so sure is a token of itself among those of a text


@dataclass(frozen=True)
class Shape:
    """The sizes of a head, which are its target's: the width of states, that of the feed-forward
    part, the heads of attention and the width of one, the norms' epsilon and RoPE's frequency."""

    width: int
    inner: int
    num_heads: int
    head: int
    epsilon: float
    frequency: float

    @classmethod
    def of(cls, source: SourceFile) -> Shape:
        def field(key: str, default: Any = None) -> Any:
            return source.field(f"{source.architecture}.{key}") or default

        width, num_heads = int(field("embedding_length")), int(field("attention.head_count"))
        return cls(
            width,
            int(field("feed_forward_length")),
            num_heads,
            int(field("attention.key_length", width // num_heads)),
            float(field("attention.layer_norm_rms_epsilon", 1e-5)),
            float(field("rope.freq_base", 10_000.0)),
        )


def rows(source: SourceFile, name: str, some: Any = slice(None)) -> NDArray[np.float32]:
    """Some rows of a tensor, dequantised."""
    tensor = next(tensor for tensor in source.reader.tensors if tensor.name == name)
    found: NDArray[np.float32] = gguf.dequantize(tensor.data[some], tensor.tensor_type)
    return found.astype(np.float32)


class EagleLayer(torch.nn.Module):  # type: ignore[misc]
    """The head's layer; its weights are named as in the file."""

    def __init__(self, shape: Shape, num_inputs: int) -> None:
        super().__init__()
        self.shape = shape
        for name, size in self._sizes(shape, num_inputs).items():
            drawn = torch.ones(size) if "norm" in name else _SOFT * torch.randn(size)
            setattr(self, name, torch.nn.Parameter(drawn))
        angles = shape.frequency ** (-torch.arange(0, shape.head, 2) / shape.head)
        self.register_buffer("angles", angles, persistent=False)

    @classmethod
    def num_params(cls, shape: Shape, num_inputs: int) -> int:
        return sum(math.prod(size) for size in cls._sizes(shape, num_inputs).values())

    @staticmethod
    def _sizes(shape: Shape, num_inputs: int) -> dict[str, tuple[int, ...]]:
        d, own, wide = shape.width, shape.num_heads * shape.head, 2 * shape.width
        return {
            "fc": (d, num_inputs), "enc_output_norm": (num_inputs,),
            "attn_norm": (d,), "attn_norm_2": (d,), "ffn_norm": (d,), "output_norm": (d,),
            "attn_q": (own, wide), "attn_k": (own, wide), "attn_v": (own, wide),
            "attn_output": (d, own), "ffn_gate": (shape.inner, d), "ffn_up": (shape.inner, d),
            "ffn_down": (d, shape.inner),
        }  # fmt: skip

    def begin(self, source: SourceFile, states: Any) -> None:
        """Take a target's last layer where the head goes on like it: of the last of its ``states``,
        some of which are given. Attention begins by adding a token's own embedding, which it finds
        by its likeness to itself."""
        last, width = f"blk.{source.num_layers - 1}.", self.shape.width
        with torch.no_grad():
            for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
                getattr(self, name).copy_(torch.from_numpy(rows(source, f"{last}{name}.weight")))
            self.output_norm.copy_(torch.from_numpy(rows(source, "output_norm.weight")))
            self.fc[:, -width:] += torch.eye(width)
            # as large as the last state is by itself
            size = states.square().mean(1).add(self.shape.epsilon).sqrt()
            self.enc_output_norm.fill_(float(size.median()))
            self.attn_q[:, :width] = _LIKENESS * torch.randn(len(self.attn_q), width) / width**0.5
            self.attn_k[:, :width] = self.attn_q[:, :width]
            self.attn_v[:, :width] = torch.eye(len(self.attn_v), width)
            # more would say the token once more, less would leave it to be found by training
            usual = _OWN_PART * float(states[:, -width:].std(0).median())
            self.attn_output.copy_(usual * torch.eye(*self.attn_output.shape))

    def fused(self, states: Any) -> Any:
        """The target's states as the layer reads them."""
        normed = _NORM(states, states.shape[-1:], self.enc_output_norm, self.shape.epsilon)
        return torch.nn.functional.linear(normed, self.fc)

    def unrolled(self, embedded: Any, states: Any, begin: int, num_steps: int) -> list[Any]:
        """What the head's matrix reads after each token of a text from ``begin`` on, a row each: of
        the ``i``-th result after tokens of which the last ``i`` are the head's own, so that it has
        ``i`` rows less. ``embedded`` are the tokens' embeddings, ``states`` the target's of the
        tokens before."""
        given, found = self.fused(states), []
        whole, kept = self._keys_and_values(embedded, given, 0), []
        given = given[begin:]
        for depth in range(num_steps):
            place = begin + depth
            both = self._both(embedded[place:], given)
            q = self._rotated(self._by_head(both, self.attn_q), place)
            if depth:
                kept.append(self._keys_and_values(embedded[place:], given, place))
            after = self._layer(given, self._attended(q, place, whole, kept))
            found.append(self._normed(after, self.output_norm))
            given = after[:-1]
        return found

    def _keys_and_values(self, embedded: Any, given: Any, place: int) -> tuple[Any, Any]:
        both = self._both(embedded, given)
        keys = self._rotated(self._by_head(both, self.attn_k), place)
        return keys, self._by_head(both, self.attn_v)

    def _both(self, embedded: Any, given: Any) -> Any:
        return torch.cat(
            [self._normed(embedded, self.attn_norm), self._normed(given, self.attn_norm_2)], -1
        )

    def _by_head(self, both: Any, weight: Any) -> Any:
        """(heads, length, width of one)."""
        found = torch.nn.functional.linear(both, weight)
        return found.unflatten(-1, (self.shape.num_heads, self.shape.head)).transpose(0, 1)

    def _attended(
        self, q: Any, place: int, whole: tuple[Any, Any], kept: Sequence[tuple[Any, Any]]
    ) -> Any:
        """A token, from ``place`` on, sees those of the text up to where the head's own begin, and
        these: the ``i``-th part of ``kept`` has ``i`` of them before, and itself."""
        keys, values = whole
        scale = self.shape.head**-0.5
        seen = torch.ones(q.shape[1], keys.shape[1], dtype=torch.bool, device=q.device)
        scores = [
            (q @ keys.transpose(1, 2) * scale).masked_fill(~seen.tril(place - len(kept)), -math.inf)
        ]
        own = [tuple(part[:, : q.shape[1]] for part in pair) for pair in kept]
        scores += [(q * k).sum(-1, keepdim=True) * scale for k, _ in own]
        shares = torch.softmax(torch.cat(scores, -1).float(), -1).to(values.dtype)
        length = keys.shape[1]
        mixed = shares[..., :length] @ values
        for i, (_, v) in enumerate(own):
            mixed = mixed + shares[..., length + i : length + i + 1] * v
        return mixed.transpose(0, 1).flatten(1)

    def _layer(self, given: Any, attended: Any) -> Any:
        linear = torch.nn.functional.linear
        state = given + linear(attended, self.attn_output)
        normed = self._normed(state, self.ffn_norm)
        gate = torch.nn.functional.silu(linear(normed, self.ffn_gate))
        return state + linear(gate * linear(normed, self.ffn_up), self.ffn_down)

    def _normed(self, state: Any, weight: Any) -> Any:
        return _NORM(state, (self.shape.width,), weight, self.shape.epsilon)

    def _rotated(self, part: Any, place: int) -> Any:
        """Rotated by its position, of which only differences count; pairs are adjacent."""
        positions = torch.arange(place, place + part.shape[1], device=part.device)
        turns = positions[:, None] * self.angles
        one, other = part[..., ::2], part[..., 1::2]
        cos, sin = turns.cos(), turns.sin()
        return torch.stack([one * cos - other * sin, one * sin + other * cos], -1).flatten(-2)
