"""By how much do a row's logits move on a device, before and after its forward passes are padded?

For each format of the weights, with and without flash attention, the greatest difference of a logit
from plain decoding's: by the width of the forward pass, in a tree, with another request, and
after a branch was accepted. And T(n), and what crosses from the device in a forward pass. The
models are random, of a few layers.

    python -m benchmarks device_rows [FORMAT ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import gguf
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks import Figures
from duodec.backends.llamacpp import devices, library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import Query, RowQuery
from duodec.core.sampling.sampler import Sampler, Tokens

FORMATS = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K_M")
NUM_VOCAB, WIDTH, NUM_LAYERS, NUM_HEADS = 512, 256, 2, 4
NUM_ROWS = 8
NUM_PROMPT, NUM_TEXT = 244, 252  # llama.cpp shows a pass of 8 rows more cells from 249 on
_Q4_K_M = 15  # llama_ftype

Rows = dict[int, NDArray[np.float32]]  # by the tokens before them


@dataclass(frozen=True)
class Measured:
    """A format, with flash attention or without; None: such rows are not computed."""

    weights: str
    uses_flash_attention: bool
    is_padded: bool
    spread: float  # standard deviation of the logits
    by_width: dict[int, float] = field(default_factory=dict)
    in_a_tree: float | None = None
    in_company: float | None = None
    after_a_branch: float | None = None


def write(path: Path, kind: str) -> Path:
    """A random model without a vocabulary, whose rows are long enough for K-quants."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // NUM_HEADS)
    writer.add_vocab_size(NUM_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    dice, quantised = np.random.default_rng(1), gguf.GGMLQuantizationType[kind]

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones_like(drawn))
        else:
            data = gguf.quants.quantize(drawn, quantised)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=quantised)

    add("token_embd", NUM_VOCAB, WIDTH)
    add("output_norm", WIDTH)
    add("output", NUM_VOCAB, WIDTH)
    for i in range(NUM_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{norm}", WIDTH)
        for part, num_out in (("q", WIDTH), ("k", WIDTH // 2), ("v", WIDTH // 2)):
            add(f"blk.{i}.attn_{part}", num_out, WIDTH)
        add(f"blk.{i}.attn_output", WIDTH, WIDTH)
        for part in ("gate", "up"):
            add(f"blk.{i}.ffn_{part}", 2 * WIDTH, WIDTH)
        add(f"blk.{i}.ffn_down", WIDTH, 2 * WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_file(folder: Path, weights: str) -> Path:
    """K-quants are made by llama.cpp."""
    if weights != "Q4_K_M":
        return write(folder / f"{weights}.gguf", weights)
    source, path = write(folder / "source.gguf", "F16"), folder / f"{weights}.gguf"
    lib = library.load()
    params = lib.llama_model_quantize_default_params()
    params.ftype = _Q4_K_M
    status = lib.llama_model_quantize(str(source).encode(), str(path).encode(), params)
    assert status == 0, f"llama.cpp cannot quantise it (status {status})"
    return path


def words(num_tokens: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, NUM_VOCAB, num_tokens).astype(np.int32)


def chain(tokens: Sequence[int]) -> Draft:
    return Draft(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)))


def moved(found: Rows, expected: Rows) -> float:
    return max(float(np.abs(row - expected[n]).max()) for n, row in found.items())


@contextmanager
def opened(model: LlamaModel, *, uses_flash_attention: bool) -> Iterator[LlamaContext]:
    context = LlamaContext(
        model, num_context=1024, num_sequences=32, num_threads=1, max_rows=32,
        uses_flash_attention=uses_flash_attention,
    )  # fmt: skip
    with closing(context):
        context.rows([RowQuery(0, words(NUM_TEXT)[: NUM_PROMPT - 1], Draft(), ())])
        yield context


def ask(context: LlamaContext, length: int, draft: Draft) -> list[NDArray[np.float32]]:
    rows = tuple(range(len(draft) + 1))
    (found,) = context.rows([RowQuery(0, words(NUM_TEXT)[:length], draft, rows)])
    return [row.copy() for row in found]


def by_width(context: LlamaContext, width: int) -> Rows:
    text, found = words(NUM_TEXT), Rows()
    for length in range(NUM_PROMPT, NUM_TEXT, width):
        rows = ask(context, length, chain(text[length : length + width - 1].tolist()))
        found |= {length + i: row for i, row in enumerate(rows)}
    return found


def unpadded(model: LlamaModel, weights: str, *, uses_flash_attention: bool) -> Measured:
    """As llama.cpp computes it, in a cache that all texts and branches share."""
    text = words(NUM_TEXT)
    flash = uses_flash_attention
    with opened(model, uses_flash_attention=flash) as context:
        expected = by_width(context, 1)
    widths = {}
    for width in (2, 4, 8):
        with opened(model, uses_flash_attention=flash) as context:
            widths[width] = moved(by_width(context, width), expected)
    right, after = text[NUM_PROMPT : NUM_PROMPT + 2].tolist()
    tree = Draft((right ^ 1, right ^ 2, right, after), (ROOT, 0, ROOT, 2))
    with opened(model, uses_flash_attention=flash) as context:
        rows = ask(context, NUM_PROMPT, tree)
        in_tree = {NUM_PROMPT: rows[0], NUM_PROMPT + 1: rows[3], NUM_PROMPT + 2: rows[4]}
        accepted = {NUM_PROMPT + 3: ask(context, NUM_PROMPT + 3, Draft())[0]}
    with opened(model, uses_flash_attention=flash) as context:
        other = RowQuery(1, words(99, 1), Draft(), (0,))
        own = RowQuery(0, text[:NUM_PROMPT], Draft(), (0,))
        together = {NUM_PROMPT: context.rows([other, own])[1][0].copy()}
    spread = float(np.std(np.stack(list(expected.values()))))
    return Measured(
        weights, flash, False, spread, widths,
        moved(in_tree, expected), moved(together, expected), moved(accepted, expected),
    )  # fmt: skip


def padded(model: LlamaModel, weights: str, *, uses_flash_attention: bool) -> Measured:
    """In passes of one number of rows; drafts are chains there, so there is no tree."""
    text, expected = words(NUM_TEXT), Rows()
    widths: dict[int, float] = {}
    sampler = replace(Sampler(), num_prompt_tokens=NUM_PROMPT)
    target = LlamaPadded(
        model, num_rows=NUM_ROWS, num_slots=2, num_context=512, num_threads=1,
        uses_flash_attention=uses_flash_attention,
    )  # fmt: skip

    def score(length: int, draft: Draft, *others: Query) -> Rows:
        (scores, *_) = target.score([Query(0, text[:length], draft, sampler), *others])
        return {length + i: row.copy() for i, row in enumerate(scores.rows)}  # type: ignore[attr-defined]

    with closing(target):
        for width in (1, 2, 4, 8):
            found, length = Rows(), NUM_PROMPT
            while length <= NUM_TEXT:
                found |= score(length, chain(text[length : length + width - 1].tolist()))
                length = max(found) + 1  # fewer at a step of the cells
            if width == 1:
                expected = found
            else:
                widths[width] = moved(found, expected)
        wrong = [int(text[NUM_PROMPT]), int(text[NUM_PROMPT + 1]) ^ 1, 7]
        score(NUM_PROMPT, chain(wrong))
        refused = score(NUM_PROMPT + 2, Draft())
        company = score(NUM_PROMPT, Draft(), Query(1, words(99, 1), chain((1, 2)), sampler))
    spread = float(np.std(np.stack(list(expected.values()))))
    return Measured(
        weights, uses_flash_attention, True, spread, widths,
        None, moved(company, expected), moved(refused, expected),
    )  # fmt: skip


def times(model: LlamaModel, num_rows: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> dict[int, float]:
    """T(n) in milliseconds, of a text's first tokens."""
    found = {}
    for count in num_rows:
        target = LlamaPadded(model, num_rows=count, num_context=256, num_threads=1)
        with closing(target):
            seconds = []
            for _ in range(6):
                begin_s = time.perf_counter()
                target.score([Query(0, words(2))])
                seconds.append(time.perf_counter() - begin_s)
        found[count] = 1e3 * median(seconds[1:])
    return found


def main(
    formats: Annotated[list[str] | None, typer.Argument(metavar="FORMAT...")] = None,
) -> Figures:
    """Deviations and times by format."""
    lib = library.load()
    found = devices.every(lib)
    if not found:
        sys.exit("device_rows: no device; make setup-vulkan-software, or make setup GPU=...")
    measured: list[Measured] = []
    forward_ms: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for weights in formats or FORMATS:
            with closing(LlamaModel(model_file(Path(name), weights))) as model:
                for flash in (False, True):
                    for way in (unpadded, padded):
                        measured.append(way(model, weights, uses_flash_attention=flash))
                        print(json.dumps(asdict(measured[-1])), flush=True)
                forward_ms[weights] = times(model)
    return {
        "devices": [asdict(device) for device in found],
        "num_rows": NUM_ROWS,
        "deviations": [asdict(one) for one in measured],
        "forward_ms": forward_ms,
    }
