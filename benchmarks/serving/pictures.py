"""Time what a picture costs those who decode: an encode of SmolVLM's encoder, alone and during
decoding in another thread.

The encoder has the shape of SigLIP base, as SmolVLM has it, and random weights; the text model is
SmolLM2. Other requests wait for an encode. In a thread of its own it would compete for the cores.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import SCRATCH, Figures
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.vision.image import ImageTokens
from duodec.backends.llamacpp.vision.sight import LlamaSight
from duodec.core.prompts.pictures import Picture
from duodec.core.targets import Query
from duodec.machine.busy import OtherPrograms
from duodec.models import resolve

_SIZE, _PATCH, _DIMS, _HEADS, _INNER, _LAYERS, _SCALE = 512, 16, 768, 12, 3072, 12, 4
_CONTEXT, _PROMPT = 512, 40
_SETTLING_S = 0.5  # of decoding, before an encode begins


def write_encoder(path: Path, width: int) -> Path:
    """SigLIP base with Idefics 3's projector onto embeddings of this width."""
    import gguf

    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", "idefics3")
    for part in ("mean", "std"):
        writer.add_array(f"clip.vision.image_{part}", [0.5, 0.5, 0.5])
    numbers = {
        "image_size": _SIZE, "patch_size": _PATCH, "embedding_length": _DIMS,
        "feed_forward_length": _INNER, "block_count": _LAYERS, "projection_dim": width,
        "attention.head_count": _HEADS, "projector.scale_factor": _SCALE,
        "preproc_image_size": _SIZE,
    }  # fmt: skip
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    dice = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        drawn = dice.standard_normal(shape, dtype=np.float32) * int(np.prod(shape[1:])) ** -0.5
        kind = np.float32 if len(shape) == 1 or "position" in name else np.float16
        writer.add_tensor(f"{name}.weight", drawn.astype(kind))

    def add_both(name: str, *shape: int) -> None:
        add(name, *shape)
        writer.add_tensor(f"{name}.bias", np.zeros(shape[0], np.float32))

    add_both("v.patch_embd", _DIMS, 3, _PATCH, _PATCH)
    add("v.position_embd", (_SIZE // _PATCH) ** 2, _DIMS)
    add_both("v.post_ln", _DIMS)
    add("mm.model.fc", width, _DIMS * _SCALE**2)
    for i in range(_LAYERS):
        for part in ("q", "k", "v", "out"):
            add_both(f"v.blk.{i}.attn_{part}", _DIMS, _DIMS)
        add_both(f"v.blk.{i}.ffn_up", _INNER, _DIMS)
        add_both(f"v.blk.{i}.ffn_down", _DIMS, _INNER)
        add_both(f"v.blk.{i}.ln1", _DIMS)
        add_both(f"v.blk.{i}.ln2", _DIMS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encode_s(sight: LlamaSight) -> tuple[float, int]:
    """Seconds that a new picture takes, and its tokens."""
    pixels = np.random.default_rng().integers(0, 256, (_SIZE, _SIZE, 3), dtype=np.uint8)
    prompt = sight.tokenize([Picture(_SIZE, _SIZE, pixels.tobytes()), ("a", None)])
    begin_s = perf_counter()
    for part in prompt.shown:
        assert isinstance(part, ImageTokens)
        part.rows()
    return perf_counter() - begin_s, len(prompt)


def decode(target: LlamaTarget, ended: Event) -> list[float]:
    """Seconds of each token, until then."""
    text = np.arange(100, 100 + _PROMPT, dtype=np.int32)
    target.score([Query(0, text)])
    taken = []
    while not ended.is_set():
        begin_s = perf_counter()
        text = np.append(text if len(text) < _CONTEXT - 8 else text[:_PROMPT], np.int32(100))
        target.score([Query(0, text)])
        taken.append(perf_counter() - begin_s)
    return taken


def encode_and_token_s(target: LlamaTarget, sight: LlamaSight | None) -> tuple[float, float]:
    """Seconds of an encode and the median of a token meanwhile; without what encodes, of a token
    alone."""
    ended, found = Event(), list[float]()
    thread = Thread(target=lambda: found.extend(decode(target, ended)))
    thread.start()
    ended.wait(_SETTLING_S)
    taken_s = encode_s(sight)[0] if sight else 2 * _SETTLING_S
    if not sight:
        ended.wait(taken_s)
    ended.set()
    thread.join()
    meanwhile, total_s = [], 0.0
    for seconds in reversed(found):
        meanwhile.append(seconds)
        total_s += seconds
        if total_s >= taken_s:
            break
    return taken_s, median(meanwhile)


def main(
    target: Annotated[str, typer.Option(help="A name or a file.")] = "smollm2",
    threads: Annotated[str, typer.Option(help="Of decoding : of an encode.")] = "2:2,2:1,1:1",
    repeats: Annotated[int, typer.Option(help="By turns.")] = 5,
) -> Figures:
    """An encode and a token, alone and at once."""
    rows: list[dict[str, Any]] = []
    SCRATCH.mkdir(exist_ok=True)
    with closing(LlamaModel(resolve(target).path, num_gpu_layers=0)) as model:
        width = int(model.lib.llama_model_n_embd(model.handle))
        path = write_encoder(SCRATCH / "mmproj-siglip-base.gguf", width)
        for pair in threads.split(","):
            decoding, encoding = map(int, pair.split(":"))
            sight = LlamaSight(model, path, num_threads=encoding)
            own = LlamaTarget(model, num_context=_CONTEXT, num_threads=decoding)
            with closing(own), closing(sight):
                _, num_tokens = encode_s(sight)  # warm
                turns, others = [], OtherPrograms()
                for _ in range(repeats):
                    alone_s, (_, token_s) = encode_s(sight)[0], encode_and_token_s(own, None)
                    turns.append((alone_s, token_s, *encode_and_token_s(own, sight)))
                names = ("encode_s", "token_s", "encode_beside_s", "token_beside_s")
                medians = [float(f"{median(one):.3g}") for one in zip(*turns, strict=True)]
                row: dict[str, Any] = {
                    "decoding": decoding,
                    "encoding": encoding,
                    "tokens": num_tokens,
                }
                row |= dict(zip(names, medians, strict=True))
                rows.append({**row, "other_cores": round(others.num_cores, 2)})
                print(rows[-1], flush=True)
    return {"rows": rows}
