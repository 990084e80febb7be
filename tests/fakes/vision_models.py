"""Tiny random models that see pictures, one of each family, as pairs of GGUF files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fakes.families import WIDTH, Family, add_field, attention, dense, write_family

SIZE, PATCH, DIMS, HEADS, INNER, LAYERS = 32, 8, 32, 2, 64, 2
PATCHES = (SIZE // PATCH) ** 2
_SECTIONS = {"rope.dimension_sections": [4, 6, 6, 0]}

Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Seeing:
    """``text`` is the family of the text model, ``projector`` what mtmd calls the other file;
    ``layer`` gives the tensors of a layer of the encoder, ``ends`` the others."""

    text: str | Family
    projector: str
    layer: Callable[[int], Tensors]
    ends: Tensors
    fields: Mapping[str, Any] = field(default_factory=dict)
    uses_mrope: bool = False


def _with_biases(shapes: Tensors) -> Tensors:
    return shapes | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


def _attention(*, is_joined: bool = False) -> Tensors:
    if is_joined:
        return {"attn_qkv": (3 * DIMS, DIMS), "attn_out": (DIMS, DIMS)}
    return {f"attn_{part}": (DIMS, DIMS) for part in ("q", "k", "v", "out")}


def _plain(*, is_joined: bool = False) -> Tensors:
    """A layer with biases, as most encoders have them."""
    dense = {"ffn_up": (INNER, DIMS), "ffn_down": (DIMS, INNER)}
    norms = {"ln1": (DIMS,), "ln2": (DIMS,)}
    return _with_biases(_attention(is_joined=is_joined) | dense | norms)


def _gated() -> Tensors:
    return {
        "ffn_up": (INNER, DIMS), "ffn_gate": (INNER, DIMS), "ffn_down": (DIMS, INNER),
        "ln1": (DIMS,), "ln2": (DIMS,),
    }  # fmt: skip


_PATCHES: Tensors = {"v.patch_embd": (DIMS, 3, PATCH, PATCH), "v.patch_embd.bias": (DIMS,)}
_PLACES: Tensors = {"v.position_embd": (PATCHES, DIMS)}
_POST: Tensors = {"v.post_ln": (DIMS,), "v.post_ln.bias": (DIMS,)}
_TWO_FRAMES: Tensors = {
    "v.patch_embd": (DIMS, 3, PATCH, PATCH), "v.patch_embd.weight.1.": (DIMS, 3, PATCH, PATCH),
}  # fmt: skip
_MERGER = _with_biases({"mm.0": (4 * DIMS, 4 * DIMS), "mm.2": (WIDTH, 4 * DIMS)})

QWEN2VL = Family("qwen2vl", lambda i: attention("bias") | dense(), _SECTIONS)
QWEN3VL = Family(
    "qwen3vl", lambda i: attention("norms") | dense(), {**_SECTIONS, "n_deepstack_layers": 1}
)

SEEING: Mapping[str, Seeing] = {
    "Gemma 3": Seeing(
        "Gemma 3", "gemma3", lambda i: _plain(),
        _PATCHES | _PLACES | _POST
        | {"mm.input_projection": (DIMS, WIDTH), "mm.soft_emb_norm": (DIMS,)},
        {"projector.scale_factor": 2},
    ),
    "SmolVLM": Seeing(
        "Llama", "idefics3", lambda i: _plain(),
        _PATCHES | _PLACES | _POST | {"mm.model.fc": (WIDTH, 4 * DIMS)},
        {"projector.scale_factor": 2, "preproc_image_size": 2 * SIZE},
    ),
    "InternVL": Seeing(
        "Qwen 2", "internvl", lambda i: _plain() | {"ls1": (DIMS,), "ls2": (DIMS,)},
        _PATCHES | {"v.position_embd": (PATCHES + 1, DIMS), "v.class_embd.": (DIMS,)}
        | _with_biases({"mm.model.mlp.0": (4 * DIMS,), "mm.model.mlp.1": (WIDTH, 4 * DIMS),
                        "mm.model.mlp.3": (WIDTH, WIDTH)}),
        {"projector.scale_factor": 2},
    ),
    "Pixtral": Seeing(
        "Llama", "pixtral", lambda i: _attention() | _gated(),
        {"v.patch_embd": (DIMS, 3, PATCH, PATCH), "v.pre_ln": (DIMS,),
         "v.token_embd.img_break.": (WIDTH,)}
        | _with_biases({"mm.1": (WIDTH, DIMS), "mm.2": (WIDTH, WIDTH)}),
    ),
    "Qwen 2.5 VL": Seeing(
        QWEN2VL, "qwen2.5vl_merger",
        lambda i: _with_biases(_attention()) | _gated(),
        _TWO_FRAMES | {"v.post_ln": (DIMS,)} | _MERGER, {"n_wa_pattern": 2}, uses_mrope=True,
    ),
    "Qwen 3 VL": Seeing(
        QWEN3VL, "qwen3vl_merger", lambda i: _plain(is_joined=True),
        _TWO_FRAMES | {"v.patch_embd.bias": (DIMS,)} | _PLACES | _POST | _MERGER
        | _with_biases({"v.deepstack.0.norm": (4 * DIMS,), "v.deepstack.0.fc1": (DIMS, 4 * DIMS),
                        "v.deepstack.0.fc2": (WIDTH, DIMS)}),
        uses_mrope=True,
    ),
    "Qwen 3.5": Seeing(
        "Qwen 3.5", "qwen3vl_merger", lambda i: _plain(is_joined=True),
        _TWO_FRAMES | {"v.patch_embd.bias": (DIMS,)} | _PLACES | _POST | _MERGER, uses_mrope=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Files:
    """``draft`` reads text only, and often guesses what the target says."""

    target: Path
    mmproj: Path
    draft: Path


def write_seeing(folder: Path, name: str, *, num_heads: int = 0) -> Files:
    """A model of this family, what it sees pictures with, and a draft for it. Behind the model are
    ``num_heads`` layers of multi-token prediction."""
    seeing = SEEING[name]
    target = write_family(folder / "model.gguf", seeing.text, loudness=0.3, num_heads=num_heads)
    draft = write_family(folder / "draft.gguf", seeing.text, loudness=0.3, noise=0.02)
    return Files(target, write_projector(folder / "mmproj-model-f32.gguf", name), draft)


def write_projector(path: Path, name: str, *, width: int = WIDTH) -> Path:
    """What a model of this family sees pictures with; ``width`` other than its own does not fit."""
    seeing = SEEING[name]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", seeing.projector)
    for axis in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{axis}", [0.5, 0.5, 0.5])
    fields: dict[str, Any] = {
        "image_size": SIZE, "patch_size": PATCH, "embedding_length": DIMS,
        "feed_forward_length": INNER, "block_count": LAYERS, "projection_dim": width,
        "attention.head_count": HEADS, "attention.layer_norm_epsilon": 1e-6, **seeing.fields,
    }  # fmt: skip
    for key, value in fields.items():
        add_field(writer, f"clip.vision.{key}", value)
    shapes = dict(seeing.ends)
    for i in range(LAYERS):
        shapes |= {f"v.blk.{i}.{part}": shape for part, shape in seeing.layer(i).items()}
    dice = np.random.default_rng(4)
    for tensor, shape in shapes.items():
        shape = tuple(width if size == WIDTH else size for size in shape)
        is_whole = tensor.endswith((".", ".bias"))
        is_norm = "norm" in tensor or "ln" in tensor or ".ls" in tensor
        scale = 0.3 if len(shape) == 1 else int(np.prod(shape[1:])) ** -0.5
        drawn = dice.normal(0, scale, shape).astype(np.float32)
        if is_norm and not tensor.endswith(".bias"):
            drawn = np.ones_like(drawn)
        if tensor.startswith("mm.input_projection"):
            drawn *= DIMS**-0.5 * WIDTH**0.5
        writer.add_tensor(tensor.rstrip(".") if is_whole else f"{tensor}.weight", drawn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def picture_file(
    number: int = 0, size: tuple[int, int] = (48, 32), kind: str = "PNG", **options: Any
) -> bytes:
    """A file with a picture of random colours, another one of each number."""
    from PIL import Image

    dice = np.random.default_rng(number)
    pixels = dice.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    found = io.BytesIO()
    Image.fromarray(pixels).save(found, kind, **options)
    return found.getvalue()
