"""Tell which files have layers that draft behind a target, and for which targets they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.gguf.header import GgufFile, Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.errors import BadOption, ModelUnreadable

MTP, EAGLE3 = "mtp", "eagle3"
DFLASH, DFLASH2, DSPARK = "dflash", "dflash2", "dspark"
BLOCKS = DFLASH  # the architecture of all three in a file
# a tensor by which llama.cpp tells a kind of block drafter; dflash has none of them
_OF_KIND = {DSPARK: "markov_w1.weight", DFLASH2: "selector_hidden.weight"}
# metadata of a head that we trained: its target's file
TARGET_NAME, TARGET_BYTES = "duodec.target.name", "duodec.target.bytes"
TARGET_SHA256 = "duodec.target.sha256"
_ARCHITECTURE = "general.architecture"
# whose graphs for one layer of multi-token prediction were tried, and tensors of that layer without
# which they end the process
_PROJECTION = "nextn.eh_proj.weight"
MTP_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "qwen35": (_PROJECTION,),
    "qwen35moe": (_PROJECTION,),
    "qwen3next": (_PROJECTION,),
    "glm4moe": (_PROJECTION,),
    "deepseek2": (_PROJECTION, "attn_k_b.weight"),  # latent attention as it is stored today
}
# whose graphs name the inputs of their layers
NAMING_ARCHITECTURES = frozenset(
    {"llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "gpt-oss", "lfm2",
     "nemotron_h"}
)  # fmt: skip
# whose graphs do not, and are watched: they end a process that asks for such an input
WATCHED_ARCHITECTURES = frozenset(
    {"qwen2", "qwen2vl", "qwen3vl", "gemma2", "gemma3", "phi3", "olmo2", "granite", "glm4",
     "smollm3", "cohere2", "deepseek2", "glm4moe", "mamba2", "granitehybrid", "falcon-h1"}
)  # fmt: skip
SHOWN_ARCHITECTURES = NAMING_ARCHITECTURES | WATCHED_ARCHITECTURES


def show_layers(model: LlamaModel, layers: Sequence[int]) -> None:
    """Prepare contexts of a target that are opened from now on for a head that reads the inputs of
    these layers."""
    if model.architecture in WATCHED_ARCHITECTURES:
        model.watch(layers)


def read_layers(lib: Any, path: Path) -> tuple[int, ...]:
    """Whose inputs a head in a file reads."""
    with GgufFile(lib, path) as file:
        if not file.handle:
            return ()
        return tuple(file.numbers(f"{file.text(_ARCHITECTURE)}.target_layers"))


def kind_of(lib: Any, path: Path) -> str:
    """Which kind of head a file has: eagle3, dflash, dflash2 or dspark; otherwise the architecture
    that it names."""
    with GgufFile(lib, path) as file:
        if not file.handle:
            return ""
        architecture, tensors = file.text(_ARCHITECTURE), file.tensors()
    found = (kind for kind, tensor in _OF_KIND.items() if tensor in tensors)
    return next(found, DFLASH) if architecture == BLOCKS else architecture


def computes_on_cpu(header: Header, *, has_moved: bool) -> bool:
    """Whether a head of its own file may be computed on the CPU for a target on a device: what it
    shares with that must be in main memory. The target's output is not; its embeddings are, unless
    tensors of it were moved."""
    return "output.weight" in header.tensors and (
        not has_moved or "token_embd.weight" in header.tensors
    )


def other_target(lib: Any, path: Path, target: Path) -> str | None:
    """Says that a head was trained for another file than this target, as far as its size tells;
    None where it was not, or does not say."""
    with GgufFile(lib, path) as file:
        name = file.text(TARGET_NAME) if file.handle else ""
        sizes = file.numbers(TARGET_BYTES) if file.handle else []
    if sizes in ([], [target.stat().st_size]):
        return None
    return (
        f"the head {path.name} was trained for {name} ({sizes[0]} bytes), and {target.name} is "
        "another file: the text stays the target's, and fewer drafts may come true"
    )


def has_mtp(header: Header) -> bool:
    """Whether a file has one layer of multi-token prediction that llama.cpp computes here."""
    needed = MTP_ARCHITECTURES.get(header.architecture, ())
    layer = f"blk.{len(header.kv_heads)}"
    is_whole = all(f"{layer}.{name}" in header.tensors for name in needed)
    return header.num_heads == 1 and bool(needed) and is_whole


class DraftLayer(LlamaModel):
    """The weights of a head in a file of its own, which are no model."""

    def __init__(self, path: Path, target: LlamaModel, *, num_gpu_layers: int = -1) -> None:
        """Raises ModelUnreadable, and BadOption for a head that does not fit this target."""
        super().__init__(path, num_gpu_layers=num_gpu_layers)
        self.kind, self.layers = kind_of(self.lib, path), read_layers(self.lib, path)
        if wrong := self._mismatch(target):
            self.close()
            raise BadOption(
                f"{path.name} is no head of {target.path.name}: {wrong}; name one that was trained "
                "for this target"
            )

    def _mismatch(self, target: LlamaModel) -> str | None:
        """What a target has otherwise than this head needs it."""
        least = 1 if target.architecture in WATCHED_ARCHITECTURES else 0  # a layer's output is seen
        own = int(self.lib.llama_model_n_embd(target.handle))
        if target.architecture not in SHOWN_ARCHITECTURES:
            return f"llama.cpp shows no layers of {target.architecture} to a head"
        is_shown = all(least <= layer < target.num_layers for layer in self.layers)
        if not self.layers or not is_shown or self._width != own:
            return f"it reads layers {self.layers} of a model of width {self._width}, not {own}"
        if self.num_vocab != target.num_vocab:
            return f"it has {self.num_vocab} tokens, and the target {target.num_vocab}"
        return None

    @property
    def _width(self) -> int:
        """Of the target that it was made for; a block drafter has its width."""
        if self.architecture == BLOCKS:
            return int(self.lib.llama_model_n_embd(self.handle))
        return int(self.metadata(f"{EAGLE3}.target_hidden_size") or 0)

    def _refuse_other_kinds(self) -> None:
        if self.architecture not in (EAGLE3, BLOCKS):
            raise ModelUnreadable(
                f"{self.path} has no EAGLE-3, DFlash or DSpark head but a model "
                f"({self.architecture}); name it as `draft`"
            )
