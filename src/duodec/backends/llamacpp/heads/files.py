"""Find out which files have layers that draft for a target, and for which targets they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.gguf.header import GgufFile, Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.errors import BadOption, ModelUnreadable

MTP, EAGLE3 = "mtp", "eagle3"
DFLASH, DFLASH2, DSPARK = "dflash", "dflash2", "dspark"
BLOCKS = DFLASH  # architecture of all three in a file
# llama.cpp recognises a kind of block drafter by a tensor; dflash has none of them.
_OF_KIND = {DSPARK: "markov_w1.weight", DFLASH2: "selector_hidden.weight"}
# This is metadata of a head that we trained: its target's file.
TARGET_NAME, TARGET_BYTES = "duodec.target.name", "duodec.target.bytes"
TARGET_SHA256 = "duodec.target.sha256"
_ARCHITECTURE = "general.architecture"
# The graphs of these architectures were tried for one layer of multi-token prediction. Without
# these tensors of that layer they end the process.
_PROJECTION = "nextn.eh_proj.weight"
MTP_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "qwen35": (_PROJECTION,),
    "qwen35moe": (_PROJECTION,),
    "qwen3next": (_PROJECTION,),
    "glm4moe": (_PROJECTION,),
    "deepseek2": (_PROJECTION, "attn_k_b.weight"),  # latent attention as it is stored today
}
# The graphs of these architectures name the inputs of their layers.
NAMING_ARCHITECTURES = frozenset(
    {"llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "gpt-oss", "lfm2",
     "nemotron_h"}
)  # fmt: skip
# The graphs of these do not, and are watched: they end a process that asks for such an input.
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
    """Return the layers whose inputs a head in a file reads."""
    with GgufFile(lib, path) as file:
        if not file.handle:
            return ()
        return tuple(file.numbers(f"{file.text(_ARCHITECTURE)}.target_layers"))


def kind_of(lib: Any, path: Path) -> str:
    """Return the kind of head in a file: eagle3, dflash, dflash2 or dspark; otherwise the
    architecture that the file names."""
    with GgufFile(lib, path) as file:
        if not file.handle:
            return ""
        architecture, tensors = file.text(_ARCHITECTURE), file.tensors()
    found = (kind for kind, tensor in _OF_KIND.items() if tensor in tensors)
    return next(found, DFLASH) if architecture == BLOCKS else architecture


def computes_on_cpu(header: Header, *, has_moved: bool) -> bool:
    """Return whether a head of its own file may be computed on the CPU for a target on a device.
    What both share must be in main memory: the target's output is not, but its embeddings are,
    unless its tensors were moved."""
    return "output.weight" in header.tensors and (
        not has_moved or "token_embd.weight" in header.tensors
    )


def other_target(lib: Any, path: Path, target: Path) -> str | None:
    """Return a message if a head was trained for another file than this target, as far as its size
    shows; otherwise None."""
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
    """Return whether a file has one layer of multi-token prediction that llama.cpp computes
    here."""
    needed = MTP_ARCHITECTURES.get(header.architecture, ())
    layer = f"blk.{len(header.kv_heads)}"
    is_whole = all(f"{layer}.{name}" in header.tensors for name in needed)
    return header.num_heads == 1 and bool(needed) and is_whole


class DraftLayer(LlamaModel):
    """Hold the weights of a head in a file of its own, which is not a whole model."""

    def __init__(self, path: Path, target: LlamaModel, *, num_gpu_layers: int = -1) -> None:
        """Raise ModelUnreadable, and BadOption for a head that does not fit this target."""
        super().__init__(path, num_gpu_layers=num_gpu_layers)
        self.kind, self.layers = kind_of(self.lib, path), read_layers(self.lib, path)
        if wrong := self._mismatch(target):
            self.close()
            raise BadOption(
                f"{path.name} is no head of {target.path.name}: {wrong}; name one that was trained "
                "for this target"
            )

    def _mismatch(self, target: LlamaModel) -> str | None:
        """Return how a target differs from what this head needs."""
        # The output of a layer is seen.
        least = 1 if target.architecture in WATCHED_ARCHITECTURES else 0
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
        """Return the width of the target that it was made for; a block drafter has its width."""
        if self.architecture == BLOCKS:
            return int(self.lib.llama_model_n_embd(self.handle))
        return int(self.metadata(f"{EAGLE3}.target_hidden_size") or 0)

    def _refuse_other_kinds(self) -> None:
        if self.architecture not in (EAGLE3, BLOCKS):
            raise ModelUnreadable(
                f"{self.path} has no EAGLE-3, DFlash or DSpark head but a model "
                f"({self.architecture}); name it as `draft`"
            )
