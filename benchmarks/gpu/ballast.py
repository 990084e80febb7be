"""Make a benchmark target without large weights: one model's texts at another one's cost.

Each forward pass also runs a second stack, randomly initialised and of a given shape, over the same
rows and as many cells; its results are not used. Reports name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from duodec.backends.torch.attention import Plan
from duodec.backends.torch.cache import CellCache
from duodec.backends.torch.library import torch, transformers
from duodec.backends.torch.network import Network
from duodec.errors import BadOption


@dataclass(frozen=True)
class Shape:
    """The sizes that a Llama-like stack's cost depends on."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    inner: int  # width of the feed-forward part
    num_vocab: int = 32000


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(2, 64, 4, 2, 128),  # for tests on a CPU
    "llama-2-7b": Shape(32, 4096, 32, 32, 11008),
    "llama-2-13b": Shape(40, 5120, 40, 40, 13824),
    "codellama-34b": Shape(48, 8192, 64, 8, 22016),
    "llama-2-70b": Shape(80, 8192, 64, 8, 28672),
}


def shape_named(name: str) -> Shape:
    """Raises BadOption, which lists the names."""
    if name not in SHAPES:
        raise BadOption(f"unknown shape '{name}'; choose from: {', '.join(SHAPES)}")
    return SHAPES[name]


def random_model(shape: Shape, *, dtype: torch.dtype, device: str | torch.device) -> Any:
    """A model of that shape with random weights, made on its device."""
    config = transformers.LlamaConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.inner,
        vocab_size=shape.num_vocab,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


class BallastNetwork(Network):
    """The model, and a stack that makes it as slow as another one.

    Moves of cells are not repeated in the stack: its cost lacks two kernels a round.
    """

    def __init__(
        self, model: Any, stack: Any, on_warning: Callable[[str], None] = lambda line: None
    ) -> None:
        self._stack: Network | None = None  # None while the model itself is checked
        super().__init__(model, on_warning)
        try:
            self._stack = Network(stack, on_warning)
        except BaseException:
            self.close()
            raise

    def cache(self, num_cells: int) -> CellCache:
        if self._stack is not None:
            self._beside = self._stack.cache(num_cells)
        return super().cache(num_cells)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: CellCache,
        plan: Plan,
        kept: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._stack is not None:
            self._beside.written = cache.written
            self._stack.forward(tokens % self._stack.num_vocab, positions, self._beside, plan, kept)
        return super().forward(tokens, positions, cache, plan, kept)

    def close(self) -> None:
        super().close()
        if self._stack is not None:
            self._stack.close()
            if beside := self.__dict__.pop("_beside", None):
                beside.layers.clear()
